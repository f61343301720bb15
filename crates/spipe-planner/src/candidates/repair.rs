//! Repair of a changed placement: as little recompute as then fits. A layer that moves takes its
//! memory along, so its old device may recompute less and its new one more.

use crate::{
    bisect::first_of, candidates::residency::with_recomputed_layers, costs::CostSums, space::rules::SystemSpec,
};
use spipe_base::{DeviceId, StageId};
use spipe_cost::Mode;
use spipe_plan::{Context, Dealing, Family, Footprint, Placement, Stage, footprint, needed};

/// Limit on stages above which counting their memory takes too long.
const MOST_STAGES: usize = 96;

/// Returns `changed` with the least recompute that fits on the devices whose stages differ from
/// those of `placement`; none if this changes nothing.
pub(crate) fn repaired(costs: &CostSums<'_>, placement: &Placement, changed: &Placement) -> Option<Placement> {
    let context = &costs.context;
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
            recompute_least(costs, &mut repaired, device);
        }
    }
    (repaired != *changed).then_some(repaired)
}

/// Recomputes as few layers of a device as fits: first those with the least time per saved byte.
pub(crate) fn recompute_least(costs: &CostSums<'_>, placement: &mut Placement, device: DeviceId) {
    let context = &costs.context;
    let of_device = &costs.devices[device.index()];
    let layers = |id: &StageId| {
        let layers = placement.stages[*id].layers;
        (layers.first().index(), layers.last().index() + 1)
    };
    let rate = |id: &StageId| {
        let (from, to) = layers(id);
        of_device.pass((from, to), false) / of_device.leaving((from, to), 0).max(1) as f64
    };
    let on_device = |(_, stage): &(StageId, &Stage)| stage.device == device && stage.offload.is_none();
    let mut own: Vec<StageId> = placement.stages.enumerate().filter(on_device).map(|(id, _)| id).collect();
    own.sort_by(|one, other| rate(one).total_cmp(&rate(other)));
    let total = own.iter().map(|id| placement.stages[*id].layers.count()).sum();
    let with = |count: usize| with_recomputed_layers(placement, &own, count);
    let fits = |count: usize| free_bytes(context, &footprint(context, &with(count)), device).is_some();
    *placement = with(first_of((0, total), fits));
}

/// Returns the bytes that `needs` leaves free on a device; none if they exceed its memory.
pub(crate) fn free_bytes(context: &Context<'_>, needs: &Footprint, device: DeviceId) -> Option<u64> {
    let memory = context.hardware.devices()[device].memory;
    context.hardware.memories()[memory].usable().get().checked_sub(needed(needs, memory).get())
}
