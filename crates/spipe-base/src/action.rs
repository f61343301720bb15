//! The vocabulary that programs and traces share: what an action is, on what kind of lane it runs, what it is about, and
//! why a lane was idle.

use crate::{LayerRange, MicrobatchId, StageId};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What kind of thing an action does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ActionKind {
    /// A stage's forward on one microbatch.
    Forward,
    /// A stage's forward again, for the backward that follows.
    Recompute,
    /// A stage's whole backward: gradients of its input and of its weights.
    Backward,
    /// The part of the backward that yields the gradient of the input (`I`; Zero Bubble's `B`).
    BackwardInput,
    /// The part of the backward that yields the gradients of the weights (`W`).
    BackwardWeight,
    /// Bytes from one memory to another.
    Copy(Payload),
    /// Adds gradients to an accumulator outside a backward.
    Accumulate,
    /// The sum of the squares of a stage's gradients, its part of the norm of all of them.
    Norm,
    /// Updates parameters from their gradients.
    OptimizerStep,
    /// One participant's part in an exchange among several devices.
    Collective(Collective),
    /// Reads an outcome that guards other actions or that they wait for, such as "all gradients are finite", or their norm.
    Check,
    /// Undoes an optimizer step.
    Rollback,
    /// Takes no time; orders what is before it and what is after it.
    Barrier,
}

/// What a copy moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Payload {
    /// A stage's output to the next stage's device.
    Activation,
    /// A stage's input gradient to the previous stage's device.
    Gradient,
    /// A stage input kept for a recompute elsewhere.
    Checkpoint,
    /// Parameters to the device that computes with them.
    WeightsIn,
    /// Gradients of parameters to the memory of their optimizer.
    GradientsOut,
    /// Saved activations out of a device.
    Offload,
    /// Saved activations back into the device.
    Reload,
    /// Updated parameters back to where they live.
    WriteBack,
}

/// How several devices exchange data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collective {
    /// Everyone gets every part.
    AllGather,
    /// Everyone gets the sum of one part.
    ReduceScatter,
    /// Everyone gets the sum of everything.
    AllReduce,
}

/// What a lane is for.
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
    /// Workers that step parameters on a CPU.
    Optimizer,
    /// Reads from NVMe.
    NvmeIn,
    /// Writes to NVMe.
    NvmeOut,
}

/// Why a compute lane did nothing.
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
    /// There was no memory for what the next action writes.
    Memory,
    /// An optimizer step ended last.
    Optimizer,
    /// A global check ended last.
    Check,
    /// An ordering edge, not data, was met last.
    Order,
}

/// A word that names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is no {what} (known: {known})")]
pub struct UnknownWord {
    word: String,
    what: &'static str,
    known: String,
}

impl UnknownWord {
    /// That `word` names no `what`, with the words that do.
    pub fn new(word: &str, what: &'static str, known: &[&str]) -> Self {
        Self { word: word.into(), what, known: known.join(", ") }
    }
}

const KINDS: [(&str, ActionKind); 22] = [
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
    /// Every kind, in the order in which reports list them.
    pub fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|(_, kind)| *kind)
    }

    /// Its name in reports and files.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Whether the action is arithmetic of the model on a compute lane.
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
    /// Every cause, in the order in which reports list them.
    pub const ALL: [Self; 10] = [
        Self::WarmUp,
        Self::Drain,
        Self::Activation,
        Self::Gradient,
        Self::Weights,
        Self::Reload,
        Self::Memory,
        Self::Optimizer,
        Self::Check,
        Self::Order,
    ];

    /// Its name in reports and files.
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
    /// Its name, which is the second half of a lane's name (`gpu0.h2d`).
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

/// What an action is about, as far as that makes sense for it.
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
    /// A stage as a whole.
    pub fn stage(stage: StageId) -> Self {
        Self { stage: Some(stage), ..Self::default() }
    }

    /// One microbatch in a stage.
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
