//! Residency: which stages keep their parameters on their device while others are streamed. A kept
//! stage needs no copies and no optimizer step on a socket.
//!
//! The backward ends with the first stages, whose steps on a socket nothing hides, so these are
//! kept first. Where stages differ in size, for example because of an embedding, the smallest first
//! are tried as well: more of them may fit.

use crate::bisect::first_of;
use crate::candidates::repair::{recompute_first, recompute_least};
use crate::hosts::{self, socket};
use crate::{costs::bytes_of, space::distinct};
use spipe_base::{DeviceId, StageId};
use spipe_cost::{LayerMemory, Mode};
use spipe_plan::{Context, Placement, Stage, Weights, streamed_device_bytes};

/// Number of shares of kept stages that are tried, since more kept stages leave less memory for
/// activations.
const SHARES: usize = 4;

/// Returns `placement` with as many stages kept on each device as fit; empty if none does, or the
/// system keeps none.
pub(crate) fn as_many_as_fit(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    let full = |(base, smallest): (&Placement, bool)| {
        let mut full = base.clone();
        for device in placement.devices() {
            let most = most(context, (base, device), smallest);
            keep(&mut full, &most);
        }
        full
    };
    let bases = with_ends_or_not(context, placement);
    let all = bases.iter().flat_map(|base| [false, true].map(|smallest| full((base, smallest))));
    fitting(context, all.filter(|full| full != placement))
}

/// Returns `placement`, and also with the stages that share parameters kept, if that fits.
fn with_ends_or_not(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    let fits = |kept: &Placement| kept.devices().into_iter().all(|device| fits(context, kept, device));
    let kept = other_ends(context, placement).filter(|kept| kept.stages.iter().any(|stage| !streams(stage)));
    std::iter::once(placement.clone()).chain(kept.filter(fits)).collect()
}

/// Returns `placement` with several shares of the stages kept that fit with full recompute, and
/// then the least recompute that fits; empty if the system keeps none.
pub(crate) fn mixed(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    if context.workload().mode != Mode::Train {
        return as_many_as_fit(context, placement);
    }
    let mut all = placement.clone();
    all.stages.iter_mut().for_each(|stage| *stage = stage.with_everything_recomputed());
    let mut list = Vec::new();
    let bases = with_ends_or_not(context, &all);
    for (base, smallest) in bases.iter().flat_map(|base| [(base, false), (base, true)]) {
        let of_device = |device: DeviceId| (device, most(context, (base, device), smallest));
        let most: Vec<(DeviceId, Vec<StageId>)> = placement.devices().into_iter().map(of_device).collect();
        for share in (1..=SHARES).rev() {
            let mut mixed = base.clone();
            for (device, most) in &most {
                keep(&mut mixed, &most[..(most.len() * share).div_ceil(SHARES)]);
                with_least_recompute(context, &mut mixed, *device);
            }
            list.extend(Some(mixed).filter(|mixed| mixed.stages.iter().any(|stage| !streams(stage))));
        }
    }
    fitting(context, list)
}

/// Returns the placements that fit, without duplicates.
fn fitting(context: &Context<'_>, list: impl IntoIterator<Item = Placement>) -> Vec<Placement> {
    distinct(list).into_iter().filter(|placement| hosts::fits(context, placement)).collect()
}

/// Returns the largest prefix of a device's streamed stages that it can keep, in model order or by
/// size.
fn most(context: &Context<'_>, (placement, device): (&Placement, DeviceId), smallest: bool) -> Vec<StageId> {
    let mut stages = streamed(context, placement, device);
    if smallest {
        stages.sort_by_key(|id| bytes_of(context, (placement.stages[*id].layers, device), LayerMemory::state));
    }
    let with = |count: usize| {
        let mut kept = placement.clone();
        keep(&mut kept, &stages[..count]);
        fits(context, &kept, device)
    };
    // If all stages are kept, no streaming buffers are needed.
    let count = if with(stages.len()) { stages.len() } else { first_of((1, stages.len()), |count| !with(count)) - 1 };
    stages.truncate(count);
    stages
}

/// Recomputes as few layers of a device as fits: those with the least time per saved byte if it is alone,
/// otherwise the first ones, since the other devices wait for the gradients of the last.
pub(crate) fn with_least_recompute(context: &Context<'_>, placement: &mut Placement, device: DeviceId) {
    let own: Vec<StageId> = of_device(placement, device).map(|(id, _)| id).collect();
    let fits = |placement: &Placement| fits(context, placement, device);
    match placement.devices().len() {
        1 => recompute_least(context, (placement, own), fits),
        _ => recompute_first(placement, &own, fits),
    }
}

/// Keeps the parameters of `stages` on their devices.
pub(crate) fn keep(placement: &mut Placement, stages: &[StageId]) {
    for id in stages {
        let stage = placement.stages[*id];
        placement.stages[*id] = Stage { weights: Weights::Resident, optimizer: None, ..stage };
    }
}

/// Returns the streamed stages of a device that could be kept.
pub(crate) fn streamed(context: &Context<'_>, placement: &Placement, device: DeviceId) -> Vec<StageId> {
    let may = |stage: &Stage| placement.system.may_keep() && streams(stage) && may_stay(context, stage);
    of_device(placement, device).filter(|(_, stage)| may(stage)).map(|(id, _)| id).collect()
}

/// Returns whether a stage may be kept or streamed by itself: it shares no parameters with another
/// stage.
pub(crate) fn may_stay(context: &Context<'_>, stage: &Stage) -> bool {
    context.model.borrows(stage.layers).is_none() && context.model.lends(stage.layers).is_none()
}

/// Returns the stages that share parameters with others; they are kept or streamed together.
pub(crate) fn ends(context: &Context<'_>, placement: &Placement) -> Vec<StageId> {
    placement.stages.enumerate().filter(|(_, stage)| !may_stay(context, stage)).map(|(id, _)| id).collect()
}

/// Returns `placement` with the stages that share parameters switched between kept and streamed;
/// none if the system keeps none, or no stage shares any.
pub(crate) fn other_ends(context: &Context<'_>, placement: &Placement) -> Option<Placement> {
    let ends = ends(context, placement);
    let first = ends.first().filter(|_| placement.system.may_keep())?;
    let mut other = placement.clone();
    if streams(&placement.stages[*first]) {
        keep(&mut other, &ends);
    } else {
        ends.iter().for_each(|end| stream(context, &mut other, *end));
    }
    Some(other)
}

/// Streams a stage from the host near its device.
pub(crate) fn stream(context: &Context<'_>, placement: &mut Placement, id: StageId) {
    let stage = placement.stages[id];
    if let Some(home) = context.hardware.host_memory(stage.lead()) {
        let streamed = Stage::new(stage.lead(), stage.layers).with_weights_in(home);
        let optimizer = socket(context, stage.lead());
        placement.stages[id] = Stage { recomputed: stage.recomputed, offload: stage.offload, optimizer, ..streamed };
    }
}

/// Returns the kept stages of a device that could be streamed by themselves.
pub(crate) fn kept(context: &Context<'_>, placement: &Placement, device: DeviceId) -> Vec<StageId> {
    let stays = |stage: &Stage| !streams(stage) && may_stay(context, stage);
    of_device(placement, device).filter(|(_, stage)| stays(stage)).map(|(id, _)| id).collect()
}

fn of_device(placement: &Placement, device: DeviceId) -> impl Iterator<Item = (StageId, &Stage)> {
    placement.stages.enumerate().filter(move |(_, stage)| stage.lead() == device)
}

pub(crate) const fn streams(stage: &Stage) -> bool {
    matches!(stage.weights, Weights::Streamed(_))
}

/// Returns whether a device has memory for its part of `placement`.
fn fits(context: &Context<'_>, placement: &Placement, device: DeviceId) -> bool {
    let memory = &context.hardware.memories()[context.hardware.devices()[device].memory];
    streamed_device_bytes(context, placement, device) <= memory.usable()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Instance, LayerText, MachineText, machine_text, model_text, workload};
    use spipe_base::LayerRange;
    use spipe_plan::System;

    /// The layers that GPUs of `memory` MiB recompute, dealt in turns: three slow ones, and then a quick one
    /// that saves as much.
    fn recomputed(gpus: usize, memory: u64) -> Vec<usize> {
        let slow = LayerText {
            count: 3,
            times: [20, 20, 20],
            slowdown: 9,
            parameters: 1 << 20,
            boundary: 1,
            saved: 64,
            workspace: 0,
        };
        let quick = LayerText { count: 1, times: [2, 20, 20], ..slow };
        let machine = MachineText { gpus: vec![(memory, 20); gpus], root: 20, sockets: vec![8000] };
        let instance = Instance::new(&model_text(&[slow, quick]), &machine_text(&machine), &workload(4, Mode::Train));
        let context = instance.context();
        let devices: Vec<DeviceId> = context.cost.devices().filter(|device| !context.is_cpu(*device)).collect();
        let stage =
            |layer: usize| Stage::new(devices[layer % gpus], LayerRange::new(layer.into(), layer.into()).unwrap());
        let mut placement = Placement::new(System::Superpipeline, (0..4).map(stage));
        (0..4).for_each(|stage: usize| stream(&context, &mut placement, stage.into()));
        devices.iter().for_each(|device| with_least_recompute(&context, &mut placement, *device));
        (0..4).filter(|layer| placement.stages.as_slice()[*layer].recomputed > 0).collect()
    }

    #[test]
    fn a_lone_device_recomputes_what_is_quick_and_several_what_comes_first() {
        let first = |gpus: usize| {
            let mut with_less = (50..2000).rev().step_by(10).map(|memory| recomputed(gpus, memory));
            with_less.find(|layers| !layers.is_empty()).unwrap_or_default()
        };
        assert_eq!(first(1), [3]);
        assert_eq!(first(2), [0, 1]);
    }
}
