//! Programs and their parts.

mod build;
mod check;
mod content;
mod precedence;
mod usage;

pub use build::ProgramBuilder;
pub use content::Content;
pub use precedence::Precedence;

use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, BytesPerSecond, DeviceId, Fold, IdVec, IdleCause, LaneId, LaneRole,
    LayerRange, LinkId, MemoryId, Seconds, SimTime, StageId, Subject,
};
use std::{num::NonZeroU32, sync::Arc};

/// A device that computes, or a drive that reads and writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name in the machine.
    pub name: String,
    /// Its memory.
    pub memory: MemoryId,
    /// Whether it emulates an accelerator that the machine lacks.
    pub emulated: bool,
}

/// A memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its name in the machine.
    pub name: String,
    /// Its capacity, if it is limited.
    pub capacity: Option<Bytes>,
}

/// A bandwidth that flows share: one direction of a link, or the channels of a DRAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its name in the machine.
    pub name: String,
    /// The rate of all flows over it together.
    pub bandwidth: BytesPerSecond,
}

/// A stage: consecutive layers that one device computes in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The device.
    pub device: DeviceId,
    /// The layers.
    pub layers: LayerRange,
    /// The layers whose activations are recomputed for the backward: the first ones of the stage.
    pub recomputed: Option<LayerRange>,
}

/// The time for which a buffer is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// From the start of its first writer to the end of its last user.
    Transient,
    /// Throughout. The last version of an iteration is version 0 of the next.
    Resident,
    /// From the start of the iteration, where it is version 0, to the end of its last user.
    Arrives,
    /// From the start of its first writer to the end of the iteration. In the next iteration it is
    /// `into`.
    Leaves {
        /// An [`Lifetime::Arrives`] buffer of the same memory and size.
        into: BufferId,
    },
}

/// A piece of data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The meaning of its data.
    pub content: Content,
    /// The memory that holds it.
    pub memory: MemoryId,
    /// Its size.
    pub bytes: Bytes,
    /// The time for which it is held.
    pub lifetime: Lifetime,
    /// The part of its content that it holds; `None` for all of it.
    pub part: Option<Part>,
}

/// One of several equal parts of every tensor of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The index of the part, from 0.
    pub index: u32,
    /// The number of parts.
    pub of: u32,
}

/// One version of a buffer. Version 0 exists before the first write. An update in place reads
/// version v and writes v + 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Access {
    /// The buffer.
    pub buffer: BufferId,
    /// Its version.
    pub version: u32,
}

impl Access {
    /// Version `version` of `buffer`.
    pub const fn new(buffer: BufferId, version: u32) -> Self {
        Self { buffer, version }
    }
}

/// Bytes that move over a route. Flows share every channel of their routes max–min fairly
/// ([`FairShare`](crate::FairShare)).
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// The channels of the route; empty for a copy that has only latency.
    pub route: Arc<[LinkId]>,
    /// The time before the first byte.
    pub latency: SimTime,
    /// The bytes to move.
    pub bytes: Bytes,
    /// The highest rate of this flow, if it is limited.
    pub rate_cap: Option<BytesPerSecond>,
    /// Its priority and weight.
    pub share: Share,
}

/// The priority and weight of a flow on the channels that it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    /// Flows of higher priority are served first; lower ones share the rest.
    pub priority: u8,
    /// Among flows of equal priority, rates rise in proportion to their weights.
    pub weight: NonZeroU32,
}

impl Default for Share {
    fn default() -> Self {
        Self { priority: 0, weight: NonZeroU32::MIN }
    }
}

/// A condition of an action: a check must have ended with the given outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The check.
    pub check: ActionId,
    /// The outcome under which the action runs.
    pub outcome: Outcome,
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// No fault.
    #[default]
    Pass,
    /// Optimizer steps must be undone, and possibly done again.
    Fail,
}

/// An action to be added to a program.
#[derive(Clone, Debug, PartialEq)]
pub struct NewAction {
    /// The lane of its queue.
    pub lane: LaneId,
    /// Its kind.
    pub kind: ActionKind,
    /// Its stage, layers and microbatch.
    pub subject: Subject,
    /// The versions of buffers that it reads.
    pub reads: Vec<Access>,
    /// The versions of buffers that it writes.
    pub writes: Vec<Access>,
    /// Its time without contention, apart from flows.
    pub work: SimTime,
    /// The bytes that it moves.
    pub flows: Vec<Flow>,
    /// The condition under which it runs; `None` for always.
    pub guard: Option<Guard>,
}

/// An operation on a lane. It ends when its work and all its flows have ended.
///
/// Its accesses and flows are in arrays of the program ([`Program::reads`], [`Program::writes`],
/// [`Program::flows`]), because there are programs of millions of actions.
#[derive(Clone, Debug)]
pub struct Action {
    /// The lane of its queue.
    pub lane: LaneId,
    /// Its kind.
    pub kind: ActionKind,
    /// Its stage, layers and microbatch.
    pub subject: Subject,
    /// Its time without contention, apart from flows.
    pub work: SimTime,
    /// The condition under which it runs; `None` for always.
    pub guard: Option<Guard>,
    /// The start of its reads and of its writes, and the end of its writes, in the accesses of the
    /// program.
    accesses: [u32; 3],
    /// The start and end of its flows in those of the program.
    flows: [u32; 2],
}

/// The event of the earlier action that lets the later one start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Anchor {
    /// Its end.
    EndToStart,
    /// Its start.
    StartToStart,
}

/// A precedence that does not follow from data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The earlier action.
    pub from: ActionId,
    /// The later action.
    pub to: ActionId,
    /// The event of the earlier action.
    pub anchor: Anchor,
    /// 0 within an iteration; 1 if `to` waits for `from` of the iteration before.
    pub distance: u8,
    /// The latency in between.
    pub lag: SimTime,
    /// The cause of idle time, where a lane waited for this precedence last.
    pub cause: IdleCause,
}

/// The order of a lane's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneOrder {
    /// The order in which actions were added, as for the compute of a device.
    AsAdded,
    /// By the estimated start of each action without contention, so that copies follow their
    /// producers.
    AsReady,
    /// By layer, among the actions that can start by the same estimate: the next iteration needs
    /// the first layers first.
    AsNeeded,
}

/// An in-order queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Its name, `gpu0.compute`.
    pub name: String,
    /// Its device.
    pub device: DeviceId,
    /// Its role.
    pub role: LaneRole,
    /// The order of its queue.
    pub order: LaneOrder,
    /// Its actions in execution order.
    pub queue: Vec<ActionId>,
}

/// The requirements of an iteration, against which the checker counts forwards and backwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// The name of the program: system, model and machine.
    pub name: String,
    /// The number of layers of the model.
    pub layers: usize,
    /// The number of microbatches of the iteration.
    pub microbatches: u64,
    /// Whether every forward must be followed by a backward.
    pub training: bool,
    /// The number of layers at the front of the model without trainable parameters. In training
    /// only these have no backward.
    pub without_backward: usize,
    /// Whether the output of the last layer is the input of the first one in the next iteration, as
    /// for generated tokens and for images that are denoised step by step.
    pub feeds_back: bool,
    /// The number of tokens or images of the iteration, if there are any.
    pub tokens: Option<u64>,
    /// Notes that must accompany all results.
    pub notes: Vec<String>,
}

/// The actions of a machine in one iteration, checked and frozen.
#[derive(Clone, Debug)]
pub struct Program {
    shape: Shape,
    devices: IdVec<DeviceId, Device>,
    memories: IdVec<MemoryId, Space>,
    channels: IdVec<LinkId, Channel>,
    stages: IdVec<StageId, Stage>,
    buffers: IdVec<BufferId, Buffer>,
    lanes: IdVec<LaneId, Lane>,
    actions: IdVec<ActionId, Action>,
    accesses: Vec<Access>,
    flows: Vec<Flow>,
    precedences: Vec<Precedence>,
    /// The start of each action's precedences, and the end of the last one's.
    leaving: Vec<u32>,
    folds: Vec<Fold>,
}

impl Program {
    /// The requirements of the iteration.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The devices.
    pub const fn devices(&self) -> &IdVec<DeviceId, Device> {
        &self.devices
    }

    /// The memories.
    pub const fn memories(&self) -> &IdVec<MemoryId, Space> {
        &self.memories
    }

    /// The channels.
    pub const fn channels(&self) -> &IdVec<LinkId, Channel> {
        &self.channels
    }

    /// The devices and memories that stand for others of a mesh.
    pub fn folds(&self) -> &[Fold] {
        &self.folds
    }

    /// The stages.
    pub const fn stages(&self) -> &IdVec<StageId, Stage> {
        &self.stages
    }

    /// The buffers.
    pub const fn buffers(&self) -> &IdVec<BufferId, Buffer> {
        &self.buffers
    }

    /// The lanes.
    pub const fn lanes(&self) -> &IdVec<LaneId, Lane> {
        &self.lanes
    }

    /// The actions.
    pub const fn actions(&self) -> &IdVec<ActionId, Action> {
        &self.actions
    }

    /// The versions of buffers that `action` reads.
    pub fn reads(&self, action: &Action) -> &[Access] {
        &self.accesses[action.accesses[0] as usize..action.accesses[1] as usize]
    }

    /// The versions of buffers that `action` writes.
    pub fn writes(&self, action: &Action) -> &[Access] {
        &self.accesses[action.accesses[1] as usize..action.accesses[2] as usize]
    }

    /// The versions of buffers that `action` reads and writes.
    pub fn accesses(&self, action: &Action) -> &[Access] {
        &self.accesses[action.accesses[0] as usize..action.accesses[2] as usize]
    }

    /// The bytes that `action` moves.
    pub fn flows(&self, action: &Action) -> &[Flow] {
        &self.flows[action.flows[0] as usize..action.flows[1] as usize]
    }

    /// The precedences from data and edges, sorted by the earlier action. The order within lanes is
    /// not among them.
    pub fn precedences(&self) -> &[Precedence] {
        &self.precedences
    }

    /// The precedences whose earlier action is `action`, as a range of [`Program::precedences`].
    pub fn leaving(&self, action: ActionId) -> std::ops::Range<usize> {
        self.leaving[action.index()] as usize..self.leaving[action.index() + 1] as usize
    }

    /// The rank of `action` among the actions of its lane that can start. The lowest starts first.
    pub(super) fn rank(&self, action: ActionId) -> usize {
        let action = &self.actions[action];
        match self.lanes[action.lane].order {
            LaneOrder::AsNeeded => action.subject.layers.map_or(0, |layers| layers.first().index()),
            LaneOrder::AsAdded | LaneOrder::AsReady => 0,
        }
    }

    /// The time of `action` without contention: the longer of its work and its slowest flow.
    pub fn alone(&self, action: ActionId) -> SimTime {
        let action = &self.actions[action];
        self.flows(action).iter().map(|flow| self.flow_alone(flow)).fold(action.work, SimTime::max)
    }

    fn flow_alone(&self, flow: &Flow) -> SimTime {
        // A route may pass a channel twice, as for a copy within one DRAM.
        let passes = |channel: &LinkId| flow.route.iter().filter(|other| *other == channel).count() as f64;
        let rate = |channel: &LinkId| self.channels[*channel].bandwidth.get() / passes(channel);
        let cap = flow.rate_cap.map_or(f64::INFINITY, |cap| cap.get());
        let rate = flow.route.iter().map(rate).fold(cap, f64::min);
        let moving = Seconds::new(flow.bytes.as_f64() / rate).unwrap_or(Seconds::ZERO);
        flow.latency + SimTime::from_seconds(moving)
    }

    /// The name of `action` in messages: kind, subject and lane.
    pub fn describe(&self, action: ActionId) -> String {
        let this = &self.actions[action];
        format!("{} {} on `{}`", this.kind, this.subject, self.lanes[this.lane].name)
    }
}
