//! The rules of presets: a plan sets the options that its system leaves to it, within their ranges.

use super::found::Found;
use crate::{FEWEST_OFFLOAD_SLOTS, FEWEST_RESIDENT, Knob, Placement, System};
use serde::Serialize;
use spipe_base::Diagnostic;
use std::mem::discriminant;

/// Checks that the answers are those of the system, and that the values of options are in range.
pub(super) fn check(placement: &Placement, faults: &mut Found<'_>) {
    if placement.system != System::Mixed {
        check_answers(placement, faults);
    }
    check_values(placement, faults);
}

/// Checks that each answer is that of the system but for the options that it leaves to the plan.
fn check_answers(placement: &Placement, faults: &mut Found<'_>) {
    let system = placement.system;
    let mut own = Placement::new(system, []);
    // A mesh is an answer of its own; only the division of parameters belongs to a system.
    if system.shards_parameters() || !placement.shards_parameters() {
        own.mesh.clone_from(&placement.mesh);
    }
    if system.shards_parameters() {
        own.mesh.sharding = system.preset().sharding;
    }
    for knob in system.preset().free {
        knob.set(&mut own, knob.of(placement));
    }
    let alike = discriminant(&own.order) == discriminant(&placement.order)
        && discriminant(&own.update) == discriminant(&placement.update)
        && discriminant(&own.mesh.sharding) == discriminant(&placement.mesh.sharding);
    let mut nouns = Vec::new();
    for knob in Knob::ALL.into_iter().filter(|knob| alike && knob.of(&own) != knob.of(placement)) {
        if !nouns.contains(&knob.noun()) {
            nouns.push(knob.noun());
            faults.push(Diagnostic::error(format!("system `{system}` has no {}", knob.noun())));
        }
    }
    if !nouns.is_empty() {
        return;
    }
    let mut refuse = |key: &str, [own, other]: [String; 2]| {
        if own != other {
            let message = format!("the `{key}` of system `{system}` is {own}, but that of the plan is {other}");
            let hint = format!("leave `{key}` out, or write `\"system\": \"mixed\"`");
            faults.push(Diagnostic::error(message).hint(hint));
        }
    };
    refuse("sharding", [&own.mesh.sharding, &placement.mesh.sharding].map(text));
    refuse("replicas", [&own, placement].map(|placement| placement.mesh.replicas.len().to_string()));
    refuse("order", [&own.order, &placement.order].map(text));
    refuse("update", [&own.update, &placement.update].map(text));
    refuse("offload", [&own.offload, &placement.offload].map(text));
    refuse("gradients-leave", [&own.gradients_leave, &placement.gradients_leave].map(text));
}

/// An answer as plan files have it.
fn text(answer: &impl Serialize) -> String {
    match serde_json::to_string(answer) {
        Ok(text) => text,
        Err(error) => unreachable!("answers are numbers and words: {error}"),
    }
}

/// Checks that the values of options are in range.
fn check_values(placement: &Placement, faults: &mut Found<'_>) {
    for knob in Knob::ALL {
        if let Some(value) = knob.of(placement).filter(|value| *value > Knob::LARGEST) {
            faults.push(
                Diagnostic::error(format!("{knob} cannot be {value}")).hint(format!("use {} at most", Knob::LARGEST)),
            );
        }
    }
    if let Some(slots) = placement.offload.slots.filter(|slots| *slots < FEWEST_OFFLOAD_SLOTS) {
        faults.push(
            Diagnostic::error(format!("activations cannot be offloaded with {slots} slots each way"))
                .hint(format!("use at least {FEWEST_OFFLOAD_SLOTS}: one in computation and one being copied")),
        );
    }
    let resident = Knob::Resident.of(placement);
    if let Some(resident) = resident.filter(|resident| *resident < FEWEST_RESIDENT)
        && placement.shards_parameters()
    {
        faults.push(
            Diagnostic::error(format!("{resident} resident stages are too few"))
                .hint(format!("use at least {FEWEST_RESIDENT}: one that computes and one being gathered")),
        );
    }
    if let (Some(resident), Some(swap)) = (resident, Knob::Swap.of(placement))
        && (swap > resident || swap == 0)
    {
        faults.push(
            Diagnostic::error(format!("{swap} of {resident} resident layers cannot be exchanged at a time"))
                .hint(format!("exchange between 1 and {resident}")),
        );
    }
}
