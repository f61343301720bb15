//! The program and its parts.

mod build;
mod check;
mod precedence;

pub use build::ProgramBuilder;
pub use precedence::Precedence;

use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, BytesPerSecond, DeviceId, IdVec, IdleCause, LaneId, LaneRole, LayerId,
    LayerRange, LinkId, MemoryId, MicrobatchId, Seconds, SimTime, StageId, Subject,
};
use std::{fmt, num::NonZeroU32, sync::Arc};

/// A device that computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name in the machine.
    pub name: String,
    /// Its own memory.
    pub memory: MemoryId,
    /// Whether it stands for an accelerator that is not there.
    pub emulated: bool,
}

/// A memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its name in the machine.
    pub name: String,
    /// What it can hold, if that is limited.
    pub capacity: Option<Bytes>,
}

/// One direction of a link, or the channels of a DRAM: what flows share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its name in the machine.
    pub name: String,
    /// What all flows over it get together.
    pub bandwidth: BytesPerSecond,
}

/// A stage: consecutive layers that one device computes in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The device.
    pub device: DeviceId,
    /// The layers.
    pub layers: LayerRange,
    /// Those whose activations are computed again for the backward: the first ones of the stage.
    pub recomputed: Option<LayerRange>,
}

/// Data by what it is; together with its memory this names a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// Parameters of layers.
    Parameters(LayerRange),
    /// Accumulated gradients of parameters.
    Gradients(LayerRange),
    /// Master copies and moments.
    OptimizerState(LayerRange),
    /// The sum of the squares of accumulated gradients: one number, which counts as no bytes.
    Norm(LayerRange),
    /// A copy of the parameters of another layer that this one uses as well, such as an embedding's table at the head.
    Shared(LayerId),
    /// Accumulated gradients of those parameters from that use.
    SharedGradients(LayerId),
    /// Keys and values of the tokens so far, of all microbatches; each forward reads and lengthens those of its own.
    Cache(LayerRange),
    /// The output of a layer on a microbatch.
    Activation(LayerId, MicrobatchId),
    /// The gradient of that output.
    Gradient(LayerId, MicrobatchId),
    /// What the forward of layers keeps for their backward.
    Saved(LayerRange, MicrobatchId),
    /// The same, computed again just before the backward.
    Recomputed(LayerRange, MicrobatchId),
    /// The same, back from the host just before the backward.
    Reloaded(LayerRange, MicrobatchId),
    /// The output of a layer on a microbatch, kept so that the backward of the layers behind it can start from it.
    Checkpoint(LayerId, MicrobatchId),
    /// What a step taken on trust has changed, as it was.
    UndoLog(LayerRange),
    /// What an action needs for itself while it runs.
    Workspace(StageId, MicrobatchId),
}

impl Content {
    /// What reports call all data of this kind in one stage or range: "saved activations of layers 0..3".
    pub fn group(&self) -> String {
        match self {
            Self::Parameters(layers) => format!("parameters of {}", layers.in_words()),
            Self::Gradients(layers) => format!("gradients of {}", layers.in_words()),
            Self::OptimizerState(layers) => format!("optimizer state of {}", layers.in_words()),
            Self::Norm(layers) => format!("norm of the gradients of {}", layers.in_words()),
            Self::Shared(user) => format!("parameters that {user} shares"),
            Self::SharedGradients(user) => format!("gradients of parameters that {user} shares"),
            Self::Cache(layers) => format!("keys and values of {}", layers.in_words()),
            Self::Activation(layer, _) => format!("activations after {layer}"),
            Self::Gradient(layer, _) => format!("activation gradients after {layer}"),
            Self::Saved(layers, _) => format!("saved activations of {}", layers.in_words()),
            Self::Recomputed(layers, _) => format!("recomputed activations of {}", layers.in_words()),
            Self::Reloaded(layers, _) => format!("reloaded activations of {}", layers.in_words()),
            Self::Checkpoint(layer, _) => format!("checkpoints after {layer}"),
            Self::UndoLog(layers) => format!("undo log of {}", layers.in_words()),
            Self::Workspace(stage, _) => format!("workspace of {stage}"),
        }
    }

    /// The microbatch it belongs to, if any.
    pub const fn microbatch(&self) -> Option<MicrobatchId> {
        match self {
            Self::Parameters(_)
            | Self::Gradients(_)
            | Self::OptimizerState(_)
            | Self::Norm(_)
            | Self::Shared(_)
            | Self::SharedGradients(_)
            | Self::UndoLog(_)
            | Self::Cache(_) => None,
            Self::Activation(_, microbatch)
            | Self::Gradient(_, microbatch)
            | Self::Saved(_, microbatch)
            | Self::Recomputed(_, microbatch)
            | Self::Reloaded(_, microbatch)
            | Self::Checkpoint(_, microbatch)
            | Self::Workspace(_, microbatch) => Some(*microbatch),
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.microbatch() {
            Some(microbatch) => write!(f, "{}, {microbatch}", self.group()),
            None => f.write_str(&self.group()),
        }
    }
}

/// How long a buffer is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// From the start of its first writer to the end of its last user.
    Transient,
    /// Throughout; what the last version is at the end of an iteration is version 0 of the next.
    Resident,
    /// From the start of the iteration, where it is version 0, to the end of its last user.
    Arrives,
    /// From the start of its first writer to the end of the iteration; in the next iteration it is `into`.
    Leaves {
        /// An [`Lifetime::Arrives`] buffer of the same memory and size.
        into: BufferId,
    },
}

/// A piece of data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// What it is.
    pub content: Content,
    /// Where it is.
    pub memory: MemoryId,
    /// How large it is.
    pub bytes: Bytes,
    /// How long it is held.
    pub lifetime: Lifetime,
    /// Which of equal parts of its content it is; none if it is all of it.
    pub part: Option<Part>,
}

/// One of several equal parts of every tensor of some content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Which one, from 0.
    pub index: u32,
    /// How many there are.
    pub of: u32,
}

/// One version of a buffer. Version 0 exists before anything is written; an update in place reads version v and writes v + 1.
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

/// Bytes over a route. All flows share every channel of their routes max-min fairly.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// The channels on the way; none for a copy that only has latency.
    pub route: Arc<[LinkId]>,
    /// Time before the first byte.
    pub latency: SimTime,
    /// How much moves.
    pub bytes: Bytes,
    /// The most that this flow can get by itself.
    pub rate_cap: Option<BytesPerSecond>,
    /// What it gets beside others.
    pub share: Share,
}

/// What a flow gets of the channels that it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    /// Flows of a higher priority are served before it; those of a lower one get what it leaves.
    pub priority: u8,
    /// Among flows of its priority its rate rises so many times as fast as that of one with weight 1.
    pub weight: NonZeroU32,
}

impl Default for Share {
    fn default() -> Self {
        Self { priority: 0, weight: NonZeroU32::MIN }
    }
}

/// An action happens only if a check ended in a certain way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The check.
    pub check: ActionId,
    /// The outcome that lets the action happen.
    pub outcome: Outcome,
}

/// How a check ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// All is well.
    #[default]
    Pass,
    /// Something has to be undone or done again.
    Fail,
}

/// A thing that a lane does. It ends when its work and all its flows have ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// Where it queues.
    pub lane: LaneId,
    /// What kind of thing it is.
    pub kind: ActionKind,
    /// What it is about.
    pub subject: Subject,
    /// What it needs.
    pub reads: Vec<Access>,
    /// What it makes.
    pub writes: Vec<Access>,
    /// How long it takes by itself.
    pub work: SimTime,
    /// What it moves.
    pub flows: Vec<Flow>,
    /// What it depends on happening at all.
    pub guard: Option<Guard>,
}

/// Which end of the earlier action lets the later one start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Anchor {
    /// It must have ended.
    EndToStart,
    /// It must have started.
    StartToStart,
}

/// An order that no data asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The earlier action.
    pub from: ActionId,
    /// The later action.
    pub to: ActionId,
    /// Which end of the earlier one counts.
    pub anchor: Anchor,
    /// 0 within an iteration; 1 if `to` waits for `from` of the iteration before.
    pub distance: u8,
    /// Time that must pass in between: pure latency.
    pub lag: SimTime,
    /// What an idle lane was waiting for when this came last.
    pub cause: IdleCause,
}

/// How the queue of a lane is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneOrder {
    /// As the actions were added: the order of a device's compute.
    AsAdded,
    /// By when the actions can start, estimated without contention: copies follow their producers.
    AsReady,
    /// Of those that can start, estimated likewise, the one of the first layers first: the next iteration needs it first.
    AsNeeded,
}

/// An in-order queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Its name, `gpu0.compute`.
    pub name: String,
    /// Whose it is.
    pub device: DeviceId,
    /// What it is for.
    pub role: LaneRole,
    /// How it got its order.
    pub order: LaneOrder,
    /// Its actions, first to last.
    pub queue: Vec<ActionId>,
}

/// What an iteration must come to: the checker counts forwards and backwards against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What the program is called: system, model and machine.
    pub name: String,
    /// Layers of the model.
    pub layers: usize,
    /// Microbatches of the iteration.
    pub microbatches: u64,
    /// Whether every forward must be followed by a backward.
    pub training: bool,
    /// Layers at the front of the model at or below which nothing trains: in training they alone have no backward.
    pub without_backward: usize,
    /// Whether what the last layer finds in an iteration is what the first one reads in the next: the tokens that are generated,
    /// images from which noise is taken step by step.
    pub feeds_back: bool,
    /// Tokens (or images) of the iteration, if it has any.
    pub tokens: Option<u64>,
    /// Words that must stand wherever results are shown.
    pub notes: Vec<String>,
}

/// What a machine does in one iteration; checked and frozen.
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
    precedences: Vec<Precedence>,
    /// Where the precedences that leave each action start; one more entry than actions.
    leaving: Vec<u32>,
}

impl Program {
    /// What the iteration comes to.
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

    /// What flows share.
    pub const fn channels(&self) -> &IdVec<LinkId, Channel> {
        &self.channels
    }

    /// The stages.
    pub const fn stages(&self) -> &IdVec<StageId, Stage> {
        &self.stages
    }

    /// The data.
    pub const fn buffers(&self) -> &IdVec<BufferId, Buffer> {
        &self.buffers
    }

    /// The queues.
    pub const fn lanes(&self) -> &IdVec<LaneId, Lane> {
        &self.lanes
    }

    /// The actions.
    pub const fn actions(&self) -> &IdVec<ActionId, Action> {
        &self.actions
    }

    /// Who must wait for whom, from data and edges; the order within lanes comes on top. Sorted by the earlier action.
    pub fn precedences(&self) -> &[Precedence] {
        &self.precedences
    }

    /// The precedences that say who must wait for `action`, by their place among all.
    pub fn leaving(&self, action: ActionId) -> std::ops::Range<usize> {
        self.leaving[action.index()] as usize..self.leaving[action.index() + 1] as usize
    }

    /// Which of the actions of its lane that can start comes first: the lowest.
    pub(super) fn rank(&self, action: ActionId) -> usize {
        let action = &self.actions[action];
        match self.lanes[action.lane].order {
            LaneOrder::AsNeeded => action.subject.layers.map_or(0, |layers| layers.first().index()),
            LaneOrder::AsAdded | LaneOrder::AsReady => 0,
        }
    }

    /// How long `action` takes when nothing else moves: the longer of its work and its slowest flow.
    pub fn alone(&self, action: ActionId) -> SimTime {
        let action = &self.actions[action];
        action.flows.iter().map(|flow| self.flow_alone(flow)).fold(action.work, SimTime::max)
    }

    fn flow_alone(&self, flow: &Flow) -> SimTime {
        // A route may pass the same channel twice, such as that of a DRAM in which a copy starts and ends.
        let passes = |channel: &LinkId| flow.route.iter().filter(|other| *other == channel).count() as f64;
        let rate = |channel: &LinkId| self.channels[*channel].bandwidth.get() / passes(channel);
        let cap = flow.rate_cap.map_or(f64::INFINITY, |cap| cap.get());
        let rate = flow.route.iter().map(rate).fold(cap, f64::min);
        let moving = Seconds::new(flow.bytes.as_f64() / rate).unwrap_or(Seconds::ZERO);
        flow.latency + SimTime::from_seconds(moving)
    }

    /// A word for `action` in messages: kind, subject and lane.
    pub fn describe(&self, action: ActionId) -> String {
        let this = &self.actions[action];
        format!("{} {} on `{}`", this.kind, this.subject, self.lanes[this.lane].name)
    }
}
