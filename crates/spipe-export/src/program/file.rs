//! `program.json`: a program in the form that the interpreter reads.

use super::{
    place::{Places, places},
    ranks::Ranks,
};
use crate::{batch::Batch, network::Network, ranks::Rank};
use serde::Serialize;
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, IdleCause, LaneRole, LayerId, LayerRange, MicrobatchId, Subject,
};
use spipe_hardware::MemoryKind;
use spipe_plan::Plan;
use spipe_schedule::{Access, Anchor, Content, Lifetime, Outcome, Program};

/// The version of the format.
const FORMAT_VERSION: u32 = 1;

/// A program with everything else that its interpreter needs of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ProgramFile {
    /// The version of the format: 1.
    format_version: u32,
    /// System, model and machine.
    name: String,
    /// The short name of the plan, by which traces and checkpoints are known to be of it.
    fingerprint: String,
    /// The sizes of the model.
    model: Network,
    /// The layers without trainable parameters.
    frozen: Vec<LayerId>,
    /// The number of layers at the front of the model without a backward.
    without_backward: usize,
    /// The batch of an iteration.
    batch: Batch,
    /// The type of parameters and activations: fp32, bf16 or fp16.
    precision: String,
    /// The threshold of gradient clipping.
    clip_norm: Option<f64>,
    /// The processes, one for each device that computes.
    ranks: Vec<Rank>,
    /// The memories, with the bytes that have fixed places.
    memories: Vec<Memory>,
    /// The stages.
    stages: Vec<Stage>,
    /// The buffers.
    buffers: Vec<Buffer>,
    /// The lanes with their actions in order.
    lanes: Vec<Lane>,
    /// All precedences but those of lanes.
    edges: Vec<Edge>,
}

/// A memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct Memory {
    /// Its name in the machine.
    name: String,
    /// The process whose device has it; none for DRAM, which all processes share.
    rank: Option<usize>,
    /// The place of a DRAM among the sockets of the computer.
    socket: Option<usize>,
    /// The bytes of all places.
    bytes: u64,
    /// Whether it is a drive, for which a file stands.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    drive: bool,
}

/// Consecutive layers that one device computes in one piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct Stage {
    /// The process.
    rank: usize,
    /// The layers.
    layers: LayerRange,
    /// The layers, from the front, that are computed again before the backward.
    recomputed: usize,
}

/// A piece of data in a memory. Its content has the fields that apply to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct Buffer {
    /// The meaning of the data.
    content: ContentKind,
    /// The layers whose data it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<LayerRange>,
    /// The microbatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    microbatch: Option<MicrobatchId>,
    /// The index of the memory.
    memory: usize,
    /// The size.
    bytes: u64,
    /// The first byte in the memory, if it has a fixed place.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    /// Whether it is held throughout; the last version is version 0 of the next iteration.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    resident: bool,
    /// The buffer that it is in the next iteration.
    #[serde(skip_serializing_if = "Option::is_none")]
    into: Option<BufferId>,
}

/// The meaning of a buffer's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum ContentKind {
    Parameters,
    Updated,
    Gradients,
    OptimizerState,
    Norm,
    Shared,
    SharedGradients,
    Cache,
    Activation,
    Gradient,
    Saved,
    Recomputed,
    Reloaded,
    Checkpoint,
    UndoLog,
    Workspace,
}

/// An in-order queue.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct Lane {
    /// Its name: `gpu0.compute`.
    name: String,
    /// Its device.
    device: String,
    /// Its role.
    role: LaneRole,
    /// The process that runs it.
    rank: usize,
    /// The process that receives what it copies, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    to_rank: Option<usize>,
    /// Its actions in order.
    actions: Vec<Action>,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct Action {
    /// Its number in the program.
    id: ActionId,
    /// Its kind.
    kind: ActionKind,
    /// Its stage, microbatch and layers.
    subject: Subject,
    /// Buffers and versions that it reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reads: Vec<(BufferId, u32)>,
    /// Buffers and versions that it writes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    writes: Vec<(BufferId, u32)>,
    /// The check whose outcome decides whether it runs, and that outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<(ActionId, GuardOutcome)>,
}

/// The outcome of a check under which an action runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum GuardOutcome {
    Pass,
    Fail,
}

/// A precedence between two actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct Edge {
    from: ActionId,
    to: ActionId,
    /// 0 within an iteration; 1 if `to` waits for `from` of the iteration before.
    distance: u8,
    /// Whether `to` waits for the start of `from` instead of its end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    at_start: bool,
    /// The cause of idle time, where a lane waited for this precedence last.
    cause: IdleCause,
}

/// The JSON schema of program files.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(ProgramFile)
}

impl ProgramFile {
    /// The file of a plan's program.
    pub fn new(plan: &Plan, network: &Network, program: &Program) -> Self {
        let context = plan.context();
        let (workload, layers) = (context.workload(), context.model.layers());
        let ranks = Ranks::of(plan, program);
        let places = places(program);
        Self {
            format_version: FORMAT_VERSION,
            name: program.shape().name.clone(),
            fingerprint: crate::fingerprint::fingerprint(plan),
            model: network.clone(),
            frozen: layers.enumerate().filter(|(_, layer)| !layer.learns()).map(|(id, _)| id).collect(),
            without_backward: program.shape().without_backward,
            batch: Batch::of(&context),
            precision: workload.precision.name().into(),
            clip_norm: workload.clip_norm.map(f64::from),
            ranks: ranks.list(plan),
            memories: memories(plan, &ranks, &places),
            stages: program.stages().iter().map(|stage| of_stage(stage, &ranks)).collect(),
            buffers: program.buffers().enumerate().map(|(id, buffer)| of_buffer(buffer, places.offsets[id])).collect(),
            lanes: program.lanes().iter().map(|lane| of_lane(program, lane, &ranks)).collect(),
            edges: edges(program, &places),
        }
    }

    /// The stages as rows of Markdown.
    pub fn table(&self) -> String {
        let row = |(index, stage): (usize, &Stage)| {
            let device = &self.ranks[stage.rank].device;
            format!("| {index} | {} | {device} | {} | {} |", stage.rank, stage.layers, stage.recomputed)
        };
        self.stages.iter().enumerate().map(row).collect::<Vec<_>>().join("\n")
    }

    /// The memories with fixed places as rows of Markdown.
    pub fn places(&self) -> String {
        let held = self.memories.iter().filter(|memory| memory.bytes > 0);
        held.map(|memory| format!("| {} | {} |", memory.name, Bytes::new(memory.bytes))).collect::<Vec<_>>().join("\n")
    }

    /// The names of the drives with places.
    pub fn drives(&self) -> Vec<String> {
        let used = self.memories.iter().filter(|memory| memory.drive && memory.bytes > 0);
        used.map(|memory| memory.name.clone()).collect()
    }

    /// The processes.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }
}

fn memories(plan: &Plan, ranks: &Ranks, places: &Places) -> Vec<Memory> {
    let hardware = plan.context().hardware;
    let memory = |(id, memory): (spipe_base::MemoryId, &spipe_hardware::Memory)| Memory {
        name: memory.name.clone(),
        rank: memory
            .device
            .filter(|device| hardware.devices()[*device].is_gpu())
            .and_then(|device| ranks.of_device(device)),
        socket: ranks.socket(plan, id),
        bytes: places.sizes[id].get(),
        drive: memory.kind == MemoryKind::Nvme,
    };
    hardware.memories().enumerate().map(memory).collect()
}

fn of_stage(stage: &spipe_schedule::Stage, ranks: &Ranks) -> Stage {
    Stage {
        rank: ranks.of_device(stage.device).unwrap_or_default(),
        layers: stage.layers,
        recomputed: stage.recomputed.map_or(0, LayerRange::count),
    }
}

fn of_buffer(buffer: &spipe_schedule::Buffer, offset: Option<Bytes>) -> Buffer {
    let one = |layer: LayerId| LayerRange::new(layer, layer);
    let (content, layers) = match buffer.content {
        Content::Parameters(layers) => (ContentKind::Parameters, Some(layers)),
        Content::Updated(layers) => (ContentKind::Updated, Some(layers)),
        Content::Gradients(layers) => (ContentKind::Gradients, Some(layers)),
        Content::OptimizerState(layers) => (ContentKind::OptimizerState, Some(layers)),
        Content::Norm(layers) => (ContentKind::Norm, Some(layers)),
        Content::Shared(user) => (ContentKind::Shared, one(user)),
        Content::SharedGradients(user) => (ContentKind::SharedGradients, one(user)),
        Content::Cache(layers) => (ContentKind::Cache, Some(layers)),
        Content::Activation(layer, _) => (ContentKind::Activation, one(layer)),
        Content::Gradient(layer, _) => (ContentKind::Gradient, one(layer)),
        Content::Saved(layers, _) => (ContentKind::Saved, Some(layers)),
        Content::Recomputed(layers, _) => (ContentKind::Recomputed, Some(layers)),
        Content::Reloaded(layers, _) => (ContentKind::Reloaded, Some(layers)),
        Content::Checkpoint(layer, _) => (ContentKind::Checkpoint, one(layer)),
        Content::UndoLog(layers) => (ContentKind::UndoLog, Some(layers)),
        Content::Workspace(..) => (ContentKind::Workspace, None),
    };
    let into = match buffer.lifetime {
        Lifetime::Leaves { into } => Some(into),
        _ => None,
    };
    Buffer {
        content,
        layers,
        microbatch: buffer.content.microbatch(),
        memory: buffer.memory.index(),
        bytes: buffer.bytes.get(),
        offset: offset.map(Bytes::get),
        resident: buffer.lifetime == Lifetime::Resident,
        into,
    }
}

fn of_lane(program: &Program, lane: &spipe_schedule::Lane, ranks: &Ranks) -> Lane {
    Lane {
        name: lane.name.clone(),
        device: program.devices()[lane.device].name.clone(),
        role: lane.role,
        rank: ranks.of_lane(lane.device),
        to_rank: ranks.receiver(program, lane),
        actions: lane.queue.iter().map(|id| of_action(program, *id)).collect(),
    }
}

fn of_action(program: &Program, id: ActionId) -> Action {
    let action = &program.actions()[id];
    let pairs = |accesses: &[Access]| accesses.iter().map(|access| (access.buffer, access.version)).collect();
    let outcome = |outcome| match outcome {
        Outcome::Pass => GuardOutcome::Pass,
        Outcome::Fail => GuardOutcome::Fail,
    };
    Action {
        id,
        kind: action.kind,
        subject: action.subject,
        reads: pairs(program.reads(action)),
        writes: pairs(program.writes(action)),
        guard: action.guard.map(|guard| (guard.check, outcome(guard.outcome))),
    }
}

/// The precedences of the program, and those of places.
fn edges(program: &Program, places: &Places) -> Vec<Edge> {
    let own = program.precedences().iter().map(|one| Edge {
        from: one.from,
        to: one.to,
        distance: one.distance,
        at_start: one.anchor == Anchor::StartToStart,
        cause: one.cause,
    });
    let free = places.edges.iter().map(|(from, to, distance)| Edge {
        from: *from,
        to: *to,
        distance: *distance,
        at_start: false,
        cause: IdleCause::Memory,
    });
    let mut edges: Vec<Edge> = own.chain(free).collect();
    edges.sort_unstable();
    edges.dedup_by_key(|edge| (edge.from, edge.to, edge.distance, edge.at_start));
    edges
}
