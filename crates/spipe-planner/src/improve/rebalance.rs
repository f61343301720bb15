//! Rebalancing of stages that are streamed or kept: they leave the busiest GPU.

use crate::{
    candidates::residency::with_least_recompute,
    costs::{back_through, ms_of},
    hosts::on_device,
    space::{
        rules::{Streaming, SystemSpec},
        stage_edits::cut_at,
    },
};
use spipe_base::DeviceId;
use spipe_cost::Mode;
use spipe_plan::{Context, Placement, Stage};

/// Moves each stage of the busiest device, or its first or last layer, to the least busy device or
/// to the one that begins first and waits for no other, with the least recompute that fits on both.
pub(crate) fn changed(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    if SystemSpec::of(placement.system).streaming != Some(Streaming::Mixed) {
        return Vec::new();
    }
    let stages = placement.stages.as_slice();
    let devices = placement.devices();
    let forward = |stage: &Stage| ms_of(context, (stage.layers, stage.lead()), |time| time.forward);
    let time = |stage: &Stage| forward(stage) + back_through(context, stage);
    let busy = |device: &DeviceId| -> f64 { stages.iter().filter(|stage| stage.lead() == *device).map(time).sum() };
    let busiest = devices.iter().copied().max_by(|one, other| busy(one).total_cmp(&busy(other)));
    let least = devices.iter().copied().min_by(|one, other| busy(one).total_cmp(&busy(other)));
    let (Some(from), Some(least), Some(first)) = (busiest, least, stages.first().map(|stage| stage.lead())) else {
        return Vec::new();
    };
    let mut targets = vec![least, first];
    targets.dedup();
    targets.retain(|target| *target != from);
    let mut list = Vec::new();
    for (index, stage) in stages.iter().enumerate().filter(|(_, stage)| stage.lead() == from) {
        for target in &targets {
            let mut replace = |new: &[Stage]| {
                let stages = [&stages[..index], new, &stages[index + 1..]].concat();
                let mut other = Placement { stages: stages.into_iter().collect(), ..placement.clone() };
                if context.workload().mode == Mode::Train {
                    [from, *target].iter().for_each(|device| with_least_recompute(context, &mut other, *device));
                }
                list.push(other);
            };
            replace(&[on_device(context, stage, *target)]);
            let count = stage.layers.count();
            if count > 1 {
                let [front, back] = cut_at(stage, 1);
                replace(&[on_device(context, &front, *target), back]);
                let [front, back] = cut_at(stage, count - 1);
                replace(&[front, on_device(context, &back, *target)]);
            }
        }
    }
    list
}
