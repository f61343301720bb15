//! Placements in which all GPUs share every layer: FSDP with parameters on them, ZeRO-Infinity with
//! parameters in DRAM.
//!
//! Any division of the layers is possible, and every stage has choices of its own. Its time depends
//! on the number of layers with each choice, and hardly on which ones. An integer program
//! determines these numbers ([`ShardedProgram`]): for stages of a given length it yields placements, and
//! for any division a bound ([`least`](crate::formulation::sharded::least)).

use crate::{
    bisect::first_of,
    candidates::cuts,
    costs::{CostSums, runs},
    formulation::sharded::{Room, ShardedProgram, Solved},
    hosts::gpus,
    problem::{Deadline, pins::Pins},
    score::sharded::{busiest, estimate},
    space::{
        enumerate::orders,
        rules::{Permission, SystemRules},
        sharded::{Home, Length, ShardedMode, grouped_shares, lengths, shares, units},
    },
};
use rayon::prelude::*;
use spipe_base::{Bytes, LayerRange};
use spipe_plan::{Context, FEWEST_RESIDENT, Knob, Placement, Stage, System, check, footprint, needed};
use std::collections::BTreeSet;

/// Numbers of resident stages that are tried, at most a factor of two apart.
const RESIDENT: [usize; 9] = [2, 3, 4, 6, 8, 16, 32, 64, 128];

/// Numbers of stages into which all layers are cut regardless of runs: stages that recompute keep
/// one input each.
const PIECES: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

/// Limit on simulated placements: half of them are those with the least estimated time, half those
/// with the least load of the busiest device or link.
const MOST_TRIED: usize = 24;

/// Limit on stages that are changed to recompute so that a placement fits. If it lacks more, its program
/// is solved again with less memory.
const MOST_MENDED: usize = 4;

/// Limit on solves of a program, each with less memory if its solution does not fit: the program
/// does not know the order of the stages.
const MOST_TIGHTENED: usize = 4;

/// Number of placements that are simulated with both orders of the host's steps: the first batch.
const BOTH_TRIED: usize = 8;

/// Returns placements with the same choice for all layers, for all numbers of devices and lengths
/// of stages; on the most devices also those that save memory on as few stages as possible, which are
/// gathered for each use, or once for all.
pub(crate) fn candidates(context: &Context<'_>, system: System) -> Option<Vec<Placement>> {
    let runs = runs(context.cost, &|_, _| true);
    let mut placements = Vec::new();
    let first = *gpus(context).first()?;
    let of_length = |length: Length| runs.iter().flat_map(|run| units(*run, length)).collect();
    let mut partitions: Vec<Vec<LayerRange>> = lengths(&runs).map(of_length).collect();
    partitions.extend(PIECES.into_iter().filter_map(|pieces| cuts::balanced(context, first, pieces)));
    let (few, most) = (FEWEST_RESIDENT as usize, shares(context).next_back());
    for shards in shares(context) {
        let choices = ShardedMode::of((system, shards), context);
        for partition in &partitions {
            if Some(shards) == most {
                for resident in BTreeSet::from([few, few.max(partition.len())]) {
                    placements.extend(filled(context, (system, shards, resident), (&choices, partition)));
                }
            }
            let alike = |choice: &ShardedMode| partition.iter().map(|layers| choice.stage(context, *layers)).collect();
            let stages = choices.iter().filter_map(alike);
            placements.extend(stages.filter_map(|stages| placement(context, system, (shards, few), stages)));
        }
    }
    Some(placements)
}

/// Returns placements whose stages are all on the devices, with or without recompute, but for as few of
/// the first ones as memory demands: these have a leaner choice. Where none is needed and the fewest are
/// resident, [`candidates`] has the placement a second time, and [`promising`] counts both.
fn filled(
    context: &Context<'_>,
    (system, shards, resident): (System, usize, usize),
    (choices, partition): (&[ShardedMode], &[LayerRange]),
) -> Vec<Placement> {
    let of = |lean: &ShardedMode, rich: &ShardedMode, count: usize| {
        let choice = |index: usize| if index < count { lean } else { rich };
        let stages = partition.iter().enumerate().map(|(index, layers)| choice(index).stage(context, *layers));
        placement(context, system, (shards, resident), stages.collect::<Option<_>>()?)
    };
    let fits = |placement: Option<Placement>| placement.filter(|placement| check(context, placement).is_ok());
    let rich = choices.iter().enumerate().filter(|(_, choice)| choice.home == Home::Device);
    let mut list = Vec::new();
    for (index, rich) in rich {
        if let Some(all) = fits(of(rich, rich, 0)) {
            list.push(all);
            continue;
        }
        for lean in &choices[..index] {
            let count = first_of((1, partition.len()), |count| fits(of(lean, rich, count)).is_some());
            list.extend(fits(of(lean, rich, count)).filter(|_| count < partition.len()));
        }
    }
    list
}

/// Returns the placements whose programs allow less than `most` ms, as time permits, in ascending
/// order of that bound.
pub(crate) fn placements(
    (costs, pins): (&CostSums<'_>, &Pins),
    (system, most): (System, f64),
    deadline: &Deadline<'_>,
) -> Vec<Placement> {
    let pinned = pins.knob(Knob::Resident).map(|resident| resident as usize);
    let residents = RESIDENT.into_iter().filter(|resident| pinned.is_none() && *resident <= costs.layers.max(2));
    let residents: Vec<usize> = residents.chain(pinned).collect();
    let mut all: Vec<(usize, Length, usize)> = Vec::new();
    // Most devices come first: where time ends early, the others are the less likely ones.
    for shards in grouped_shares(&costs.context, pins).rev() {
        for length in lengths(&costs.runs) {
            all.extend(residents.iter().map(|resident| (shards, length, *resident)));
        }
    }
    // Programs know no order of the copies, so that streamed stages look faster than they are.
    let streams = SystemRules::of(system).streams != Permission::Forbidden;
    let (kept, largest) = (pins.with_all_kept(costs.layers), grouped_shares(&costs.context, pins).next_back());
    let of_division = |(shards, length, resident): (usize, Length, usize)| {
        let pins = [Some(pins), Some(&kept).filter(|kept| streams && Some(shards) == largest && *kept != pins)];
        let of = |pins: &Pins| of_division((costs, pins), (system, shards, most), (length, resident), deadline);
        pins.into_iter().flatten().flat_map(of).collect::<Vec<_>>()
    };
    let found: Vec<Vec<(f64, Placement)>> = all.into_par_iter().map(of_division).collect();
    let mut list: Vec<(f64, Placement)> = found.into_iter().flatten().collect();
    list.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    list.dedup_by(|(_, one), (_, other)| one == other);
    list.into_iter().map(|(_, placement)| placement).collect()
}

/// Returns the placements of stages of `length`, `resident` at a time, shared by `shards` GPUs,
/// with the bound of their program; none after the deadline.
fn of_division(
    (costs, pins): (&CostSums<'_>, &Pins),
    (system, shards, most): (System, usize, f64),
    (length, resident): (Length, usize),
    deadline: &Deadline<'_>,
) -> Vec<(f64, Placement)> {
    let mut list: Vec<(f64, Placement)> = Vec::new();
    if deadline.over() {
        return list;
    }
    let mut program = ShardedProgram::new(costs, pins, (system, shards), Room::Stages { length, resident });
    let mut orders: Vec<Order> = vec![in_turn, reversed, mixed];
    for _ in 0..MOST_TIGHTENED {
        if deadline.over() {
            break;
        }
        let Some(solved) = program.solved().filter(|solved| solved.least < most) else { break };
        let mut lacking: Vec<Bytes> = Vec::new();
        orders.retain(|order| {
            let next = ordered((&costs.context, pins), (system, shards, resident), (&solved, *order));
            let missing = next.as_ref().map_or(Bytes::ZERO, |next| missing(&costs.context, next));
            let new = next.filter(|next| list.iter().all(|(_, other)| other != next));
            list.extend(new.map(|next| (solved.least, next)));
            lacking.extend(Some(missing).filter(|missing| *missing > Bytes::ZERO));
            missing > Bytes::ZERO
        });
        let Some(least) = lacking.into_iter().min() else { break };
        program.leave(least);
    }
    list
}

/// Orders the choices of a run's stages.
type Order = fn(&[(ShardedMode, usize)]) -> Vec<ShardedMode>;

/// Returns the placement of a solution, repaired if it lacks little.
fn ordered(
    (context, pins): (&Context<'_>, &Pins),
    (system, shards, resident): (System, usize, usize),
    (Solved { runs, .. }, order): (&Solved, Order),
) -> Option<Placement> {
    let each = runs.iter().flat_map(|run| run.units.iter().zip(order(&run.choices)));
    let stages: Option<Vec<Stage>> = each.map(|(layers, choice)| choice.stage(context, *layers)).collect();
    let placement = placement(context, system, (shards, resident), stages?)?;
    Some(made_to_fit(context, pins.grouped(placement)))
}

/// Returns the largest shortage of memory on any GPU.
fn missing(context: &Context<'_>, placement: &Placement) -> Bytes {
    let gpus = gpus(context).into_iter().map(|gpu| context.hardware.devices()[gpu].memory);
    let needs = footprint(context, placement);
    let missing =
        gpus.map(|memory| needed(&needs, memory).saturating_sub(context.hardware.memories()[memory].usable()));
    missing.max().unwrap_or_default()
}

/// Repairs `placement` by recompute in a few more stages; returns it unchanged if this does not
/// suffice.
fn made_to_fit(context: &Context<'_>, placement: Placement) -> Placement {
    let mut fitting = placement.clone();
    for _ in 0..MOST_MENDED {
        if check(context, &fitting).is_ok() {
            return fitting;
        }
        let saves = |stage: &&mut Stage| stage.recomputed == 0 && context.backward_of(stage.layers).is_some();
        // The first stage keeps almost nothing.
        let Some(first) = fitting.stages.iter_mut().skip(1).find(saves) else { break };
        *first = first.with_everything_recomputed();
    }
    if check(context, &fitting).is_ok() { fitting } else { placement }
}

/// Returns the placements of `list` that fit and are most promising, or all of it if none fits. If
/// the host updates several stages, it first updates those that the next iteration needs first; the
/// first few placements are also returned with the other order.
pub(crate) fn promising((context, pins): (&Context<'_>, &Pins), list: Vec<Placement>) -> Vec<Placement> {
    let fits = |placement: &&Placement| check(context, placement).is_ok();
    let rated = |placement: &Placement| (estimate(context, placement), busiest(context, placement));
    let mut fitting: Vec<((f64, f64), Placement)> =
        list.par_iter().filter(fits).map(|placement| (rated(placement), placement.clone())).collect();
    fitting.sort_by(|((one, _), _), ((other, _), _)| one.total_cmp(other));
    // With many busy devices and links the estimate may be wrong; the load of the busiest is a
    // second criterion.
    let mut others = fitting.split_off(fitting.len().min(MOST_TRIED / 2));
    others.sort_by(|((_, one), _), ((_, other), _)| one.total_cmp(other));
    fitting.extend(others);
    fitting.truncate(MOST_TRIED);
    let chosen = if fitting.is_empty() { list } else { fitting.into_iter().map(|(_, placement)| placement).collect() };
    let pinned = pins.knob(Knob::UrgentSteps).map(|pinned| pinned > 0);
    let orders = |(place, placement): (usize, &Placement)| -> Vec<bool> {
        match (pinned, orders(placement).contains(&true)) {
            (Some(urgent), _) => vec![urgent],
            (None, true) if place < BOTH_TRIED => vec![true, false],
            (None, may) => vec![may],
        }
    };
    let in_order =
        |placement: &Placement, urgent_steps: bool| placement.clone().with(Knob::UrgentSteps, u64::from(urgent_steps));
    let each = chosen.iter().enumerate();
    each.flat_map(|it| orders(it).into_iter().map(move |urgent| in_order(it.1, urgent))).collect()
}

fn placement(
    context: &Context<'_>,
    system: System,
    (shards, resident): (usize, usize),
    stages: Vec<Stage>,
) -> Option<Placement> {
    let resident = Some(resident as u64).filter(|resident| *resident > FEWEST_RESIDENT);
    let placement = Placement::new(system, stages).over_gpus(context.hardware, Some(shards as u64));
    (!placement.stages.is_empty()).then(|| placement.with_option(Knob::Resident, resident))
}

/// Orders the stages of a run by choice, those with recompute first: they run before the others'
/// activations are saved.
fn in_turn(counts: &[(ShardedMode, usize)]) -> Vec<ShardedMode> {
    let mut list = listed(counts.iter());
    list.sort_by_key(|choice| !choice.recomputed);
    list
}

/// Does the same with the homes in reverse order.
fn reversed(counts: &[(ShardedMode, usize)]) -> Vec<ShardedMode> {
    let mut list = listed(counts.iter().rev());
    list.sort_by_key(|choice| !choice.recomputed);
    list
}

fn listed<'a>(counts: impl Iterator<Item = &'a (ShardedMode, usize)>) -> Vec<ShardedMode> {
    counts.flat_map(|(choice, count)| std::iter::repeat_n(*choice, *count)).collect()
}

/// Spreads each choice evenly over the run. The last stage is one that saves, if any does, so that
/// its activations do not take memory from the others' recompute.
fn mixed(counts: &[(ShardedMode, usize)]) -> Vec<ShardedMode> {
    let place = |count: usize, index: usize| (2 * index + 1) as f64 / (2 * count) as f64;
    let each = |(choice, count): &(ShardedMode, usize)| {
        let (choice, count) = (*choice, *count);
        (0..count).map(move |index| (place(count, index), choice))
    };
    let mut list: Vec<(f64, ShardedMode)> = counts.iter().flat_map(each).collect();
    list.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let mut list: Vec<ShardedMode> = list.into_iter().map(|(_, choice)| choice).collect();
    if let Some(saves) = list.iter().rposition(|choice| !choice.recomputed) {
        let last = list.remove(saves);
        list.push(last);
    }
    list
}
