//! A machine under the runtimes of its plans.

use super::runtimes::{default_runtime, under};
use crate::error::SearchError;
use spipe_cost::Mode;
use spipe_hardware::{Hardware, Runtime};
use spipe_plan::System;
use std::{collections::BTreeMap, sync::Arc};

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
    /// The machine under `runtime`, or under the [default](default_runtime) of each system, with the constants that it was
    /// fitted to have under them.
    ///
    /// # Errors
    /// The fitted constants do not suit a runtime.
    pub fn new(hardware: &Hardware, runtime: Option<&Runtime>, mode: Mode) -> Result<Self, SearchError> {
        Self::with(hardware, (runtime, mode), under)
    }

    /// The machine of a plan of `system` to go on from, which is under the plan's runtime: under the defaults if this is the
    /// system's, and otherwise under the same for all systems.
    ///
    /// # Errors
    /// The fitted constants do not suit a runtime.
    pub fn of_plan(hardware: &Hardware, system: System, mode: Mode) -> Result<Self, SearchError> {
        let by_default = Self::new(hardware, None, mode)?;
        let is_default = by_default.of(system).runtime() == hardware.runtime();
        Ok(if is_default { by_default } else { hardware.clone().into() })
    }

    /// The same as [`Machine::new`] without the constants that the machine was fitted to have.
    ///
    /// # Errors
    /// None of the shipped runtimes.
    pub fn unfitted(hardware: &Hardware, runtime: Option<&Runtime>, mode: Mode) -> Result<Self, SearchError> {
        Self::with(hardware, (runtime, mode), |hardware, runtime| Ok(hardware.under(runtime)))
    }

    fn with(
        hardware: &Hardware,
        (runtime, mode): (Option<&Runtime>, Mode),
        under: impl Fn(Hardware, Runtime) -> Result<Hardware, SearchError>,
    ) -> Result<Self, SearchError> {
        if let Some(runtime) = runtime {
            return under(hardware.clone(), runtime.clone()).map(Self::from);
        }
        let shipped = |name: &str| {
            let runtime = Runtime::shipped(name);
            let runtime = runtime.ok_or_else(|| SearchError::Bug(format!("the runtime `{name}` is not shipped")))?;
            under(hardware.clone(), runtime).map(Arc::new)
        };
        let mut by_runtime: BTreeMap<&str, Vec<System>> = BTreeMap::new();
        for system in System::ALL {
            by_runtime.entry(default_runtime(system, hardware, mode)).or_default().push(system);
        }
        // The runtime of plans that no planner looks for is that of most systems.
        let common = default_runtime(System::Mixed, hardware, mode);
        by_runtime.remove(common);
        let others = by_runtime.into_iter().map(|(name, systems)| Ok((shipped(name)?, systems)));
        Ok(Self { hardware: shipped(common)?, others: others.collect::<Result<_, SearchError>>()? })
    }

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
