//! Changes of residency: more, fewer or other stages keep their parameters on their device.

use crate::candidates::residency::{ends, keep, kept, other_ends, stream, streamed, streams, with_least_recompute};
use crate::space::{distinct, rules::SystemSpec, stage_edits::equal_parts};
use spipe_base::{DeviceId, StageId};
use spipe_cost::Mode;
use spipe_plan::{Context, Placement, Stage};
use std::collections::BTreeSet;

/// Keeps one, two or four stages more or fewer on all devices, or one more, fewer or another on
/// each device; each also with the least recompute that fits.
pub(crate) fn changed(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    if !placement.system.may_keep() {
        return Vec::new();
    }
    let devices = placement.devices();
    let mut list: Vec<Placement> = Vec::new();
    let mut add = |devices: &[DeviceId], exchanged: (usize, usize)| {
        list.extend(exchange(context, placement.clone(), devices, exchanged));
    };
    for by in [1, 2, 4] {
        add(&devices, (by, 0));
        add(&devices, (0, by));
    }
    for device in devices.chunks(1) {
        add(device, (1, 0));
        add(device, (0, 1));
        add(device, (1, 1));
    }
    list.retain(|other| other != placement);
    let mut list = distinct(list);
    list.extend(with_other_ends(context, placement));
    list
}

/// Keeps the stages that share parameters and streams up to four others of their devices, or the
/// reverse.
fn with_other_ends(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    let Some(other) = other_ends(context, placement) else { return Vec::new() };
    let devices: BTreeSet<DeviceId> =
        ends(context, placement).into_iter().map(|end| placement.stages[end].lead()).collect();
    let devices: Vec<DeviceId> = devices.into_iter().collect();
    let keeps = other.stages.iter().zip(placement.stages.iter()).any(|(one, was)| !streams(one) && streams(was));
    let exchanged = |by: usize| if keeps { (0, by) } else { (by, 0) };
    distinct([0, 1, 2, 4].into_iter().flat_map(|by| exchange(context, other.clone(), &devices, exchanged(by))))
}

/// Makes one [`change`] on each of `devices`; returns the result with the least recompute that fits
/// there, where the system chooses, and with unchanged recompute.
fn exchange(
    context: &Context<'_>,
    mut placement: Placement,
    devices: &[DeviceId],
    exchanged: (usize, usize),
) -> [Placement; 2] {
    devices.iter().for_each(|device| change(context, (&mut placement, *device), exchanged));
    let mut least = placement.clone();
    if context.workload().mode == Mode::Train && SystemSpec::of(placement.system).recompute_varies() {
        devices.iter().for_each(|device| with_least_recompute(context, &mut least, *device));
    }
    [least, placement]
}

/// Keeps the first `more` streamed stages and streams `fewer` others: the last kept ones, or the
/// first ones if both change.
fn change(context: &Context<'_>, (placement, device): (&mut Placement, DeviceId), (more, fewer): (usize, usize)) {
    let (streamed, kept) = (streamed(context, placement, device), kept(context, placement, device));
    let fewer = fewer.min(kept.len());
    let gone: &[StageId] = if more > 0 { &kept[..fewer] } else { &kept[kept.len() - fewer..] };
    gone.iter().for_each(|gone| stream(context, placement, *gone));
    keep(placement, &streamed[..more.min(streamed.len())]);
    // Cut into single layers, the newly streamed stages need the smallest buffers.
    if placement.devices().len() == 1 {
        let each = |(id, stage): (StageId, &Stage)| {
            let parts = if gone.contains(&id) { stage.layers.count() } else { 1 };
            equal_parts(stage, parts)
        };
        placement.stages = placement.stages.enumerate().flat_map(each).collect();
    }
}
