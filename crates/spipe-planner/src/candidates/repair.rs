//! Repair of a changed placement: as little recompute as then fits. A layer that moves takes its
//! memory along, so its old device may recompute less and its new one more.

use crate::bisect::first_of;
use crate::costs::{bytes_of, ms_of};
use crate::space::rules::{Family, SystemSpec};
use spipe_base::{DeviceId, StageId};
use spipe_cost::Mode;
use spipe_plan::{Context, Dealing, Footprint, Placement, Stage, footprint, needed};

/// Limit on stages above which counting their memory takes too long.
const MOST_STAGES: usize = 96;

/// Returns `changed` with the least recompute that fits on the devices whose stages differ from
/// those of `placement`; none if this changes nothing.
pub(crate) fn repaired(context: &Context<'_>, placement: &Placement, changed: &Placement) -> Option<Placement> {
    let suits = match Family::of(changed.system) {
        Family::Pipeline => changed.system.dealing() == Dealing::Single,
        Family::Sharded => true,
        Family::Streamed => false,
    };
    let chooses = context.workload().mode == Mode::Train && suits && SystemSpec::of(changed.system).recompute_varies();
    if !chooses || changed.stages.len() > MOST_STAGES {
        return None;
    }
    let of = |placement: &Placement, device: DeviceId| -> Vec<Stage> {
        placement.stages.iter().filter(|stage| stage.lead() == device).copied().collect()
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
    let on_device = |(_, stage): &(StageId, &Stage)| stage.lead() == device && stage.offload.is_none();
    let own = placement.stages.enumerate().filter(on_device).map(|(id, _)| id).collect();
    let fits = |placement: &Placement| free_bytes(context, &footprint(context, placement), device).is_some();
    recompute_least(context, (placement, own), fits);
}

/// Recomputes as few layers of the stages `own` as `fits`: first those with the least time per byte saved
/// beside their input, about the size of their first boundary; all of them if even that does not fit.
pub(crate) fn recompute_least(
    context: &Context<'_>,
    (placement, mut own): (&mut Placement, Vec<StageId>),
    fits: impl Fn(&Placement) -> bool,
) {
    let rate = |id: &StageId| {
        let Stage { layers, team, .. } = placement.stages[*id];
        let device = team.lead();
        let input = context.cost.memory(layers.first(), device).boundary;
        let saved = bytes_of(context, (layers, device), |memory| memory.saved).saturating_sub(input);
        ms_of(context, (layers, device), |times| times.forward) / saved.as_f64().max(1.0)
    };
    own.sort_by(|one, other| rate(one).total_cmp(&rate(other)));
    recompute_first(placement, &own, fits);
}

/// Recomputes as few of the first layers of `own` as `fits`.
pub(crate) fn recompute_first(placement: &mut Placement, own: &[StageId], fits: impl Fn(&Placement) -> bool) {
    let layers = own.iter().map(|id| placement.stages[*id].layers.count()).sum();
    let with = |count: usize| {
        let (mut with, mut left) = (placement.clone(), count);
        for id in own {
            let stage = &mut with.stages[*id];
            let here = left.min(stage.layers.count());
            *stage = stage.with_recomputed(here);
            left -= here;
        }
        with
    };
    *placement = with(first_of((0, layers), |count| fits(&with(count))));
}

/// Returns the bytes that `needs` leaves free on a device; none if they exceed its memory.
pub(crate) fn free_bytes(context: &Context<'_>, needs: &Footprint, device: DeviceId) -> Option<u64> {
    let memory = context.hardware.devices()[device].memory;
    context.hardware.memories()[memory].usable().get().checked_sub(needed(needs, memory).get())
}
