//! The record itself.

use serde::{Deserialize, Serialize};
use spipe_base::{ActionKind, Bytes, IdleCause, LaneId, LaneRole, SimTime, Subject};

/// Where a trace comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The simulator.
    Predicted,
    /// A run.
    Measured,
}

/// One iteration of a program on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Trace {
    /// The version of this format.
    pub format_version: u32,
    /// What ran: system, model and machine.
    pub name: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Words that must stand wherever the trace is shown, such as "emulated accelerator".
    pub notes: Vec<String>,
    /// Whether the iteration could be finished.
    pub status: Status,
    /// The steady period: from one iteration's start to the next one's.
    #[serde(rename = "iteration-ns")]
    pub iteration: SimTime,
    /// Every iteration that was run, in order; the spans are those of one of them.
    #[serde(rename = "iterations-ns")]
    pub iterations: Vec<SimTime>,
    /// Tokens (or images) that one iteration consumes, if that means anything.
    pub tokens: Option<u64>,
    /// The queues of the machine.
    pub lanes: Vec<Lane>,
    /// One per action, by lane and start.
    pub spans: Vec<Span>,
    /// Which span's end let which span start.
    pub arrows: Vec<Arrow>,
    /// The idle time of compute lanes.
    pub idle: Vec<Idle>,
    /// The memories.
    pub memories: Vec<MemoryTrack>,
}

/// Whether an iteration could be finished.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It could.
    Ok,
    /// It stopped for want of memory.
    OutOfMemory(Shortage),
}

/// A want of memory that nothing running could mend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Shortage {
    /// The memory.
    pub memory: String,
    /// When.
    #[serde(rename = "at-ns")]
    pub at: SimTime,
    /// What the action needed.
    #[serde(rename = "needed-bytes")]
    pub needed: Bytes,
    /// What was free.
    #[serde(rename = "free-bytes")]
    pub free: Bytes,
    /// The action that could not start.
    pub action: String,
    /// Who held the most, largest first.
    pub holders: Vec<Holder>,
}

/// A queue of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Lane {
    /// Its name, `gpu0.compute`.
    pub name: String,
    /// The device it belongs to, `gpu0`.
    pub device: String,
    /// What it is for.
    pub role: LaneRole,
}

/// One action as it happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Span {
    /// Its lane.
    pub lane: LaneId,
    /// What kind of thing it did.
    pub kind: ActionKind,
    /// What it was about.
    #[serde(default)]
    pub subject: Subject,
    /// When it started.
    #[serde(rename = "start-ns")]
    pub start: SimTime,
    /// When it ended.
    #[serde(rename = "end-ns")]
    pub end: SimTime,
    /// The bytes it moved, for transfers.
    #[serde(rename = "bytes", default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
    /// What came last among the things it waited for, if its lane was idle before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for: Option<IdleCause>,
}

impl Span {
    /// How long it took.
    pub fn duration(&self) -> SimTime {
        self.end - self.start
    }

    /// The short text that charts write into its bar: PyTorch's spelling (`2F0`) for arithmetic, the kind otherwise.
    pub fn label(&self) -> String {
        let letter = match self.kind {
            ActionKind::Forward => "F",
            ActionKind::Recompute => "R",
            ActionKind::Backward => "B",
            ActionKind::BackwardInput => "I",
            ActionKind::BackwardWeight => "W",
            kind => kind.name(),
        };
        let number = |id: Option<usize>| id.map(|id| id.to_string()).unwrap_or_default();
        let stage = number(self.subject.stage.map(Into::into));
        let microbatch = number(self.subject.microbatch.map(Into::into));
        if self.kind.is_compute() {
            format!("{stage}{letter}{microbatch}")
        } else {
            format!("{letter} {}", self.subject).trim_end().to_owned()
        }
    }
}

/// One span's end let another start; both by their index in `spans`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Arrow {
    /// The span that ended.
    pub from: u32,
    /// The span that could then start.
    pub to: u32,
}

/// A stretch in which a compute lane did nothing, for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Idle {
    /// The lane.
    pub lane: LaneId,
    /// From when.
    #[serde(rename = "start-ns")]
    pub start: SimTime,
    /// Until when.
    #[serde(rename = "end-ns")]
    pub end: SimTime,
    /// Why.
    pub cause: IdleCause,
}

/// One memory over the iteration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MemoryTrack {
    /// Its name, `gpu0`, `dram0`.
    pub name: String,
    /// What it can hold, if that is limited.
    #[serde(rename = "capacity-bytes")]
    pub capacity: Option<Bytes>,
    /// The most that was held at one time.
    #[serde(rename = "peak-bytes")]
    pub peak: Bytes,
    /// Who held the most at the peak, largest first.
    pub holders: Vec<Holder>,
    /// What was held from each point in time on, ascending.
    pub samples: Vec<Sample>,
}

/// A share of a memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Holder {
    /// What holds it: "parameters of s1", "saved activations of s0 (4 microbatches)".
    pub what: String,
    /// How much.
    pub bytes: Bytes,
}

/// What a memory holds from one point in time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sample {
    /// From when.
    #[serde(rename = "at-ns")]
    pub at: SimTime,
    /// How much.
    pub bytes: Bytes,
}
