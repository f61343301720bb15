//! Stages whose parameters stay on their device although others are streamed: no copies, and no step on a socket.
//!
//! The backward ends with the first stages, whose steps on a socket nothing hides: these are kept first. Where a device has larger
//! stages than others, as that of an embedding, the smallest are also tried first, of which more may fit.

use crate::bisect::first_of;
use spipe_base::{DeviceId, StageId};
use spipe_cost::{LayerMemory, Mode};
use spipe_plan::{Context, Placement, Stage, Weights, check, held_in_rounds};

/// How many counts of kept stages are tried where more of them leave less room for activations.
const SHARES: usize = 4;

/// `placement` with as many stages kept on each device as fit; none if not one does, or its system keeps none.
pub(super) fn as_many_as_fit(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    let full = |smallest: bool| {
        let mut full = placement.clone();
        for device in placement.devices() {
            let most = most(context, (placement, device), smallest);
            keep(&mut full, &most);
        }
        full
    };
    distinct(context, [full(false), full(true)].into_iter().filter(|full| full != placement).collect())
}

/// `placement` with several shares of the stages kept that fit where everything is recomputed, and as little recomputed as then fits; none
/// if its system keeps none.
pub(super) fn mixed(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    if context.workload().mode != Mode::Train {
        return as_many_as_fit(context, placement);
    }
    let mut all = placement.clone();
    all.stages.iter_mut().for_each(|stage| *stage = stage.with_everything_recomputed());
    let devices = placement.devices();
    let mut list = Vec::new();
    for smallest in [false, true] {
        let most: Vec<(DeviceId, Vec<StageId>)> =
            devices.iter().map(|device| (*device, most(context, (&all, *device), smallest))).collect();
        for share in (1..=SHARES).rev() {
            let mut mixed = all.clone();
            for (device, most) in &most {
                keep(&mut mixed, &most[..(most.len() * share).div_ceil(SHARES)]);
                with_least_recompute(context, &mut mixed, *device);
            }
            list.extend(Some(mixed).filter(|mixed| mixed.stages.iter().any(|stage| !streams(stage))));
        }
    }
    distinct(context, list)
}

/// Those that fit, each once.
fn distinct(context: &Context<'_>, list: Vec<Placement>) -> Vec<Placement> {
    let mut distinct: Vec<Placement> = Vec::new();
    for placement in list {
        if !distinct.contains(&placement) && check(context, &placement).is_ok() {
            distinct.push(placement);
        }
    }
    distinct
}

/// As many of the streamed stages of a device as it can keep, the first ones or the smallest ones.
fn most(context: &Context<'_>, (placement, device): (&Placement, DeviceId), smallest: bool) -> Vec<StageId> {
    let mut stages = streamed(context, placement, device);
    if smallest {
        let state = |id: &StageId| {
            let layers = placement.stages[*id].layers.iter();
            layers.map(|layer| LayerMemory::state(context.cost.memory(layer, device)).get()).sum::<u64>()
        };
        stages.sort_by_key(state);
    }
    let with = |count: usize| {
        let mut kept = placement.clone();
        keep(&mut kept, &stages[..count]);
        fits(context, &kept, device)
    };
    // Where all are kept, nothing arrives that would need room.
    let count = if with(stages.len()) { stages.len() } else { first_of((1, stages.len()), |count| !with(count)) - 1 };
    stages.truncate(count);
    stages
}

/// Recomputes as few layers of a device as fits, from the front; all of them where even that does not fit.
pub(crate) fn with_least_recompute(context: &Context<'_>, placement: &mut Placement, device: DeviceId) {
    let own: Vec<StageId> = of_device(placement, device).map(|(id, _)| id).collect();
    let layers: usize = own.iter().map(|id| placement.stages[*id].layers.count()).sum();
    let with = |count: usize| with_so_many_recomputed(placement, &own, count);
    *placement = with(first_of((0, layers), |count| fits(context, &with(count), device)));
}

/// The same placement with so many layers of some of its stages recomputed, those of the first of these first.
pub(crate) fn with_so_many_recomputed(placement: &Placement, stages: &[StageId], count: usize) -> Placement {
    let (mut with, mut left) = (placement.clone(), count);
    for id in stages {
        let stage = &mut with.stages[*id];
        let here = left.min(stage.layers.count());
        *stage = stage.with_recomputed(here);
        left -= here;
    }
    with
}

/// Keeps stages.
pub(crate) fn keep(placement: &mut Placement, stages: &[StageId]) {
    for id in stages {
        let stage = placement.stages[*id];
        placement.stages[*id] = Stage { weights: Weights::Resident, optimizer: None, ..stage };
    }
}

/// The stages of a device that could be kept, and are not.
pub(crate) fn streamed(context: &Context<'_>, placement: &Placement, device: DeviceId) -> Vec<StageId> {
    let may = |stage: &Stage| placement.system.may_keep() && streams(stage) && may_stay(context, stage);
    of_device(placement, device).filter(|(_, stage)| may(stage)).map(|(id, _)| id).collect()
}

/// Whether a stage may keep its parameters on its device: it shares none with another stage.
pub(super) fn may_stay(context: &Context<'_>, stage: &Stage) -> bool {
    context.model.borrows(stage.layers).is_none() && context.model.lends(stage.layers).is_none()
}

/// The stages of a device that are kept.
pub(crate) fn kept(placement: &Placement, device: DeviceId) -> Vec<StageId> {
    of_device(placement, device).filter(|(_, stage)| !streams(stage)).map(|(id, _)| id).collect()
}

fn of_device(placement: &Placement, device: DeviceId) -> impl Iterator<Item = (StageId, &Stage)> {
    placement.stages.enumerate().filter(move |(_, stage)| stage.device == device)
}

pub(super) const fn streams(stage: &Stage) -> bool {
    matches!(stage.weights, Weights::Streamed(_))
}

/// Whether a device has room for its part of `placement`.
fn fits(context: &Context<'_>, placement: &Placement, device: DeviceId) -> bool {
    let memory = &context.hardware.memories()[context.hardware.devices()[device].memory];
    held_in_rounds(context, placement, device) <= memory.usable()
}
