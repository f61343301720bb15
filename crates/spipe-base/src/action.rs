//! The vocabulary shared by programs and traces: kinds of actions, roles of lanes, subjects of
//! actions, and causes of idle time.

use crate::{LayerRange, MicrobatchId, StageId};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The kind of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ActionKind {
    /// The forward of a stage on one microbatch.
    Forward,
    /// The forward of a stage repeated for the backward that follows.
    Recompute,
    /// The whole backward of a stage: gradients of its input and of its weights.
    Backward,
    /// The part of the backward that yields the gradient of the input (`I`; Zero Bubble's `B`).
    BackwardInput,
    /// The part of the backward that yields the gradients of the weights (`W`).
    BackwardWeight,
    /// A copy from one memory to another.
    Copy(Payload),
    /// Adds gradients to an accumulator, outside a backward.
    Accumulate,
    /// Sums the squares of a stage's gradients: its share of the global gradient norm.
    Norm,
    /// Updates parameters from their gradients.
    OptimizerStep,
    /// One participant's share of an exchange among several devices.
    Collective(Collective),
    /// Reads a global result on which other actions depend, such as "all gradients are finite" or
    /// the gradient norm.
    Check,
    /// Undoes an optimizer step.
    Rollback,
    /// Takes no time; orders the actions before it and after it.
    Barrier,
}

/// The data that a copy moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Payload {
    /// The output of a stage, to the next stage's device.
    Activation,
    /// The input gradient of a stage, to the previous stage's device.
    Gradient,
    /// The input of a stage, kept for a recompute on another device.
    Checkpoint,
    /// Parameters, to the device that computes with them.
    WeightsIn,
    /// Gradients of parameters, to the memory of their optimizer.
    GradientsOut,
    /// Saved activations, out of a device.
    Offload,
    /// Saved activations, back into the device.
    Reload,
    /// Updated parameters, back to their home memory.
    WriteBack,
    /// Optimizer state, from the drive that keeps it to the memory of its step.
    StateIn,
    /// Optimizer state, back to that drive.
    StateOut,
}

/// The pattern of an exchange among several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collective {
    /// Every participant receives every part.
    AllGather,
    /// Every participant receives the sum of one part.
    ReduceScatter,
    /// Every participant receives the sum of all parts.
    AllReduce,
}

/// The role of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LaneRole {
    /// Arithmetic of one device.
    Compute,
    /// Copies from the host to the device.
    H2d,
    /// Copies from the device to the host.
    D2h,
    /// A named channel of a link between two devices.
    Channel,
    /// Workers that run the optimizer on a CPU.
    Optimizer,
    /// Reads from a drive.
    NvmeIn,
    /// Writes to a drive.
    NvmeOut,
}

/// The reason why a compute lane was idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IdleCause {
    /// Before the lane's first action of the iteration.
    WarmUp,
    /// After its last action of the iteration.
    Drain,
    /// The next action's input activation came last.
    Activation,
    /// The next action's incoming gradient came last.
    Gradient,
    /// The next action's parameters came last.
    Weights,
    /// Activations that had been offloaded came last.
    Reload,
    /// There was no memory for the next action's outputs.
    Memory,
    /// An optimizer step ended last.
    Optimizer,
    /// A global check ended last.
    Check,
    /// A collective of the devices that share parameters ended last.
    Collective,
    /// An ordering edge without data was met last.
    Order,
}

/// A word that is not in the vocabulary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{word}` (known: {known})")]
pub struct UnknownWord {
    word: String,
    what: &'static str,
    known: String,
}

impl UnknownWord {
    /// Creates the error for `word`, which is none of the words `known` for a `what`.
    pub fn new(word: &str, what: &'static str, known: &[&str]) -> Self {
        Self { word: word.into(), what, known: known.join(", ") }
    }
}

const KINDS: [(&str, ActionKind); 24] = [
    ("forward", ActionKind::Forward),
    ("recompute", ActionKind::Recompute),
    ("backward", ActionKind::Backward),
    ("backward-input", ActionKind::BackwardInput),
    ("backward-weight", ActionKind::BackwardWeight),
    ("copy-activation", ActionKind::Copy(Payload::Activation)),
    ("copy-gradient", ActionKind::Copy(Payload::Gradient)),
    ("copy-checkpoint", ActionKind::Copy(Payload::Checkpoint)),
    ("weights-in", ActionKind::Copy(Payload::WeightsIn)),
    ("gradients-out", ActionKind::Copy(Payload::GradientsOut)),
    ("offload", ActionKind::Copy(Payload::Offload)),
    ("reload", ActionKind::Copy(Payload::Reload)),
    ("write-back", ActionKind::Copy(Payload::WriteBack)),
    ("state-in", ActionKind::Copy(Payload::StateIn)),
    ("state-out", ActionKind::Copy(Payload::StateOut)),
    ("accumulate", ActionKind::Accumulate),
    ("norm", ActionKind::Norm),
    ("optimizer-step", ActionKind::OptimizerStep),
    ("all-gather", ActionKind::Collective(Collective::AllGather)),
    ("reduce-scatter", ActionKind::Collective(Collective::ReduceScatter)),
    ("all-reduce", ActionKind::Collective(Collective::AllReduce)),
    ("check", ActionKind::Check),
    ("rollback", ActionKind::Rollback),
    ("barrier", ActionKind::Barrier),
];

impl ActionKind {
    /// Returns every kind, in the order of reports.
    pub fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|(_, kind)| *kind)
    }

    /// Returns the name used in reports and files.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Whether the action computes a part of the model on a compute lane.
    pub const fn is_compute(self) -> bool {
        matches!(self, Self::Forward | Self::Recompute | Self::Backward | Self::BackwardInput | Self::BackwardWeight)
    }

    /// Whether the action moves bytes between memories.
    pub const fn is_transfer(self) -> bool {
        matches!(self, Self::Copy(_) | Self::Collective(_))
    }
}

impl fmt::Display for ActionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ActionKind {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        KINDS
            .iter()
            .find(|(name, _)| *name == word)
            .map(|(_, kind)| *kind)
            .ok_or_else(|| UnknownWord::new(word, "kind of action", &KINDS.map(|(name, _)| name)))
    }
}

impl TryFrom<String> for ActionKind {
    type Error = UnknownWord;

    fn try_from(word: String) -> Result<Self, Self::Error> {
        word.parse()
    }
}

impl From<ActionKind> for String {
    fn from(kind: ActionKind) -> String {
        kind.name().into()
    }
}

impl schemars::JsonSchema for ActionKind {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ActionKind".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "enum": KINDS.map(|(name, _)| name) })
    }
}

impl IdleCause {
    /// Every cause, in the order of reports.
    pub const ALL: [Self; 11] = [
        Self::WarmUp,
        Self::Drain,
        Self::Activation,
        Self::Gradient,
        Self::Weights,
        Self::Reload,
        Self::Memory,
        Self::Optimizer,
        Self::Check,
        Self::Collective,
        Self::Order,
    ];

    /// Returns the name used in reports and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WarmUp => "warm-up",
            Self::Drain => "drain",
            Self::Activation => "activation",
            Self::Gradient => "gradient",
            Self::Weights => "weights",
            Self::Reload => "reload",
            Self::Memory => "memory",
            Self::Optimizer => "optimizer",
            Self::Check => "check",
            Self::Collective => "collective",
            Self::Order => "order",
        }
    }
}

impl fmt::Display for IdleCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl LaneRole {
    /// Returns the role's name: the second half of a lane's name (`gpu0.h2d`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::H2d => "h2d",
            Self::D2h => "d2h",
            Self::Channel => "channel",
            Self::Optimizer => "optimizer",
            Self::NvmeIn => "nvme-in",
            Self::NvmeOut => "nvme-out",
        }
    }
}

/// The stage, microbatch and layers that an action works on, where it has them.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Subject {
    /// The stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<StageId>,
    /// The microbatch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microbatch: Option<MicrobatchId>,
    /// The layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayerRange>,
}

impl Subject {
    /// Creates the subject of a whole stage.
    pub fn stage(stage: StageId) -> Self {
        Self { stage: Some(stage), ..Self::default() }
    }

    /// Creates the subject of one microbatch in a stage.
    pub fn work(stage: StageId, microbatch: MicrobatchId) -> Self {
        Self { stage: Some(stage), microbatch: Some(microbatch), layers: None }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.stage.map(|stage| stage.to_string()),
            self.microbatch.map(|microbatch| microbatch.to_string()),
            self.layers.map(|layers| format!("layers {layers}")),
        ];
        f.pad(&parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for kind in ActionKind::all() {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("copy".parse::<ActionKind>().is_err());
    }
}
