//! The planner's errors in words, with the settings that would help.

use crate::{
    error::SearchError,
    request::{Request, drives::DriveFor, spelling::Spelling},
};
use spipe_base::{Bytes, DeviceId, Diagnostic, MemoryId, readable::listed};
use spipe_hardware::{Device, Hardware};
use spipe_planner::{PlanError, SYSTEMS};
use std::collections::BTreeSet;

/// The error of the search that an error of the planner is.
pub fn failure(error: &PlanError, spelling: Spelling) -> SearchError {
    let diagnostic = hint(error, spelling).into_iter().fold(Diagnostic::error(error.to_string()), Diagnostic::hint);
    match error {
        PlanError::Infeasible { .. } | PlanError::NothingRuns { .. } | PlanError::NothingBetter { .. } => {
            SearchError::Infeasible(diagnostic)
        }
        PlanError::StoppedWithoutPlan { .. } => SearchError::Stopped(diagnostic),
        PlanError::TooLarge { .. } | PlanError::NoSystem => SearchError::Request(diagnostic.into()),
        PlanError::Threads { .. } => SearchError::Bug(error.to_string()),
    }
}

/// The remedy, where one is known.
pub fn hint(error: &PlanError, spelling: Spelling) -> Option<String> {
    match error {
        PlanError::Infeasible { hint, .. } => Some(hint.clone()),
        PlanError::StoppedWithoutPlan { .. } => Some(more_time(spelling)),
        PlanError::TooLarge { .. } => Some(format!("use {}", spelling.value("planner", "ilp"))),
        PlanError::NoSystem => Some(format!("allow `gpipe` or `1f1b`, or use {}", spelling.value("system", "auto"))),
        PlanError::NothingRuns { .. } => {
            Some("an iteration may take at most 100 days: look for a rate of the machine that is far too small".into())
        }
        PlanError::NothingBetter { .. } | PlanError::Threads { .. } => None,
    }
}

fn more_time(spelling: Spelling) -> String {
    format!("allow more time with {}", spelling.setting("time-limit"))
}

/// The shortage that a refusal states; the largest number if it states none.
pub fn missing(error: &PlanError) -> Bytes {
    match error {
        PlanError::Infeasible { missing: Some(missing), .. } => *missing,
        _ => Bytes::new(u64::MAX),
    }
}

/// The refusal of a named drive.
pub fn no_drive(named: DriveFor, spelling: Spelling) -> PlanError {
    let (what, hint) = use_of(named, spelling);
    PlanError::Infeasible {
        reason: format!("no placement of the allowed systems {what}"),
        hint,
        missing: None,
        certain: true,
    }
}

/// The use of a named drive, and how a plan comes to it.
fn use_of(named: DriveFor, spelling: Spelling) -> (&'static str, String) {
    let system = |name: &str| spelling.value("system", name);
    if named.activations.is_some() {
        let (po_h, pin) = (system("po-h"), spelling.value("pin", "offload=0..3"));
        let hint = format!("name layers whose activations leave their GPU, as {po_h} or {pin} does");
        ("offloads activations to the drive", hint)
    } else if named.parameters.is_some() {
        let streams = system("superpipeline");
        let hint = format!("name a system that streams parameters, such as {streams} or `zero-infinity`");
        ("streams its parameters from the drive", hint)
    } else {
        let hint = format!("name a system whose optimizer steps run on the CPU, such as {}", system("zero-infinity"));
        ("keeps its optimizer state on the drive", hint)
    }
}

/// The error of a search that has stopped before it had a plan with a named drive.
pub fn stopped(request: &Request, examined: usize) -> SearchError {
    let (what, hint) = use_of(request.drive_for, request.spelling);
    let what =
        format!("the search stopped before it had found a plan that {what}; {examined} placements were simulated");
    SearchError::Stopped(Diagnostic::error(what).hint(format!("{hint}, or {}", more_time(request.spelling))))
}

/// The fault of pins that offload where no allowed system can: placements of stages offload to the DRAM
/// of a CPU socket.
pub fn nowhere_to_offload(request: &Request) -> Option<Diagnostic> {
    let (words, hardware) = (request.pins.offloading()?, request.machine.hardware());
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
    let (devices, system) = (request.spelling.setting("devices"), request.spelling.value("system", "po-h"));
    Some(Diagnostic::error(what).hint(format!("name a socket in {devices} too, or use {system}")))
}

/// The refusal of a machine whose DRAM also has the room of the drives that are named.
pub fn with_room(error: PlanError, hardware: &Hardware, named: DriveFor) -> PlanError {
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
    fn every_error_has_its_kind() {
        let infeasible =
            PlanError::Infeasible { reason: String::new(), hint: String::new(), missing: None, certain: false };
        let (bound, examined, considered) = (SimTime::ZERO, 1, Vec::new());
        let nothing_better = PlanError::NothingBetter { bound, examined, stopped: true, considered };
        let kind = |error: &PlanError| match failure(error, Spelling::default()) {
            SearchError::Bug(_) => "bug",
            SearchError::Request(_) => "request",
            SearchError::Input(_) => "input",
            SearchError::Infeasible(_) => "infeasible",
            SearchError::Stopped(_) => "stopped",
        };
        for (error, expected) in [
            (infeasible, "infeasible"),
            (PlanError::NothingRuns { examined: 1 }, "infeasible"),
            (nothing_better, "infeasible"),
            (PlanError::StoppedWithoutPlan { examined: 1 }, "stopped"),
            (PlanError::TooLarge { placements: 2, limit: 1 }, "request"),
            (PlanError::NoSystem, "request"),
            (PlanError::Threads { threads: 1, what: String::new() }, "bug"),
        ] {
            assert_eq!(kind(&error), expected, "{error:?}");
        }
    }
}
