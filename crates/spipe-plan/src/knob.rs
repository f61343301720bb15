//! Numeric knobs by name, as planners and pins use them.

use crate::{Family, Knobs, System};
use std::fmt;

/// A knob as a number; a switch is 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Knob {
    /// Additional warm-up forwards of a CPU stage and of the stages before it.
    HeadStart,
    /// Microbatches per group.
    Group,
    /// The most activations, in microbatches of one stage, that a device may hold.
    MemoryLimit,
    /// Offload slots of a device per direction, in microbatches.
    OffloadSlots,
    /// Whether sockets give priority to the optimizer steps that the next iteration needs first.
    UrgentSteps,
    /// Whether gradients are copied to the host after each microbatch.
    GradientsLeave,
    /// Whether all optimizer steps wait for the end of the backward.
    SynchronousOptimizer,
    /// The number of GPUs over which everything is sharded.
    Shards,
    /// k, the resident layers of a GPU, or its gathered stages.
    Resident,
    /// k′, the layers exchanged at a time.
    Swap,
}

impl Knob {
    /// The largest value. It exceeds the layers of any model and the microbatches of any batch, and
    /// a product with bytes does not overflow.
    pub const LARGEST: u64 = 1 << 20;

    /// Every knob.
    pub const ALL: [Self; 10] = [
        Self::HeadStart,
        Self::Group,
        Self::MemoryLimit,
        Self::OffloadSlots,
        Self::UrgentSteps,
        Self::GradientsLeave,
        Self::SynchronousOptimizer,
        Self::Shards,
        Self::Resident,
        Self::Swap,
    ];

    /// Its name in plan files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HeadStart => "head-start",
            Self::Group => "group",
            Self::MemoryLimit => "memory-limit",
            Self::OffloadSlots => "offload-slots",
            Self::UrgentSteps => "urgent-steps",
            Self::GradientsLeave => "gradients-leave",
            Self::SynchronousOptimizer => "synchronous-optimizer",
            Self::Shards => "shards",
            Self::Resident => "resident",
            Self::Swap => "swap",
        }
    }

    /// Whether the knob is a switch.
    pub const fn is_switch(self) -> bool {
        matches!(self, Self::UrgentSteps | Self::GradientsLeave | Self::SynchronousOptimizer)
    }

    /// Whether `system` has the knob.
    pub fn is_of(self, system: System) -> bool {
        match self {
            Self::HeadStart => system == System::Hybrid,
            Self::Group => matches!(system, System::Gis | System::GisH),
            Self::MemoryLimit => matches!(system, System::Zb1p | System::Zb2p),
            Self::OffloadSlots => system.family() == Family::Pipeline,
            Self::UrgentSteps => system.family() != Family::Streamed && !system.is_stale(),
            Self::GradientsLeave => system.steps_on_host(),
            Self::SynchronousOptimizer => {
                matches!(system, System::Spipe | System::ZeroOffload) || system.family() == Family::Sharded
            }
            Self::Shards => system.family() == Family::Sharded,
            Self::Resident => Self::Swap.is_of(system) || system.family() == Family::Sharded,
            Self::Swap => matches!(system, System::Superpipeline | System::NaiveSwap),
        }
    }

    /// The value in `knobs`, if one is given. A head start always has one, 0 by default.
    pub const fn of(self, knobs: &Knobs) -> Option<u64> {
        match self {
            Self::HeadStart => Some(knobs.head_start),
            Self::Group => knobs.group,
            Self::MemoryLimit => knobs.memory_limit,
            Self::OffloadSlots => knobs.offload_slots,
            Self::UrgentSteps => Some(knobs.urgent_steps as u64),
            Self::GradientsLeave => Some(knobs.gradients_leave as u64),
            Self::SynchronousOptimizer => Some(knobs.synchronous_optimizer as u64),
            Self::Shards => knobs.shards,
            Self::Resident => knobs.resident,
            Self::Swap => knobs.swap,
        }
    }

    /// The same knobs with this one at `value`.
    pub const fn set(self, knobs: Knobs, value: u64) -> Knobs {
        match self {
            Self::HeadStart => Knobs { head_start: value, ..knobs },
            Self::Group => Knobs { group: Some(value), ..knobs },
            Self::MemoryLimit => Knobs { memory_limit: Some(value), ..knobs },
            Self::OffloadSlots => Knobs { offload_slots: Some(value), ..knobs },
            Self::UrgentSteps => Knobs { urgent_steps: value > 0, ..knobs },
            Self::GradientsLeave => Knobs { gradients_leave: value > 0, ..knobs },
            Self::SynchronousOptimizer => Knobs { synchronous_optimizer: value > 0, ..knobs },
            Self::Shards => Knobs { shards: Some(value), ..knobs },
            Self::Resident => Knobs { resident: Some(value), ..knobs },
            Self::Swap => Knobs { swap: Some(value), ..knobs },
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_values_are_read_back_and_written_under_their_names() {
        for knob in Knob::ALL {
            let value = if knob.is_switch() { 1 } else { 3 };
            let knobs = knob.set(Knobs::default(), value);
            assert_eq!(knob.of(&knobs), Some(value));
            let text = serde_json::to_value(knobs).unwrap_or_default();
            let written = &text[knob.name()];
            assert!(if knob.is_switch() { *written == true } else { *written == value }, "{text}");
            assert!(System::ALL.into_iter().any(|system| knob.is_of(system)));
        }
    }
}
