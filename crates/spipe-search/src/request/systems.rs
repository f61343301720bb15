//! The systems that a request allows.

use super::spelling::Spelling;
use crate::error::SearchError;
use spipe_cost::{Mode, Workload};
use spipe_plan::System;
use std::collections::BTreeSet;

/// The systems whose steps run on the device that computes, without copies of gradients.
const IN_BACKWARD: [System; 3] = [System::GpuOnly, System::Checkpointing, System::CpuOnly];

/// The systems that train with the same losses as a single device.
pub fn current() -> Vec<System> {
    System::ALL.into_iter().filter(|system| !system.is_stale()).collect()
}

/// The systems with these names, separated by commas, or for `auto` all that train with the same losses as a single device.
///
/// # Errors
/// A name is unknown, or stands beside `auto`.
pub fn systems(given: &str) -> Result<Vec<System>, SearchError> {
    if given == "auto" {
        return Ok(current());
    }
    if given.split(',').any(|name| name.trim() == "auto") {
        return Err(SearchError::request(
            format!("`{given}` names systems besides `auto`"),
            "`auto` is all of them; leave out the others",
        ));
    }
    let system = |name: &str| name.trim().parse::<System>();
    let systems: Result<BTreeSet<System>, String> = given.split(',').map(system).collect();
    let systems = systems.map_err(|message| SearchError::request(message, "or use auto"))?;
    Ok(systems.into_iter().collect())
}

/// Whether `system` can run the workload: with an optimizer in the backward, some systems do not.
pub fn runs(system: System, workload: &Workload) -> bool {
    !workload.formats.optimizer_in_backward || workload.mode != Mode::Train || IN_BACKWARD.contains(&system)
}

/// The systems that can run the workload: with an optimizer in the backward, some of `systems`. Named systems are
/// refused where they cannot, and left out for `auto`.
pub fn that_run(
    systems: Vec<System>,
    workload: &Workload,
    auto: bool,
    spelling: Spelling,
) -> Result<Vec<System>, SearchError> {
    let (some, others): (Vec<System>, Vec<System>) = systems.into_iter().partition(|system| runs(*system, workload));
    match others.first() {
        Some(other) if !auto => {
            let message = format!("`{other}` does not run the optimizer in the backward");
            let (names, option) = (IN_BACKWARD.map(System::name).join(", "), spelling.setting("optimizer-in-backward"));
            Err(SearchError::request(message, format!("leave {option} out, or plan with {names}")))
        }
        _ => Ok(if some.is_empty() { IN_BACKWARD.to_vec() } else { some }),
    }
}
