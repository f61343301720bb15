//! Local search over placements: repeatedly simulates the neighbours of a placement and moves to a
//! faster one.
//!
//! The neighbourhood of a placement consists of these changes, each of them also with a repair that
//! recomputes as little as then fits on the changed devices:
//!
//! - some layers move over a stage boundary;
//! - a stage recomputes more or less, keeps or offloads its activations, runs its optimizer step on
//!   its device or on a socket, or uses another socket; or all stages share the sockets;
//! - a stage is split in two on its device, each part with choices of its own; two stages of a
//!   device merge; or the stages of a device are cut into equal parts or single layers;
//! - more, fewer or other stages keep their parameters, and streamed or kept stages of one GPU
//!   merge;
//! - a stage moves to a neighbouring device, which may leave its own device unused, the first stage
//!   to an unused socket, or one of the busiest GPU to another;
//! - the stages of several devices change jointly;
//! - a knob changes: k, k′, the head start, slots for offloaded activations, the order of the
//!   host's steps, or whether gradients leave.
//!
//! Neighbours are ordered by estimated time and simulated in batches of fixed size. The best of the
//! first batch with an improvement is the next placement, so that the result does not depend on the
//! number of threads. If there is none, the search moves to the equally fast neighbour with the
//! least computation, if that is less: a device that recomputes less may only shorten the iteration
//! once another one does too.

mod joint;
pub(crate) mod readable;
mod rebalance;
mod residency;
mod sharded;
pub(crate) mod single_layer;

use crate::{
    candidates::{merge::merged, repair},
    costs::{CostSums, HostOffload},
    hosts::{elsewhere, on_device, shared_out},
    improve::sharded::changed as changed_shared,
    problem::{Deadline, Problem, SYSTEMS},
    score::{
        estimate::estimate,
        judge::{Scored, acceptable, faster},
    },
    space::{
        enumerate::{orders, slots},
        rules::{Streaming, SystemSpec},
        stage_edits::{cut_at, equal_parts, over, saved_elsewhere, stepped_elsewhere},
    },
};
use rayon::prelude::*;
use spipe_base::{DeviceId, IdVec, StageId};
use spipe_cost::Mode;
use spipe_plan::{Context, Dealing, FEWEST_RESIDENT, GradientsLeave, Knob, Placement, Stage};
use std::collections::BTreeSet;

/// Number of neighbours that are simulated before the best of them is taken. It must not depend on the
/// number of threads.
const BATCH: usize = 16;

/// Numbers of parts into which the stages of a device are cut.
const PARTS: [usize; 3] = [2, 4, 8];

/// Neighbours whose estimate exceeds that of the placement by this factor are left out: the estimate
/// knows no contention for links.
const WORSE: f64 = 1.1;

/// Limit on stages above which the list of all neighbours takes gigabytes.
const MOST_STAGES: usize = 1500;

/// Fraction of the computation that an equally fast neighbour may have at most, so that a walk among
/// equals ends.
const LESS: f64 = 0.999;

/// Improves `start` until no neighbour is better or `most` placements have been simulated. Returns
/// the result and the number of simulations.
pub(crate) fn refine(
    problem: &Problem<'_>,
    costs: &CostSums<'_>,
    deadline: &Deadline<'_>,
    (start, most): (Scored, usize),
) -> (Scored, usize) {
    let mut best = start;
    let mut examined = 0;
    if best.1.stages.len() > MOST_STAGES {
        return (best, examined);
    }
    loop {
        let (context, host_help) = (&problem.context, problem.options.host_help);
        let neighbours = match problem.options.pins.given_stages() {
            Some(_) => of_same_stages(context, &best.1, host_help),
            None => neighbours(context, &best.1, host_help),
        };
        let neighbours = thinned(neighbours, problem.most_neighbours());
        let mut left = promising((problem, costs), &best.1, neighbours, deadline).into_iter();
        let mut next: Option<Scored> = None;
        let mut level: Option<(f64, Scored)> = None;
        let enough = LESS * work(costs, &best.1);
        loop {
            if examined >= most || deadline.over() {
                return (best, examined);
            }
            let batch = batch(problem, &mut left, BATCH.min(most - examined), deadline);
            if batch.is_empty() {
                break;
            }
            examined += batch.len();
            let in_time = |placement: Placement| {
                let simulated =
                    (!deadline.over()).then(|| problem.evaluator.iteration_within(&placement, best.0)).flatten();
                simulated.map(|time| (time, placement))
            };
            let scored: Vec<Option<Scored>> = batch.into_par_iter().map(in_time).collect();
            for (time, placement) in scored.iter().flatten().filter(|(time, _)| *time == best.0) {
                let less = work(costs, placement);
                if less < level.as_ref().map_or(enough, |(least, _)| *least) {
                    level = Some((less, (*time, placement.clone())));
                }
            }
            next = scored.into_iter().fold(None, faster).filter(|(time, _)| *time < best.0);
            if next.is_some() {
                break;
            }
        }
        match next.or_else(|| level.map(|(_, level)| level)) {
            Some(next) => best = next,
            None => return (best, examined),
        }
    }
}

/// Returns at most `most` of the neighbours, at equal distances in the list, which is in the order of
/// their kind and stage.
fn thinned(neighbours: Vec<Placement>, most: usize) -> Vec<Placement> {
    let step = neighbours.len().div_ceil(most.max(1)).max(1);
    neighbours.into_iter().step_by(step).collect()
}

/// Returns the computation of all devices for one microbatch, in ms.
fn work(costs: &CostSums<'_>, placement: &Placement) -> f64 {
    let of_stage = |stage: &Stage| {
        let layers = (stage.layers.first().index(), stage.layers.last().index() + 1);
        costs.devices[stage.lead().index()].stage_times(layers, stage.recomputed, HostOffload::NONE).busy()
    };
    placement.stages.iter().map(of_stage).sum()
}

/// Returns the neighbours of a placement that may be faster, in ascending order of estimated time.
fn promising(
    (problem, costs): (&Problem<'_>, &CostSums<'_>),
    of: &Placement,
    neighbours: Vec<Placement>,
    deadline: &Deadline<'_>,
) -> Vec<Placement> {
    let most = estimate(costs, of).map_or(f64::INFINITY, |time| time * WORSE);
    let least = |placement: &Placement| estimate(costs, placement).unwrap_or(0.0);
    // Neighbours need no estimate once the time is over.
    let rated = |placement: Placement| (if deadline.over() { 0.0 } else { least(&placement) }, placement);
    let with_repair = |placement: Placement| {
        let wanted = problem.options.has_programs() && !deadline.over();
        let repaired = wanted.then(|| repair::repaired(&problem.context, of, &placement)).flatten();
        repaired.into_iter().chain([placement])
    };
    let mut rated: Vec<(f64, Placement)> = neighbours.into_par_iter().flat_map_iter(with_repair).map(rated).collect();
    rated.retain(|(time, _)| *time <= most);
    rated.sort_by(|one, other| one.0.total_cmp(&other.0));
    rated.into_iter().map(|(_, placement)| placement).collect()
}

/// Returns the next placements that fit, at most `most`.
fn batch(
    problem: &Problem<'_>,
    left: &mut impl Iterator<Item = Placement>,
    most: usize,
    deadline: &Deadline<'_>,
) -> Vec<Placement> {
    let mut batch: Vec<Placement> = Vec::new();
    while batch.len() < most && !deadline.over() {
        let few: Vec<Placement> = left.take(most - batch.len()).collect();
        if few.is_empty() {
            break;
        }
        let fits: Vec<Option<Placement>> =
            few.into_par_iter().map(|placement| acceptable(problem, placement)).collect();
        batch.extend(fits.into_iter().flatten());
    }
    batch
}

/// Returns the neighbours of a placement, including changes of host offload if `host_offload`.
pub(crate) fn neighbours(context: &Context<'_>, placement: &Placement, host_offload: bool) -> Vec<Placement> {
    let mut list = Vec::new();
    let forward = |stages: Vec<Stage>| Placement { stages: stages.into_iter().collect(), ..placement.clone() };
    let backward = |stages: Vec<Stage>| Placement { backward: stages.into_iter().collect(), ..placement.clone() };
    list.extend(other_knobs(context, placement));
    if placement.shards_parameters() {
        list.extend(changed_shared(context, placement));
        list.extend(moved_layers(&placement.stages).into_iter().map(forward));
        list.extend(cut_and_joined(context, placement, false).into_iter().map(forward));
        return list;
    }
    list.extend(single_layer::changed(context, placement, host_offload));
    if host_offload {
        list.extend(joint::changed(context, placement).into_iter().map(forward));
    }
    // A change that gains nothing on one socket may gain when shared among several.
    let shared: Vec<Placement> =
        std::iter::once(placement).chain(&list).filter_map(|placement| shared_out(context, placement)).collect();
    let (spec, kept) = (SystemSpec::of(placement.system), residency::changed(context, placement));
    let merged_stages = std::iter::once(placement).chain(&kept).flat_map(|placement| merged(context, placement));
    let merged_stages: Vec<Placement> = merged_stages.filter(|_| spec.streaming == Some(Streaming::Mixed)).collect();
    list.extend(kept);
    list.extend(rebalance::changed(context, placement));
    list.extend(moved_layers(&placement.stages).into_iter().map(forward));
    list.extend(moved_layers(&placement.backward).into_iter().map(backward));
    list.extend(other_choices(context, placement, host_offload).into_iter().map(forward));
    if placement.is_pipeline() && placement.system.dealing() == Dealing::Single {
        list.extend(cut_and_joined(context, placement, host_offload).into_iter().map(forward));
        list.extend(in_parts(&placement.stages).into_iter().map(forward));
        list.extend(moved_stages(context, &placement.stages).into_iter().map(forward));
        if SYSTEMS.contains(&placement.system) {
            list.extend(left_out(context, &placement.stages).into_iter().map(forward));
            list.extend(first_on_sockets(context, &placement.stages).into_iter().map(forward));
        }
    }
    list.extend(merged_stages);
    list.extend(shared);
    list
}

/// Returns the neighbours with the same layers on the same devices.
fn of_same_stages(context: &Context<'_>, placement: &Placement, host_offload: bool) -> Vec<Placement> {
    let choices = other_choices(context, placement, host_offload).into_iter();
    let stages = choices.map(|stages| Placement { stages: stages.into_iter().collect(), ..placement.clone() });
    other_knobs(context, placement).into_iter().chain(stages).collect()
}

/// Moves one, two or four layers over each boundary, either way.
fn moved_layers(stages: &IdVec<StageId, Stage>) -> Vec<Vec<Stage>> {
    let stages = stages.as_slice();
    let mut list = Vec::new();
    for index in 0..stages.len().saturating_sub(1) {
        let (here, next) = (&stages[index], &stages[index + 1]);
        let end = here.layers.last().index() + 1;
        for by in [1, 2, 4] {
            let ends = [end.checked_sub(by), Some(end + by)];
            for end in ends.into_iter().flatten() {
                let (first, last) = (here.layers.first().index(), next.layers.last().index());
                if end <= first || end > last {
                    continue;
                }
                let mut all = stages.to_vec();
                (all[index], all[index + 1]) = (over(here, first, end), over(next, end, last + 1));
                list.push(all);
            }
        }
    }
    list
}

/// Changes one stage: recompute, activations, optimizer, or the socket that it uses.
fn other_choices(context: &Context<'_>, placement: &Placement, host_offload: bool) -> Vec<Vec<Stage>> {
    let mut list = Vec::new();
    if context.workload().mode != Mode::Train {
        return list;
    }
    let system = placement.system;
    let varies = SystemSpec::of(system).recompute_varies();
    let stages = placement.stages.as_slice().iter().enumerate();
    for (index, stage) in stages.filter(|(_, stage)| !stage.layers.is_empty()) {
        let mut others = Vec::new();
        if varies {
            let (now, all) = (stage.recomputed, stage.layers.count());
            let counts = [0, now / 2, now.saturating_sub(1), (now + 1).min(all), now.midpoint(all), all];
            let other = BTreeSet::from(counts).into_iter().filter(|count| *count != now);
            others.extend(other.map(|count| stage.with_recomputed(count)));
        }
        if host_offload && SYSTEMS.contains(&system) && !context.is_cpu(stage.lead()) {
            for other in [stepped_elsewhere(context, stage), saved_elsewhere(context, stage)].into_iter().flatten() {
                others.push(other);
                others.extend(elsewhere(context, &other));
            }
        }
        others.extend(elsewhere(context, stage));
        for other in others {
            let mut stages = placement.stages.as_slice().to_vec();
            stages[index] = other;
            list.push(stages);
        }
    }
    list
}

/// Cuts the stages of one device, or of all, into equal parts.
fn in_parts(stages: &IdVec<StageId, Stage>) -> Vec<Vec<Stage>> {
    let stages = stages.as_slice();
    let devices: BTreeSet<DeviceId> = stages.iter().map(|stage| stage.lead()).collect();
    let mut list: Vec<Vec<Stage>> = Vec::new();
    for parts in PARTS {
        let cut = |device: Option<DeviceId>| -> Vec<Stage> {
            let of = |stage: &Stage| {
                let whole = device.is_some_and(|device| stage.lead() != device);
                if whole { vec![*stage] } else { equal_parts(stage, parts) }
            };
            stages.iter().flat_map(of).collect()
        };
        let each = devices.iter().map(|device| cut(Some(*device))).chain([cut(None)]);
        list.extend(each.filter(|all| all.len() > stages.len()));
    }
    list
}

/// Splits each stage in two, alike or with another optimizer device or activations in one part, and
/// merges neighbours on one device.
fn cut_and_joined(context: &Context<'_>, placement: &Placement, host_offload: bool) -> Vec<Vec<Stage>> {
    let stages = placement.stages.as_slice();
    let mut list = Vec::new();
    let mut replace = |index: usize, old: usize, new: &[Stage]| {
        let mut all = stages[..index].to_vec();
        all.extend_from_slice(new);
        all.extend_from_slice(&stages[index + old..]);
        list.push(all);
    };
    for (index, stage) in stages.iter().enumerate() {
        let (first, count) = (stage.layers.first().index(), stage.layers.count());
        let cuts = BTreeSet::from([1, count / 2, count.saturating_sub(1)]);
        for cut in cuts.into_iter().filter(|cut| *cut > 0 && *cut < count) {
            let [front, back] = cut_at(stage, cut);
            replace(index, 1, &[front, back]);
            if host_offload && SYSTEMS.contains(&placement.system) && !context.is_cpu(stage.lead()) {
                for change in [stepped_elsewhere, saved_elsewhere] {
                    if let (Some(other_front), Some(other_back)) = (change(context, &front), change(context, &back)) {
                        replace(index, 1, &[other_front, back]);
                        replace(index, 1, &[front, other_back]);
                    }
                }
            }
        }
        if let Some(next) = stages.get(index + 1).filter(|next| next.team == stage.team) {
            let joined = over(stage, first, next.layers.last().index() + 1);
            replace(index, 2, &[joined]);
        }
    }
    list
}

/// Moves the last stage of a device to the next one, or the first of the next one to this one,
/// where another stage stays.
fn moved_stages(context: &Context<'_>, stages: &IdVec<StageId, Stage>) -> Vec<Vec<Stage>> {
    let stages = stages.as_slice();
    let mut list = Vec::new();
    for index in 0..stages.len().saturating_sub(1) {
        let (here, next) = (stages[index].lead(), stages[index + 1].lead());
        if here == next {
            continue;
        }
        for (from, to) in [(index, next), (index + 1, here)] {
            if is_alone(stages, from) || context.is_cpu(to) != context.is_cpu(stages[from].lead()) {
                continue;
            }
            let mut all = stages.to_vec();
            all[from] = on_device(context, &stages[from], to);
            list.push(all);
        }
    }
    list
}

/// Whether a stage is the only one of its device.
fn is_alone(stages: &[Stage], index: usize) -> bool {
    stages.iter().filter(|stage| stage.team == stages[index].team).count() == 1
}

/// Moves the only stage of a device to a neighbour's device, so that its own is unused.
fn left_out(context: &Context<'_>, stages: &IdVec<StageId, Stage>) -> Vec<Vec<Stage>> {
    let stages = stages.as_slice();
    let mut list = Vec::new();
    for index in (0..stages.len()).filter(|index| is_alone(stages, *index)) {
        let neighbours = [index.checked_sub(1), Some(index + 1)].into_iter().flatten();
        for to in neighbours.filter_map(|neighbour| stages.get(neighbour)).map(|stage| stage.lead()) {
            let mut all = stages.to_vec();
            all[index] = on_device(context, &stages[index], to);
            list.push(all);
        }
    }
    list
}

/// Moves the first stage to each unused socket, where its device has another stage.
fn first_on_sockets(context: &Context<'_>, stages: &IdVec<StageId, Stage>) -> Vec<Vec<Stage>> {
    let stages = stages.as_slice();
    let [first, next, ..] = stages else { return Vec::new() };
    if first.team != next.team {
        return Vec::new();
    }
    let free = |device: &DeviceId| context.is_cpu(*device) && stages.iter().all(|stage| stage.lead() != *device);
    let moved = |device: DeviceId| {
        let mut all = stages.to_vec();
        all[0] = Stage { optimizer: None, offload: None, ..first.on(device) };
        all
    };
    context.cost.devices().filter(free).map(moved).collect()
}

/// Changes a knob: k, k′ and the head start by one, the slots for offloaded activations, the order
/// of the host's steps, and whether gradients leave.
fn other_knobs(context: &Context<'_>, placement: &Placement) -> Vec<Placement> {
    let with = |knob: Knob, value: Option<u64>| placement.clone().with_option(knob, value);
    let around = |value: u64| [value.checked_sub(1), Some(value + 1)].into_iter().flatten();
    let layers = placement.stages.len() as u64;
    let mut list = Vec::new();
    let shared = placement.shards_parameters();
    let swap = Knob::Swap.of(placement);
    let (resident, fewest) = if shared {
        (Some(placement.resident_stages() as u64), FEWEST_RESIDENT)
    } else {
        (Knob::Resident.of(placement), 1)
    };
    if let Some(resident) = resident {
        let others = around(resident).filter(|other| (fewest..=layers).contains(other));
        let swap = |resident: u64| swap.map(|swap| swap.min(resident));
        list.extend(others.map(|k| with(Knob::Resident, Some(k)).with_option(Knob::Swap, swap(k))));
    }
    if let (Some(resident), Some(swap)) = (Knob::Resident.of(placement), swap) {
        let others = around(swap).filter(|other| (1..=resident).contains(other));
        list.extend(others.map(|swap| with(Knob::Swap, Some(swap))));
    }
    let most = SystemSpec::of(placement.system).largest_head_start();
    let others = around(Knob::HeadStart.of(placement).unwrap_or(0)).filter(|other| *other <= most);
    list.extend(others.map(|head_start| with(Knob::HeadStart, Some(head_start))));
    let slots = slots(context, placement).into_iter().filter(|slots| *slots != placement.offload.slots);
    list.extend(slots.map(|slots| with(Knob::OffloadSlots, slots)));
    let urgent = placement.update.is_urgent();
    let orders = orders(placement).iter().filter(|other| **other != urgent);
    list.extend(orders.map(|urgent| with(Knob::UrgentSteps, Some(u64::from(*urgent)))));
    if Knob::GradientsLeave.is_of(placement.system) {
        let leave = placement.gradients_leave == GradientsLeave::EachMicrobatch;
        list.push(with(Knob::GradientsLeave, Some(u64::from(!leave))));
    }
    list
}
