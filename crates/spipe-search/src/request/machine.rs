//! A machine under the runtimes of its plans.

use spipe_hardware::Hardware;
use spipe_plan::System;
use std::sync::Arc;

/// A machine as the runtimes of its plans find it: the placements of each system are planned and simulated on the machine
/// under the runtime that executes the system. All parts have the same devices, links and capacities.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The machine under the runtime of all systems that have none of their own.
    hardware: Arc<Hardware>,
    /// The machine under each other runtime, with the systems that it executes.
    others: Vec<(Arc<Hardware>, Vec<System>)>,
}

impl Machine {
    /// The machine as most systems find it.
    pub const fn hardware(&self) -> &Arc<Hardware> {
        &self.hardware
    }

    /// The machine as `system` finds it.
    pub fn of(&self, system: System) -> &Arc<Hardware> {
        let own = self.others.iter().find(|(_, systems)| systems.contains(&system));
        own.map_or(&self.hardware, |(hardware, _)| hardware)
    }

    /// The machine under each runtime that executes some of `systems`, with these.
    pub fn among(&self, systems: &[System]) -> Vec<(Arc<Hardware>, Vec<System>)> {
        let all = std::iter::once(&self.hardware).chain(self.others.iter().map(|(hardware, _)| hardware));
        let with = |hardware: &Arc<Hardware>| {
            let own = systems.iter().copied().filter(|system| Arc::ptr_eq(self.of(*system), hardware));
            (Arc::clone(hardware), own.collect::<Vec<_>>())
        };
        all.map(with).filter(|(_, own)| !own.is_empty()).collect()
    }

    /// The machine with the same change under each runtime.
    ///
    /// # Errors
    /// The first error of the change.
    pub fn changed<E>(&self, change: impl Fn(&Hardware) -> Result<Hardware, E>) -> Result<Self, E> {
        let other =
            |(hardware, systems): &(Arc<Hardware>, Vec<System>)| Ok((change(hardware)?.into(), systems.clone()));
        Ok(Self {
            hardware: change(&self.hardware)?.into(),
            others: self.others.iter().map(other).collect::<Result<_, E>>()?,
        })
    }
}

/// The machine as it is, for all systems.
impl From<Arc<Hardware>> for Machine {
    fn from(hardware: Arc<Hardware>) -> Self {
        Self { hardware, others: Vec::new() }
    }
}

impl From<Hardware> for Machine {
    fn from(hardware: Hardware) -> Self {
        Arc::new(hardware).into()
    }
}
