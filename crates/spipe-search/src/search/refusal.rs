//! The planner's errors as failures of the command: their exit codes, and the options that would
//! help.

use super::{DriveFor, Request};
use crate::Failure;
use spipe_base::{DeviceId, Diagnostic, MemoryId};
use spipe_hardware::{Device, Hardware};
use spipe_planner::{PlanError, SYSTEMS, listed};
use std::collections::BTreeSet;

/// The failure that an error of the planner is.
pub fn failure(error: &PlanError) -> Failure {
    let diagnostic = hint(error).into_iter().fold(Diagnostic::error(error.to_string()), Diagnostic::hint);
    match error {
        PlanError::Infeasible { .. } | PlanError::NothingRuns { .. } | PlanError::NothingBetter { .. } => {
            Failure::Infeasible(diagnostic)
        }
        PlanError::StoppedWithoutPlan { .. } => Failure::Stopped(diagnostic),
        PlanError::TooLarge { .. } | PlanError::NoSystem => Failure::Arguments(diagnostic.into()),
        PlanError::Threads { .. } => Failure::Bug(error.to_string()),
    }
}

/// The remedy, where one is known.
pub fn hint(error: &PlanError) -> Option<&str> {
    match error {
        PlanError::Infeasible { hint, .. } => Some(hint),
        PlanError::StoppedWithoutPlan { .. } => Some("allow more time with `--time-limit`"),
        PlanError::TooLarge { .. } => Some("use `--planner ilp`"),
        PlanError::NoSystem => Some("allow `gpipe` or `1f1b`, or use `--system auto`"),
        PlanError::NothingRuns { .. } => {
            Some("an iteration may take at most 100 days: look for a rate of the machine that is far too small")
        }
        PlanError::NothingBetter { .. } | PlanError::Threads { .. } => None,
    }
}

/// The refusal of a named drive.
pub fn no_drive(named: DriveFor) -> PlanError {
    let (what, hint) = use_of(named);
    PlanError::Infeasible {
        reason: format!("no placement of the allowed systems {what}"),
        hint: hint.into(),
        missing: None,
        certain: true,
    }
}

/// The use of a named drive, and how a plan comes to it.
fn use_of(named: DriveFor) -> (&'static str, &'static str) {
    if named.activations.is_some() {
        let hint = "name layers whose activations leave their GPU, as `--system po-h` or `--pin offload=0..3` does";
        ("offloads activations to the drive", hint)
    } else if named.parameters.is_some() {
        let hint = "name a system that streams parameters, such as `--system superpipeline` or `zero-infinity`";
        ("streams its parameters from the drive", hint)
    } else {
        let hint = "name a system whose optimizer steps run on the CPU, such as `--system zero-infinity`";
        ("keeps its optimizer state on the drive", hint)
    }
}

/// The failure of a search that has stopped before it had a plan with a named drive.
pub fn stopped(named: DriveFor, examined: usize) -> Failure {
    let (what, hint) = use_of(named);
    let what =
        format!("the search stopped before it had found a plan that {what}; {examined} placements were simulated");
    Failure::Stopped(Diagnostic::error(what).hint(format!("{hint}, or allow more time with `--time-limit`")))
}

/// The fault of pins that offload where no allowed system can: placements of stages offload to the DRAM
/// of a CPU socket.
pub fn nowhere_to_offload(request: &Request<'_>) -> Option<Diagnostic> {
    let (words, hardware) = (request.pins.offloading()?, request.hardware);
    let has_socket = |(id, device): (DeviceId, &Device)| {
        let mut hosts = hardware.host_memories(id).iter();
        device.is_gpu() && hosts.any(|host| hardware.memories()[*host].device.is_some())
    };
    let of_stages = request.systems.iter().all(|system| SYSTEMS.contains(system));
    if !of_stages || hardware.devices().enumerate().any(has_socket) {
        return None;
    }
    let names: Vec<&str> = request.systems.iter().map(|system| system.name()).collect();
    let what = format!(
        "`{words}`: {} {} to the DRAM of a CPU socket, and `{}` has none here",
        listed(&names),
        if names.len() == 1 { "offloads" } else { "offload" },
        hardware.name()
    );
    Some(Diagnostic::error(what).hint("name a socket in `--devices` too, or use `--system po-h`"))
}

/// The refusal of a machine whose DRAM also has the room of the drives that are named.
pub fn with_room(error: PlanError, (hardware, named): (&Hardware, DriveFor)) -> PlanError {
    let name = |drive: MemoryId| hardware.memories()[drive].name.as_str();
    let drives: BTreeSet<&str> =
        [named.parameters, named.state, named.activations].into_iter().flatten().map(name).collect();
    let names = listed(&drives.into_iter().collect::<Vec<_>>());
    match error {
        PlanError::Infeasible { reason, hint, missing, certain } => {
            let reason = format!("with the room of {names} counted as DRAM, {reason}");
            PlanError::Infeasible { reason, hint, missing, certain }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spipe_base::SimTime;

    #[test]
    fn every_error_has_its_exit_code() {
        let infeasible =
            PlanError::Infeasible { reason: String::new(), hint: String::new(), missing: None, certain: false };
        for (error, code) in [
            (infeasible, 4),
            (PlanError::NothingRuns { examined: 1 }, 4),
            (PlanError::NothingBetter { bound: SimTime::ZERO, examined: 1, stopped: true }, 4),
            (PlanError::StoppedWithoutPlan { examined: 1 }, 5),
            (PlanError::TooLarge { placements: 2, limit: 1 }, 2),
            (PlanError::NoSystem, 2),
            (PlanError::Threads { threads: 1, what: String::new() }, 1),
        ] {
            assert_eq!(failure(&error).exit_code(), code, "{error:?}");
        }
    }
}
