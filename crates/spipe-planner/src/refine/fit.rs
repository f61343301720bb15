//! Changes with as little recomputed as then fits: a layer that moves takes memory along, of which its old device has more now and its new
//! one less.

use crate::{bisect::first_of, figures::Figures};
use spipe_base::{DeviceId, StageId};
use spipe_cost::Mode;
use spipe_plan::{Dealing, Family, Placement, Stage, System, footprint, needed};

/// Of more stages, to count what they hold takes too long.
const MOST_STAGES: usize = 96;

/// `changed` with as little recomputed as fits on the devices whose stages are not those of `placement`; none where that is nothing else.
pub(super) fn fitted(figures: &Figures<'_>, placement: &Placement, changed: &Placement) -> Option<Placement> {
    let context = &figures.context;
    let chooses = context.workload().mode == Mode::Train
        && changed.system.family() == Family::Pipeline
        && changed.system.dealing() == Dealing::Single
        && !matches!(changed.system, System::Checkpointing | System::GpuOnly);
    if !chooses || changed.stages.len() > MOST_STAGES {
        return None;
    }
    let of = |placement: &Placement, device: DeviceId| -> Vec<Stage> {
        placement.stages.iter().filter(|stage| stage.device == device).copied().collect()
    };
    let mut fitted = changed.clone();
    for device in changed.devices() {
        if of(placement, device) != of(changed, device) {
            fit(figures, &mut fitted, device);
        }
    }
    (fitted != *changed).then_some(fitted)
}

/// Recomputes as few layers of a device as fits, those first that take least for what they save.
pub(crate) fn fit(figures: &Figures<'_>, placement: &mut Placement, device: DeviceId) {
    let context = &figures.context;
    let of_device = &figures.devices[device.index()];
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
    let with = |count: usize| {
        let (mut with, mut left) = (placement.clone(), count);
        for id in &own {
            let stage = &mut with.stages[*id];
            let here = left.min(stage.layers.count());
            *stage = stage.with_recomputed(here);
            left -= here;
        }
        with
    };
    let memory = context.hardware.devices()[device].memory;
    let usable = context.hardware.memories()[memory].usable();
    let fits = |count: usize| needed(&footprint(context, &with(count)), memory) <= usable;
    *placement = with(first_of((0, total), fits));
}
