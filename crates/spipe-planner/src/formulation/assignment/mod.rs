//! Assignment program: how many layers of each run go to each device class, and in which mode.
//!
//! Its relaxation, with fractional layers, bounds the iteration of every placement from below. With
//! whole layers it yields candidates with several stages per device ([`counts`](integral::counts)).

mod chain;
mod columns;
pub(crate) mod compute_bound;
mod host_steps;
pub(crate) mod integral;
mod position;

pub(crate) use crate::formulation::assignment::integral::{
    IntegralOutcome, LayerCounts, Share, SolveLimits, one_class_per_position,
};

use crate::{
    costs::CostSums,
    formulation::{
        assignment::columns::{AssignmentProgram, rate},
        sharded::least as least_of_shared,
        solver::{Minimum, Settings, minimise},
    },
    problem::{Deadline, SYSTEMS, bound::Bound, pins::Pins, tolerances::PROGRAM},
    space::rules::{Permission, SystemRules, Warmup},
};
use spipe_base::Bytes;
use spipe_cost::LayerMemory;
use spipe_plan::{GRADIENT_SLOTS, System};
use std::collections::{BTreeMap, BTreeSet};

/// Limits above which the positions of devices are not distinguished: columns (device × class ×
/// run) and devices.
const LARGEST: usize = 1000;
const MOST_PLACES: usize = 40;

/// Limit on devices above which the program does not decide to how many of them large layers are
/// streamed: that takes one program for each number.
const MOST_SPLIT: usize = 64;

/// Returns a lower bound of the iteration of every placement of `system`, which is weaker if
/// `deadline` has expired.
pub(crate) fn least((costs, pins): (&CostSums<'_>, &Pins), system: System, deadline: Option<&Deadline<'_>>) -> Bound {
    if system.shards_parameters() {
        return least_of_shared((costs, pins), system, deadline).max(compute_bound::of_shared(costs));
    }
    let of = |rules: SystemRules| relaxation(costs, &rules, deadline);
    SystemRules::in_problem(costs, system).into_iter().map(of).fold(Bound::Infeasible, Bound::min)
}

/// Returns a lower bound of the iteration of every placement with one stage per device under any of
/// `systems`.
pub(crate) fn least_of_stages(costs: &CostSums<'_>, systems: &[System]) -> Bound {
    let of_stages = systems.iter().filter(|system| SYSTEMS.contains(system));
    let turns: BTreeSet<Option<Warmup>> =
        of_stages.flat_map(|system| SystemRules::in_problem(costs, *system)).map(|rules| rules.turn).collect();
    let stages = if costs.host_help { SystemRules::HELPED_STAGES } else { SystemRules::STAGES };
    let bounds = turns.into_iter().map(|turn| relaxation(costs, &SystemRules { turn, ..stages }, None));
    bounds.reduce(Bound::min).unwrap_or(Bound::NONE)
}

/// Returns a lower bound of the iteration: the load of the busiest device, link or optimizer
/// if each run of layers may be divided among all devices.
///
/// Every placement is a feasible solution. It has T ≥ m (F_i + B_i) + O_i for each of its devices
/// and T ≥ bytes ÷ rate for each copy engine. Further rows tighten the relaxation:
///
/// - In training, T is at least one pass (forward and backward) of one microbatch through the
///   layers from the first trained one on, each on its fastest device: the next forward there waits
///   for the optimizer step. Gradients of weights are not on this path where backwards are split,
///   and a recompute waits for no gradient.
/// - Large layers are whole: a device holds no more of them than fit ([`AssignmentProgram::whole_layers`]).
/// - Devices wait for the first microbatch ([`AssignmentProgram::fill`]).
/// - Where each device has consecutive layers, every position of the chain has a bound of its own
///   ([`AssignmentProgram::chain_of_places`]).
///
/// Without an answer of the solver, it is one pass alone; after `deadline`, the compute bound.
pub(crate) fn relaxation(costs: &CostSums<'_>, rules: &SystemRules, deadline: Option<&Deadline<'_>>) -> Bound {
    let late = || deadline.is_some_and(Deadline::over);
    if late() {
        return compute_bound::of(costs, rules.computing);
    }
    let classes = classes(costs, rules);
    let chain = chain(costs, rules, &classes);
    if classes.is_empty() || !chain.is_finite() {
        return Bound::Infeasible;
    }
    let devices: usize = classes.iter().map(|class| class.count).sum();
    // A larger program would take longer than its bound is worth.
    let small = devices <= MOST_PLACES && devices * classes.len() * costs.runs.len() <= LARGEST;
    let turn = rules.turns(costs).filter(|_| small);
    let of_part = |classes: &Vec<DeviceClass>| {
        if late() { compute_bound::of(costs, rules.computing) } else { spread(costs, rules, (classes, chain), turn) }
    };
    let parts = streaming_or_not(costs, rules, classes.clone());
    // Where iterations do not wait for each other, one pass bounds none.
    let pass = if costs.training && rules.synchronous { Bound::AtLeast(chain) } else { Bound::NONE };
    parts.iter().map(of_part).fold(Bound::Infeasible, Bound::min).max(pass)
}

/// Returns the minimal load of the busiest resource.
fn spread(
    costs: &CostSums<'_>,
    rules: &SystemRules,
    (classes, chain): (&[DeviceClass], f64),
    turn: Option<Warmup>,
) -> Bound {
    let (vars, spread) = AssignmentProgram::new((costs, rules), classes, (chain, turn), None);
    let settings = Settings { time_limit: costs.program_time, ..Settings::default() };
    match minimise(vars, (spread.rows, spread.busiest.into()), &settings) {
        Minimum { bound, closed: true, .. } => bound.times(spread.unit * (1.0 - PROGRAM)),
        _ => Bound::NONE,
    }
}

/// A class of devices with equal times and bytes.
#[derive(Clone)]
struct DeviceClass {
    /// Devices of the class that the program may use, whichever members they are.
    count: usize,
    members: Vec<usize>,
    /// Only layers whose streaming buffers are smaller than this, in bytes, are streamed to them.
    streams_below: u64,
    /// Bytes that each device holds besides its layers.
    beside: u64,
    /// Rates in GB/s from and to DRAM, of all members together.
    rates: [f64; 2],
}

fn classes(costs: &CostSums<'_>, rules: &SystemRules) -> Vec<DeviceClass> {
    let mut classes: Vec<DeviceClass> = Vec::new();
    for index in (0..costs.devices.len()).filter(|device| rules.computing.allows(*device, costs)) {
        match classes.iter_mut().find(|class| costs.models[class.members[0]] == costs.models[index]) {
            Some(class) => {
                class.members.push(index);
                class.count += 1;
            }
            None => classes.push(DeviceClass {
                count: 1,
                members: vec![index],
                streams_below: u64::MAX,
                beside: 0,
                rates: [0.0; 2],
            }),
        }
    }
    if rules.gradients_leave {
        let alone = classes.iter().map(|class| class.count).sum::<usize>() == 1;
        for class in &mut classes {
            class.beside = passing_gradients(&costs.devices[class.members[0]].bytes, alone);
        }
    }
    for class in &mut classes {
        class.rates = [true, false].map(|inbound| rate(costs, &class.members, inbound));
    }
    classes
}

/// Returns the bytes that a device holds besides its layers where gradients may leave with each
/// microbatch: the gradients of [`GRADIENT_SLOTS`] stages (at most those of all layers), and a
/// workspace.
///
/// A single device has all layers and is charged the largest of them; one of several is charged the
/// smallest. If the first and the last layer share parameters, their gradients do not leave, and
/// only the layers between them count.
fn passing_gradients(layers: &[LayerMemory], alone: bool) -> u64 {
    let of = |layers: &[LayerMemory], bytes: fn(&LayerMemory) -> Bytes| {
        let all = layers.iter().map(|layer| bytes(layer).get());
        if alone { all.max() } else { all.min() }.unwrap_or(0)
    };
    // Gradients that the first and the last layer share do not leave.
    let tied = layers.iter().any(|layer| layer.tied_gradients > Bytes::ZERO);
    let leaving = if tied && alone { layers.get(1..layers.len() - 1).unwrap_or_default() } else { layers };
    let gradients = of(leaving, |layer| layer.gradients);
    let all: u64 = leaving.iter().map(|layer| layer.gradients.get()).sum();
    (GRADIENT_SLOTS * gradients).min(if alone { all } else { gradients }) + of(layers, |layer| layer.workspace)
}

/// Splits a single class of devices to which parameters are streamed: into those that have
/// streaming buffers for a layer of the most frequent size, and `small` devices to which only
/// smaller layers are streamed. Returns both classes for every value of `small`
/// ([`SystemRules::buffers`]).
fn streaming_or_not(costs: &CostSums<'_>, rules: &SystemRules, classes: Vec<DeviceClass>) -> Vec<Vec<DeviceClass>> {
    let [class] = classes.as_slice() else { return vec![classes] };
    if rules.streams == Permission::Forbidden || class.count > MOST_SPLIT || costs.one_program {
        return vec![classes];
    }
    let bytes = &costs.devices[class.members[0]].bytes;
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for layer in bytes {
        *counts.entry(SystemRules::buffers(layer, costs.training)).or_default() += 1;
    }
    let most = counts.iter().max_by_key(|(_, count)| **count).map_or(0, |(buffers, _)| *buffers);
    let part = |small: usize| {
        let with = DeviceClass { count: class.count - small, beside: class.beside + most, ..class.clone() };
        let without = DeviceClass { count: small, streams_below: most, ..class.clone() };
        [with, without].into_iter().filter(|class| class.count > 0).collect()
    };
    (0..=class.count).map(part).collect()
}

/// Returns the time of one microbatch, in ms, through the layers from the first trained one on,
/// each on its fastest device; infinite if some layer runs nowhere.
fn chain(costs: &CostSums<'_>, rules: &SystemRules, classes: &[DeviceClass]) -> f64 {
    let ways = ways(costs, rules, classes);
    if ways.iter().any(|way| way.is_infinite()) {
        return f64::INFINITY;
    }
    let first = (0..costs.layers).find(|layer| costs.context.cost.trained_parameters((*layer).into()) > 0);
    let from = if costs.training { first.unwrap_or(costs.layers) } else { 0 };
    ways[from..].iter().sum()
}

/// Returns the time of one microbatch in each layer, forward and backward, in ms, on the fastest
/// device; infinite for a layer that runs nowhere.
fn ways(costs: &CostSums<'_>, rules: &SystemRules, classes: &[DeviceClass]) -> Vec<f64> {
    let cost = costs.context.cost;
    let way = |layer: usize, class: &DeviceClass| {
        let device = class.members[0];
        let times = costs.devices[device].times[layer]?;
        let input = cost.time(layer.into(), device.into())?.backward_input.to_ms();
        let backward = if rules.splits { input.min(times.backward) } else { times.backward };
        Some(times.forward + backward)
    };
    let fastest = |layer: usize| classes.iter().filter_map(|class| way(layer, class)).fold(f64::INFINITY, f64::min);
    (0..costs.layers).map(fastest).collect()
}
