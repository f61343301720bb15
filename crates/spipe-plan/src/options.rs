//! The options of a placement's answers, read and set by name.

use crate::{GradientsLeave, Knob, OrderKind, Placement, Sharding, Update};

impl Knob {
    /// The value in `placement`; none if its answers have no such option, or if the default holds.
    pub const fn of(self, placement: &Placement) -> Option<u64> {
        if let Sharding::Parameters { resident, group } = placement.mesh.sharding {
            match self {
                Self::Shards => return Some(placement.mesh.replicas.len() as u64),
                Self::ShardGroup => return group,
                Self::Resident => return resident,
                _ => {}
            }
        }
        match (self, &placement.order, &placement.update) {
            (Self::HeadStart, OrderKind::OneForwardOneBackward { head_start }, _) => Some(*head_start),
            (Self::Group, OrderKind::Grouped { group, .. } | OrderKind::Interleaved { group }, _) => *group,
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
        let on = matches!(value, Some(1..));
        let is_pipeline = placement.is_pipeline();
        match (self, &mut placement.mesh.sharding) {
            (Self::Resident, Sharding::Parameters { resident, .. }) => *resident = value,
            (Self::ShardGroup, Sharding::Parameters { group, .. }) => *group = value,
            _ => return self.set_in_time(placement, value, (on, is_pipeline)),
        }
        true
    }

    /// Sets an option of order, update or offload.
    const fn set_in_time(self, placement: &mut Placement, value: Option<u64>, (on, is_pipeline): (bool, bool)) -> bool {
        let number = match value {
            Some(number) => number,
            None => 0,
        };
        match (self, &mut placement.order, &mut placement.update) {
            (Self::HeadStart, OrderKind::OneForwardOneBackward { head_start }, _) => *head_start = number,
            (Self::Group, OrderKind::Grouped { group, .. } | OrderKind::Interleaved { group }, _) => *group = value,
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

impl Placement {
    /// The same placement with this option at `value`; the same if its answers have no such option.
    pub fn with(self, knob: Knob, value: u64) -> Self {
        self.with_option(knob, Some(value))
    }

    /// The same placement with this option at `value`, or at its default; the same if its answers have no such option.
    pub fn with_option(mut self, knob: Knob, value: Option<u64>) -> Self {
        knob.set(&mut self, value);
        self
    }

    /// The same placement with these options, each at a value or at its default.
    pub fn with_options<V: Copy + Into<Option<u64>>>(self, options: &[(Knob, V)]) -> Self {
        options.iter().fold(self, |placement, (knob, value)| placement.with_option(*knob, (*value).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::System;

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
