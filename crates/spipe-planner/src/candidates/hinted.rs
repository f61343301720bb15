//! Stages of single layers on devices of which a bound says how many layers each may have.
//!
//! What the first layers of a GPU save may leave it, so that more of them are stepped there; what stays decides how much hosts have to
//! step.

use crate::{
    candidates::repair::{left, optimizer_state},
    costs::CostSums,
    improve::single_layer::fine,
    space::{
        enumerate::{orders, slots},
        stage_edits::stepped_on_socket,
    },
};
use crate::{
    candidates::topology_order::apart,
    hosts::{dealt_out, shared_out},
};
use spipe_base::{DeviceId, StageId};
use spipe_plan::{Context, Knobs, Placement, Stage, footprint};
use std::collections::BTreeMap;

/// How many layers each GPU steps at least, of those that it can: that the first ones of a chain step as many as the last ones, which hold
/// less, leaves sockets least to do when what they have stepped is needed next.
const LEVELS: std::ops::Range<usize> = 0..6;

/// How what a stage saves leaves its device.
type Leave = fn(&Context<'_>, &Stage) -> Option<Stage>;

/// A stage for each layer of `plain`, whose stages are each on a device of its own: with more and more offloaded or recomputed, as many
/// first layers of each GPU as that leaves room for stepped there, and all others on sockets.
pub(crate) fn placements(costs: &CostSums<'_>, plain: &Placement) -> Vec<Placement> {
    let context = &costs.context;
    let offloaded: Leave =
        |context, stage| Some(stage.with_activations_in(context.hardware.host_memory(stage.device)?));
    let recomputed: Leave = |_, stage| Some(stage.with_everything_recomputed());
    let fine = fine(context, &apart(costs, plain)).filter(|_| costs.host_help);
    let Some(fine) = fine else { return Vec::new() };
    let even = |slots: &Option<u64>| slots.is_none_or(|slots| slots.is_multiple_of(2));
    let mut list: Vec<Placement> = Vec::new();
    for leave in [offloaded, recomputed] {
        for near in leaving(context, &fine, leave) {
            let dealt = dealt_out(context, &near);
            let shared = shared_out(context, &near).unwrap_or(near);
            for placement in dealt.into_iter().chain([shared]) {
                for offload_slots in slots(context, &placement).into_iter().filter(even) {
                    for urgent_steps in orders(&placement) {
                        let knobs = Knobs { offload_slots, urgent_steps: *urgent_steps, ..placement.knobs };
                        list.push(placement.clone().with_knobs(knobs));
                    }
                }
            }
        }
    }
    list
}

/// The placements that differ in how many layers each GPU steps.
fn leaving(context: &Context<'_>, fine: &Placement, leave: Leave) -> Vec<Placement> {
    let mut by_gpu: BTreeMap<DeviceId, Vec<StageId>> = BTreeMap::new();
    for (id, stage) in fine.stages.enumerate().filter(|(_, stage)| !context.is_cpu(stage.device)) {
        by_gpu.entry(stage.device).or_default().push(id);
    }
    let mut all_on_sockets = fine.clone();
    for id in by_gpu.values().flatten() {
        let stage = &mut all_on_sockets.stages[*id];
        *stage = stepped_on_socket(context, stage).unwrap_or(*stage);
    }
    let with = |counts: &dyn Fn(DeviceId) -> usize| -> Option<Placement> {
        let mut changed = all_on_sockets.clone();
        for (gpu, stages) in &by_gpu {
            for id in stages.iter().take(counts(*gpu)) {
                let stage = &mut changed.stages[*id];
                *stage = leave(context, stage)?;
            }
        }
        Some(changed)
    };
    let most = by_gpu.values().map(Vec::len).max().unwrap_or(0);
    // By how many layers leave, how many are then stepped on each GPU.
    let own: Option<Vec<BTreeMap<DeviceId, usize>>> =
        (0..=most).map(|count| Some(own(context, &with(&|_| count)?, &by_gpu))).collect();
    let Some(own) = own else { return Vec::new() };
    let mut list: Vec<Placement> = Vec::new();
    for level in LEVELS {
        // As few as that takes.
        let count = |gpu: DeviceId| {
            let at = |count: usize| own[count].get(&gpu).copied();
            let least = (0..=most).find_map(at)?;
            let largest = (0..=most).filter_map(at).max()?;
            (0..=most).find(|count| at(*count).is_some_and(|own| own >= largest.min(least.max(level))))
        };
        if by_gpu.keys().any(|gpu| count(*gpu).is_none()) {
            return list;
        }
        let Some(mut placement) = with(&|gpu| count(gpu).unwrap_or(0)) else { return list };
        for (gpu, stages) in &by_gpu {
            let own = count(*gpu).and_then(|count| own[count].get(gpu)).copied().unwrap_or(0);
            stages.iter().take(own).for_each(|id| placement.stages[*id].optimizer = None);
        }
        if list.last() != Some(&placement) {
            list.push(placement);
        }
    }
    list
}

/// How many of the first stages of each GPU it has room to step beside what it holds; nothing for a GPU that holds too much.
fn own(
    context: &Context<'_>,
    placement: &Placement,
    by_gpu: &BTreeMap<DeviceId, Vec<StageId>>,
) -> BTreeMap<DeviceId, usize> {
    let needs = footprint(context, placement);
    let of_gpu = |(gpu, stages): (&DeviceId, &Vec<StageId>)| {
        let left = left(context, &needs, *gpu)?;
        let sums = stages.iter().scan(0, |sum, id| {
            *sum += optimizer_state(context, &placement.stages[*id]);
            Some(*sum)
        });
        Some((*gpu, sums.take_while(|sum| *sum <= left).count()))
    };
    by_gpu.iter().filter_map(of_gpu).collect()
}
