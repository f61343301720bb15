//! The trace record.

use crate::Explanation;
use serde::{Deserialize, Serialize};
use spipe_base::{ActionKind, Bytes, Fold, IdleCause, LaneId, LaneRole, SimTime, Subject};

/// The origin of a trace.
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
    /// The version of the file format: 1.
    pub format_version: u32,
    /// A title: system, model and machine.
    pub name: String,
    /// Predicted or measured.
    pub origin: Origin,
    /// Notes that must be shown with the trace, such as "emulated accelerator".
    pub notes: Vec<String>,
    /// Whether the iteration finished.
    pub status: Status,
    /// The steady-state period: from the start of one iteration to the start of the next.
    #[serde(rename = "iteration-ns")]
    pub iteration: SimTime,
    /// The median duration of iterations without a profiler, if one slowed down that of the spans.
    #[serde(rename = "iteration-without-profiler-ns", default, skip_serializing_if = "Option::is_none")]
    pub iteration_without_profiler: Option<SimTime>,
    /// The durations of all iterations that ran, in order; the spans are those of one of them.
    #[serde(rename = "iterations-ns")]
    pub iterations: Vec<SimTime>,
    /// Tokens (or images) per iteration, if the figure is meaningful.
    pub tokens: Option<u64>,
    /// The devices and memories that stand for others of a mesh, which do the same at the same time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folds: Vec<Fold>,
    /// The lanes: queues of the machine.
    pub lanes: Vec<Lane>,
    /// The spans, one per action, sorted by lane and start.
    pub spans: Vec<Span>,
    /// The dependencies that determined when spans started.
    pub arrows: Vec<Arrow>,
    /// The idle time of compute lanes.
    pub idle: Vec<Idle>,
    /// The memories.
    pub memories: Vec<MemoryTrack>,
    /// Why the iteration takes as long as it does, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
}

impl Trace {
    /// The label of a device or memory in reports and pictures: its name or, where it stands for others, its team and
    /// the number of such teams.
    pub fn label_of(&self, name: &str) -> String {
        self.folds.iter().find(|fold| fold.name == name).map_or_else(|| name.to_owned(), Fold::label)
    }

    /// The label of the lane of this name.
    pub fn label_of_lane(&self, name: &str) -> String {
        let lane = self.lanes.iter().find(|lane| lane.name == name);
        lane.map_or_else(|| name.to_owned(), |lane| self.lane_label(lane))
    }

    /// The label of a lane: that of its device, and the rest of its name.
    pub fn lane_label(&self, lane: &Lane) -> String {
        match (self.folds.iter().find(|fold| fold.name == lane.device), lane.name.strip_prefix(&lane.device)) {
            (Some(fold), Some(rest)) => Fold { team: format!("{}{rest}", fold.team), ..fold.clone() }.label(),
            _ => lane.name.clone(),
        }
    }
}

/// Whether an iteration finished.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It finished.
    Ok,
    /// It stopped because memory ran out.
    OutOfMemory(Shortage),
}

/// A shortage of memory that no running action could resolve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Shortage {
    /// The memory.
    pub memory: String,
    /// The time.
    #[serde(rename = "at-ns")]
    pub at: SimTime,
    /// The bytes that the action needed.
    #[serde(rename = "needed-bytes")]
    pub needed: Bytes,
    /// The bytes that were free.
    #[serde(rename = "free-bytes")]
    pub free: Bytes,
    /// The action that could not start.
    pub action: String,
    /// The largest holders, in descending order.
    pub holders: Vec<Holder>,
}

/// A lane: an in-order queue of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Lane {
    /// Its name, such as `gpu0.compute`.
    pub name: String,
    /// Its device, such as `gpu0`.
    pub device: String,
    /// Its role.
    pub role: LaneRole,
}

/// The execution of one action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Span {
    /// Its lane.
    pub lane: LaneId,
    /// The kind of action.
    pub kind: ActionKind,
    /// The stage, microbatch and layers of the action.
    #[serde(default)]
    pub subject: Subject,
    /// The start.
    #[serde(rename = "start-ns")]
    pub start: SimTime,
    /// The end.
    #[serde(rename = "end-ns")]
    pub end: SimTime,
    /// The bytes moved, for transfers.
    #[serde(rename = "bytes", default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
    /// The last event that it waited for, if its lane was idle before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for: Option<IdleCause>,
}

impl Span {
    /// Returns its duration.
    pub fn duration(&self) -> SimTime {
        self.end - self.start
    }

    /// Returns the label of its bar in charts: PyTorch's notation (`2F0`) for arithmetic, otherwise
    /// the kind.
    pub fn label(&self) -> String {
        label(self.kind, &self.subject)
    }
}

/// The name of an action, as [`Span::label`] has it.
pub fn label(kind: ActionKind, subject: &Subject) -> String {
    let letter = match kind {
        ActionKind::Forward => "F",
        ActionKind::Recompute => "R",
        ActionKind::Backward => "B",
        ActionKind::BackwardInput => "I",
        ActionKind::BackwardWeight => "W",
        kind => kind.name(),
    };
    let number = |id: Option<usize>| id.map(|id| id.to_string()).unwrap_or_default();
    let stage = number(subject.stage.map(Into::into));
    let microbatch = number(subject.microbatch.map(Into::into));
    if kind.is_compute() {
        format!("{stage}{letter}{microbatch}")
    } else {
        format!("{letter} {subject}").trim_end().to_owned()
    }
}

/// A dependency: the end of one span allowed another to start. Both are indices into `spans`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Arrow {
    /// The span that ended.
    pub from: u32,
    /// The span that then started.
    pub to: u32,
}

/// An interval in which a compute lane was idle, with its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Idle {
    /// The lane.
    pub lane: LaneId,
    /// The start.
    #[serde(rename = "start-ns")]
    pub start: SimTime,
    /// The end.
    #[serde(rename = "end-ns")]
    pub end: SimTime,
    /// The cause.
    pub cause: IdleCause,
}

/// The use of one memory over the iteration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MemoryTrack {
    /// Its name, such as `gpu0` or `dram0`.
    pub name: String,
    /// Its capacity, if limited.
    #[serde(rename = "capacity-bytes")]
    pub capacity: Option<Bytes>,
    /// The largest number of bytes held at one time.
    #[serde(rename = "peak-bytes")]
    pub peak: Bytes,
    /// The largest holders at the peak, in descending order.
    pub holders: Vec<Holder>,
    /// The bytes held from each point in time on, in ascending order of time.
    pub samples: Vec<Sample>,
}

/// A holder of a part of a memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Holder {
    /// A description of the holder: "parameters of s1", "saved activations of s0 (4 microbatches)".
    pub what: String,
    /// The bytes held.
    pub bytes: Bytes,
}

/// The bytes held in a memory from one point in time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sample {
    /// The time.
    #[serde(rename = "at-ns")]
    pub at: SimTime,
    /// The bytes held.
    pub bytes: Bytes,
}
