//! Options of answers by name and as numbers, as planners, pins and tests set them.

use crate::{GradientsLeave, OrderKind, Placement, Sharding, System, Update};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An option of an answer as a number; a switch is 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// Of 1F1B: additional warm-up forwards of a CPU stage and of the stages before it.
    HeadStart,
    /// Of the generalised interleaved schedule: microbatches per group.
    Group,
    /// Of the automatic schedule: the most activations, in microbatches of one stage, that a device may hold.
    MemoryLimit,
    /// Of the offload of activations: slots of a device per direction, in microbatches.
    OffloadSlots,
    /// Of the update: whether sockets give priority to the steps that the next iteration needs first.
    UrgentSteps,
    /// Whether gradients are copied to the host after each microbatch.
    GradientsLeave,
    /// Of the update: whether all steps wait for the end of the backward.
    SynchronousOptimizer,
    /// Of the mesh: the number of GPUs over which everything is sharded.
    Shards,
    /// k, the resident layers of a GPU, or the gathered stages of a replica.
    Resident,
    /// Of an exchange: k′, the layers exchanged at a time.
    Swap,
    /// Of an exchange: whether unchanged parameters are copied back.
    WriteBack,
    /// Of an exchange: whether its layers are copied one by one.
    Sequential,
    /// Of an exchange: whether checkpoints are sent only in the step before their use.
    SynchronousCheckpoints,
    /// Of the update: whether speculative steps are undone by arithmetic.
    ArithmeticUndo,
}

impl Knob {
    /// The largest value. It exceeds the layers of any model and the microbatches of any batch, and
    /// a product with bytes does not overflow.
    pub const LARGEST: u64 = 1 << 20;

    /// Every option.
    pub const ALL: [Self; 14] = [
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
        Self::WriteBack,
        Self::Sequential,
        Self::SynchronousCheckpoints,
        Self::ArithmeticUndo,
    ];

    /// The options that planners turn and that pins may fix; the others exist for comparison.
    pub const TURNED: [Self; 10] = [
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

    /// Its name in pins.
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
            Self::WriteBack => "write-back",
            Self::Sequential => "sequential",
            Self::SynchronousCheckpoints => "synchronous-checkpoints",
            Self::ArithmeticUndo => "arithmetic-undo",
        }
    }

    /// What a system without the option has none of.
    pub(crate) const fn noun(self) -> &'static str {
        match self {
            Self::HeadStart => "head start",
            Self::Group => "group size",
            Self::MemoryLimit => "memory limit",
            Self::OffloadSlots => "slots for offloaded activations",
            Self::UrgentSteps => "priorities of optimizer steps",
            Self::GradientsLeave => "gradients that leave after each microbatch",
            Self::SynchronousOptimizer => "synchronous optimizer",
            Self::Shards => "shards",
            Self::Resident => "resident layers",
            Self::Swap => "exchanged layers",
            Self::WriteBack | Self::Sequential => "options of layer exchanges",
            Self::SynchronousCheckpoints => "synchronous checkpoints",
            Self::ArithmeticUndo => "arithmetic undo",
        }
    }

    /// Whether the option is a switch.
    pub const fn is_switch(self) -> bool {
        matches!(
            self,
            Self::UrgentSteps
                | Self::GradientsLeave
                | Self::SynchronousOptimizer
                | Self::WriteBack
                | Self::Sequential
                | Self::SynchronousCheckpoints
                | Self::ArithmeticUndo
        )
    }

    /// Whether `system` leaves the option to the plan.
    pub fn is_of(self, system: System) -> bool {
        system.preset().free.contains(&self)
    }

    /// The value in `placement`; none if its answers have no such option, or if the default holds.
    pub const fn of(self, placement: &Placement) -> Option<u64> {
        if let Sharding::Parameters { resident } = placement.mesh.sharding {
            match self {
                Self::Shards => return Some(placement.mesh.replicas.len() as u64),
                Self::Resident => return resident,
                _ => {}
            }
        }
        match (self, &placement.order, &placement.update) {
            (Self::HeadStart, OrderKind::OneForwardOneBackward { head_start }, _) => Some(*head_start),
            (Self::Group, OrderKind::Grouped { group, .. }, _) => *group,
            (Self::MemoryLimit, OrderKind::Automatic { memory_limit, .. }, _) => *memory_limit,
            (Self::OffloadSlots, ..) => placement.offload.slots,
            (Self::UrgentSteps, _, Update::AsReady { urgent } | Update::Phase { urgent }) => Some(*urgent as u64),
            (Self::GradientsLeave, ..) => Some(placement.gradients_leave as u64),
            (Self::SynchronousOptimizer, _, Update::Phase { .. } | Update::AfterBackward) => Some(1),
            (Self::SynchronousOptimizer, _, Update::AsReady { .. } | Update::DuringBackward { .. }) => Some(0),
            (Self::ArithmeticUndo, _, Update::DuringBackward { arithmetic_undo }) => Some(*arithmetic_undo as u64),
            (_, OrderKind::Rounds(exchange), _) => match self {
                Self::Resident => exchange.resident,
                Self::Swap => exchange.swap,
                Self::WriteBack => Some(exchange.write_back as u64),
                Self::Sequential => Some(exchange.sequential as u64),
                Self::SynchronousCheckpoints => Some(exchange.late_checkpoints as u64),
                _ => None,
            },
            _ => None,
        }
    }

    /// Sets the option in `placement`, to its default with none; returns whether its answers have it. The number of
    /// shards is that of the mesh's replicas, which [`Placement::over`] sets.
    pub(crate) const fn set(self, placement: &mut Placement, value: Option<u64>) -> bool {
        let number = match value {
            Some(number) => number,
            None => 0,
        };
        let on = number > 0;
        let is_pipeline = placement.is_pipeline();
        if let (Self::Resident, Sharding::Parameters { resident }) = (self, &mut placement.mesh.sharding) {
            *resident = value;
            return true;
        }
        match (self, &mut placement.order, &mut placement.update) {
            (Self::HeadStart, OrderKind::OneForwardOneBackward { head_start }, _) => *head_start = number,
            (Self::Group, OrderKind::Grouped { group, .. }, _) => *group = value,
            (Self::MemoryLimit, OrderKind::Automatic { memory_limit, .. }, _) => *memory_limit = value,
            (Self::OffloadSlots, ..) if is_pipeline => placement.offload.slots = value,
            (Self::UrgentSteps, _, Update::AsReady { urgent } | Update::Phase { urgent }) => *urgent = on,
            (Self::GradientsLeave, ..) if is_pipeline => {
                placement.gradients_leave = if on { GradientsLeave::EachMicrobatch } else { GradientsLeave::Complete };
            }
            (Self::SynchronousOptimizer, _, update) => {
                return synchronous(update, on, &placement.system.preset().update);
            }
            (Self::ArithmeticUndo, _, Update::DuringBackward { arithmetic_undo }) => *arithmetic_undo = on,
            (_, OrderKind::Rounds(exchange), _) => match self {
                Self::Resident => exchange.resident = value,
                Self::Swap => exchange.swap = value,
                Self::WriteBack => exchange.write_back = on,
                Self::Sequential => exchange.sequential = on,
                Self::SynchronousCheckpoints => exchange.late_checkpoints = on,
                _ => return false,
            },
            _ => return false,
        }
        true
    }
}

/// Makes steps wait for the end of the backward, or run when the preset has them; returns whether both are possible.
const fn synchronous(update: &mut Update, on: bool, preset: &Update) -> bool {
    *update = match (*update, on) {
        (Update::AsReady { urgent }, true) => Update::Phase { urgent },
        (Update::Phase { urgent }, false) => Update::AsReady { urgent },
        (Update::DuringBackward { .. }, true) => Update::AfterBackward,
        (Update::AfterBackward, false) => *preset,
        (Update::NeededFirst | Update::Delayed, _) => return false,
        (same, _) => same,
    };
    true
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
    fn set_values_are_read_back() {
        for knob in Knob::ALL.into_iter().filter(|knob| *knob != Knob::Shards) {
            let value = if knob.is_switch() { 1 } else { 3 };
            let having: Vec<System> = System::ALL.into_iter().filter(|system| knob.is_of(*system)).collect();
            assert!(!having.is_empty(), "{knob}");
            for system in having {
                let plain = Placement::new(system, []);
                let changed = plain.clone().with(knob, value);
                assert_eq!(knob.of(&changed), Some(value), "{knob} of {system}");
                let others = Knob::ALL.into_iter().filter(|other| *other != knob && *other != Knob::ArithmeticUndo);
                others.for_each(|other| assert_eq!(other.of(&changed), other.of(&plain), "{knob} changes {other}"));
                let mut back = changed;
                assert!(knob.set(&mut back, knob.of(&plain)));
                assert_eq!(back, plain, "{knob} of {system}");
            }
            assert_eq!(serde_json::to_value(knob).unwrap(), knob.name());
        }
    }
}
