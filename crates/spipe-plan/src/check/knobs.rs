//! The rules of knobs.

use super::found::Found;
use crate::{FEWEST_OFFLOAD_SLOTS, FEWEST_RESIDENT, Family, Knob, Placement, System};
use spipe_base::Diagnostic;

/// Checks that the system has the knobs that are set, and that their values are in range.
pub(super) fn check(placement: &Placement, faults: &mut Found<'_>) {
    let (system, knobs) = (placement.system, &placement.knobs);
    let mut refuse = |given: bool, allowed: bool, what: &str| {
        if given && !allowed {
            faults.push(Diagnostic::error(format!("system `{system}` has no {what}")));
        }
    };
    refuse(knobs.head_start > 0, Knob::HeadStart.is_of(system), "head start");
    refuse(knobs.group.is_some(), Knob::Group.is_of(system), "group size");
    refuse(knobs.memory_limit.is_some(), Knob::MemoryLimit.is_of(system), "memory limit");
    refuse(knobs.offload_slots.is_some(), Knob::OffloadSlots.is_of(system), "slots for offloaded activations");
    refuse(knobs.urgent_steps, Knob::UrgentSteps.is_of(system), "priorities of optimizer steps");
    refuse(knobs.gradients_leave, Knob::GradientsLeave.is_of(system), "gradients that leave after each microbatch");
    let superpipeline = Knob::Swap.is_of(system);
    refuse(knobs.resident.is_some(), Knob::Resident.is_of(system), "resident layers");
    refuse(knobs.swap.is_some(), superpipeline, "exchanged layers");
    refuse(knobs.shards.is_some(), Knob::Shards.is_of(system), "shards");
    refuse(knobs.write_back || knobs.sequential, superpipeline, "options of layer exchanges");
    refuse(knobs.synchronous_checkpoints, system == System::Spipe, "synchronous checkpoints");
    let phase = Knob::SynchronousOptimizer.is_of(system);
    refuse(knobs.synchronous_optimizer, phase, "synchronous optimizer");
    refuse(knobs.arithmetic_undo, system == System::Spipe, "arithmetic undo");
    for knob in Knob::ALL {
        if let Some(value) = knob.of(knobs).filter(|value| *value > Knob::LARGEST) {
            faults.push(
                Diagnostic::error(format!("{knob} cannot be {value}")).hint(format!("use {} at most", Knob::LARGEST)),
            );
        }
    }
    if let Some(slots) = knobs.offload_slots.filter(|slots| *slots < FEWEST_OFFLOAD_SLOTS) {
        faults.push(
            Diagnostic::error(format!("activations cannot be offloaded with {slots} slots each way"))
                .hint(format!("use at least {FEWEST_OFFLOAD_SLOTS}: one in computation and one being copied")),
        );
    }
    if let Some(resident) = knobs.resident.filter(|resident| *resident < FEWEST_RESIDENT)
        && system.family() == Family::Sharded
    {
        faults.push(
            Diagnostic::error(format!("{resident} resident stages are too few"))
                .hint(format!("use at least {FEWEST_RESIDENT}: one that computes and one being gathered")),
        );
    }
    if let (Some(resident), Some(swap)) = (knobs.resident, knobs.swap)
        && (swap > resident || swap == 0)
    {
        faults.push(
            Diagnostic::error(format!("{swap} of {resident} resident layers cannot be exchanged at a time"))
                .hint(format!("exchange between 1 and {resident}")),
        );
    }
}
