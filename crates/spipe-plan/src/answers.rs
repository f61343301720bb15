//! The answers of a placement that hold for all its stages: the order of passes, the time of optimizer steps, the
//! copies of gradients and of offloaded activations.
//!
//! Lowering, simulation, execution and export read these, never the name of a system. Each option belongs to the
//! answer that has it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The order in which devices compute, with the options of that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum OrderKind {
    /// All forwards, then all backwards.
    Gpipe,
    /// One forward, one backward.
    #[serde(rename = "1f1b")]
    OneForwardOneBackward {
        /// Additional warm-up forwards of the last CPU stage and of the stages before it.
        #[serde(default, skip_serializing_if = "is_zero")]
        head_start: u64,
    },
    /// 1F1B with several stages per device, assigned round-robin.
    #[serde(rename = "interleaved-1f1b")]
    Interleaved {
        /// The number of microbatches that pass through one chunk before the next, at least that of the devices, which is
        /// the default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<u64>,
    },
    /// Split backwards at the memory of 1F1B.
    ZbH1,
    /// Split backwards at about twice the memory of 1F1B.
    ZbH2,
    /// The automatic schedule of Zero Bubble.
    Automatic {
        /// The most activations that a device holds by default, as a multiple of the number of devices.
        turns: u64,
        /// The most activations that a device holds, in microbatches of one stage, if another number is given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_limit: Option<u64>,
    },
    /// Two stages per device in the shape of a V.
    Vee {
        /// The memory of its building block.
        memory: Vee,
    },
    /// The generalised interleaved schedule.
    Grouped {
        /// The number of microbatches that pass through one chunk before the next: by default that of the devices, or
        /// half of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<u64>,
        /// Whether the default is half the number of devices.
        #[serde(default, skip_serializing_if = "is_false")]
        half: bool,
    },
    /// The uniform building block of the generalised interleaved schedule.
    Uniform,
    /// A device runs all microbatches of a stage before its next stage, whose parameters arrive from the host.
    Rounds(Exchange),
}

/// The building block of a V-shaped order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Vee {
    /// Without bubbles, at the memory of 1F1B.
    Full,
    /// At about half the memory of 1F1B.
    Half,
    /// At about a third of the memory of 1F1B.
    Least,
}

/// The exchange of streamed layers on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Exchange {
    /// k, the resident layers of a GPU; 2 by default, 1 without overlap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident: Option<u64>,
    /// k′, the layers exchanged at a time; 1 by default, all k without overlap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<u64>,
    /// Whether nothing arrives while layers compute: load k layers, run them, exchange all of them.
    #[serde(skip_serializing_if = "is_false")]
    pub without_overlap: bool,
    /// Whether parameters are copied back to the host although the host has them unchanged.
    #[serde(skip_serializing_if = "is_false")]
    pub write_back: bool,
    /// Whether the layers of an exchange are copied one by one instead of together.
    #[serde(skip_serializing_if = "is_false")]
    pub sequential: bool,
    /// Whether checkpoints are sent only in the step before their use.
    #[serde(skip_serializing_if = "is_false")]
    pub late_checkpoints: bool,
}

/// The time of optimizer steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum Update {
    /// A stage is updated as soon as its gradients are complete. The next iteration waits for the steps of the
    /// parameters that it uses.
    AsReady {
        /// Whether a socket gives priority to the steps that the next iteration needs first; otherwise it runs them in
        /// order of arrival.
        #[serde(default, skip_serializing_if = "is_false")]
        urgent: bool,
    },
    /// All steps wait for the end of the backward, and the next iteration for all steps, as with DeepSpeed's and
    /// PyTorch's `step()`.
    Phase {
        /// The same as in [`Update::AsReady`].
        #[serde(default, skip_serializing_if = "is_false")]
        urgent: bool,
    },
    /// Steps follow the backward, one after the other.
    AfterBackward,
    /// Steps follow the backward in the order in which the next iteration needs their parameters.
    NeededFirst,
    /// Steps run during the backward, before the global check.
    DuringBackward {
        /// Whether a step is undone by arithmetic from its gradients, which is not exact to the last bit, instead of
        /// from an undo log, which is.
        #[serde(default, skip_serializing_if = "is_false")]
        arithmetic_undo: bool,
    },
    /// Steps run during the next iteration, whose gradients they do not use.
    Delayed,
}

/// The time at which gradients are copied to the host that runs the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GradientsLeave {
    /// Once, when the sum over all microbatches is complete.
    #[default]
    Complete,
    /// After each microbatch: the host adds them up, so that no GPU holds a sum.
    EachMicrobatch,
}

/// The copies of offloaded activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Offload {
    /// Slots of a device per direction, in microbatches: at least 2, one in computation and one being copied; 2 by
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    /// Whether GPUs behind one switch take turns; otherwise they share the switch.
    #[serde(skip_serializing_if = "is_false")]
    pub in_turn: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// How stages are assigned to devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dealing {
    /// One run of consecutive stages per device.
    Single,
    /// Stage s on device s mod p.
    RoundRobin,
    /// Two stages per device, down the devices and up again: stages s and 2p − 1 − s share a
    /// device.
    Vee,
}

impl OrderKind {
    /// 1F1B without head start.
    pub const PLAIN_1F1B: Self = Self::OneForwardOneBackward { head_start: 0 };

    /// Its name in plan files.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Gpipe => "gpipe",
            Self::OneForwardOneBackward { .. } => "1f1b",
            Self::Interleaved { .. } => "interleaved-1f1b",
            Self::ZbH1 => "zb-h1",
            Self::ZbH2 => "zb-h2",
            Self::Automatic { .. } => "automatic",
            Self::Vee { .. } => "vee",
            Self::Grouped { .. } => "grouped",
            Self::Uniform => "uniform",
            Self::Rounds(_) => "rounds",
        }
    }

    /// Whether parameters stay on the device of their stage, and microbatches flow through the stages.
    pub const fn is_pipeline(&self) -> bool {
        !matches!(self, Self::Rounds(_))
    }

    /// How the order assigns stages to devices.
    pub const fn dealing(&self) -> Dealing {
        match self {
            Self::Interleaved { .. } | Self::Grouped { .. } | Self::Uniform => Dealing::RoundRobin,
            Self::Vee { .. } => Dealing::Vee,
            _ => Dealing::Single,
        }
    }

    /// Whether the order splits the backward into gradients of inputs and gradients of weights.
    pub const fn splits_backward(&self) -> bool {
        matches!(
            self,
            Self::ZbH1 | Self::ZbH2 | Self::Automatic { .. } | Self::Vee { .. } | Self::Grouped { .. } | Self::Uniform
        )
    }

    /// Whether the order also runs forwards alone.
    pub const fn infers(&self) -> bool {
        matches!(self, Self::Gpipe | Self::OneForwardOneBackward { .. } | Self::Rounds(_))
    }
}

impl Update {
    /// Its name in plan files.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AsReady { .. } => "as-ready",
            Self::Phase { .. } => "phase",
            Self::AfterBackward => "after-backward",
            Self::NeededFirst => "needed-first",
            Self::DuringBackward { .. } => "during-backward",
            Self::Delayed => "delayed",
        }
    }

    /// Whether sockets give priority to the steps that the next iteration needs first.
    pub const fn is_urgent(&self) -> bool {
        matches!(self, Self::AsReady { urgent: true } | Self::Phase { urgent: true })
    }

    /// Whether all steps are a phase of their own.
    pub const fn is_phase(&self) -> bool {
        matches!(self, Self::Phase { .. })
    }

    /// Whether steps run before the global check.
    pub const fn is_early(&self) -> bool {
        matches!(self, Self::DuringBackward { .. })
    }
}

impl fmt::Display for OrderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::System;

    #[test]
    fn names_are_those_of_files() {
        for system in System::ALL {
            let preset = system.preset();
            let kind = |answer: serde_json::Value| answer["kind"].clone();
            assert_eq!(kind(serde_json::to_value(preset.order).unwrap()), preset.order.name());
            assert_eq!(kind(serde_json::to_value(preset.update).unwrap()), preset.update.name());
            let text = serde_json::to_string(&preset.order).unwrap();
            assert_eq!(serde_json::from_str::<OrderKind>(&text).unwrap(), preset.order, "{text}");
        }
    }
}
