//! Repair of a changed placement: as little recompute as then fits. A layer that moves takes its
//! memory along, so its old device may recompute less and its new one more.

use crate::{candidates::residency::recompute_least, space::rules::SystemSpec};
use spipe_base::{DeviceId, StageId};
use spipe_cost::Mode;
use spipe_plan::{Context, Dealing, Family, Footprint, Placement, Stage, footprint, needed};

/// Limit on stages above which counting their memory takes too long.
const MOST_STAGES: usize = 96;

/// Returns `changed` with the least recompute that fits on the devices whose stages differ from
/// those of `placement`; none if this changes nothing.
pub(crate) fn repaired(context: &Context<'_>, placement: &Placement, changed: &Placement) -> Option<Placement> {
    let suits = match changed.system.family() {
        Family::Pipeline => changed.system.dealing() == Dealing::Single,
        Family::Sharded => true,
        Family::Streamed => false,
    };
    let chooses = context.workload().mode == Mode::Train && suits && SystemSpec::of(changed.system).recompute_varies();
    if !chooses || changed.stages.len() > MOST_STAGES {
        return None;
    }
    let of = |placement: &Placement, device: DeviceId| -> Vec<Stage> {
        placement.stages.iter().filter(|stage| stage.device == device).copied().collect()
    };
    let mut repaired = changed.clone();
    for device in changed.devices() {
        if of(placement, device) != of(changed, device) {
            recompute_on(context, &mut repaired, device);
        }
    }
    (repaired != *changed).then_some(repaired)
}

/// Recomputes as few layers of a device as fits, but for stages that offload their activations.
pub(crate) fn recompute_on(context: &Context<'_>, placement: &mut Placement, device: DeviceId) {
    let on_device = |(_, stage): &(StageId, &Stage)| stage.device == device && stage.offload.is_none();
    let own = placement.stages.enumerate().filter(on_device).map(|(id, _)| id).collect();
    let fits = |placement: &Placement| free_bytes(context, &footprint(context, placement), device).is_some();
    recompute_least(context, (placement, own), fits);
}

/// Returns the bytes that `needs` leaves free on a device; none if they exceed its memory.
pub(crate) fn free_bytes(context: &Context<'_>, needs: &Footprint, device: DeviceId) -> Option<u64> {
    let memory = context.hardware.devices()[device].memory;
    context.hardware.memories()[memory].usable().get().checked_sub(needed(needs, memory).get())
}
