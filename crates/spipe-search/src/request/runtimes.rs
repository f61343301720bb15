//! The runtime that executes a plan, and the machine as it finds it.

use crate::error::SearchError;
use spipe_base::Diagnostic;
use spipe_cost::Mode;
use spipe_hardware::{Hardware, Provenance, Runtime};
use spipe_plan::System;

/// The name of the runtime of this program's executor.
pub const OWN: &str = "spipe";

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

/// The name of the shipped runtime under which a system is planned where none is named: on GPUs that this program has not
/// measured, the framework's that trains the system there. On cores, on emulated GPUs and on measured ones it is this
/// program's own, and in inference, which frameworks do not take over.
pub fn default_runtime(system: System, hardware: &Hardware, mode: Mode) -> &'static str {
    let gpus = hardware.gpus().count();
    if mode == Mode::Train && has_foreign_gpus(hardware) { system.framework(gpus) } else { OWN }
}

/// Whether a machine has GPUs, none of them emulated or measured by this program.
pub fn has_foreign_gpus(hardware: &Hardware) -> bool {
    let mut gpus = hardware.devices().iter().filter(|device| device.is_gpu()).peekable();
    let foreign = |provenance: &Provenance| !matches!(provenance, Provenance::Measured { .. });
    gpus.peek().is_some() && gpus.all(|gpu| !gpu.emulated && foreign(gpu.provenance()))
}
