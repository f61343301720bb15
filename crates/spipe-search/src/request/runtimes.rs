//! The runtime that executes a plan, and the machine as it finds it.

use crate::error::SearchError;
use spipe_base::Diagnostic;
use spipe_hardware::{Hardware, Provenance, Runtime};
use spipe_plan::System;

/// The machine as `runtime` finds it, with the constants that it was fitted to have under it.
///
/// # Errors
/// The fitted constants do not suit the runtime.
pub fn under(hardware: Hardware, runtime: Runtime) -> Result<Hardware, SearchError> {
    let fitted = spipe_fit::fitted_runtime(&hardware, runtime);
    let fitted = fitted.map_err(|error| {
        let message = format!("`[[fitted]]` of `{}`: {error}", hardware.name());
        SearchError::Input(Diagnostic::error(message).hint(error.hint()).into())
    })?;
    Ok(hardware.under(fitted))
}

/// The shipped runtime that executes `systems` on `hardware`: the framework to which all of them belong, if the machine's
/// GPUs are real and were not measured by this program.
pub fn framework(systems: &[System], hardware: &Hardware) -> Option<&'static str> {
    let mut frameworks = systems.iter().map(|system| system.framework());
    let first = frameworks.next().flatten();
    first.filter(|_| frameworks.all(|other| other == first) && has_foreign_gpus(hardware))
}

/// Whether a machine has GPUs, none of them emulated or measured by this program.
pub fn has_foreign_gpus(hardware: &Hardware) -> bool {
    let mut gpus = hardware.devices().iter().filter(|device| device.is_gpu()).peekable();
    let foreign = |provenance: &Provenance| !matches!(provenance, Provenance::Measured { .. });
    gpus.peek().is_some() && gpus.all(|gpu| !gpu.emulated && foreign(gpu.provenance()))
}
