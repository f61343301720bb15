//! A lower bound for every placement at once: layers may be cut into fractions. With whole layers the same program is where
//! placements with several stages on a device come from ([`counts`]).

mod columns;
pub(crate) mod compute_bound;
mod host_steps;
pub(crate) mod integral;
mod pigeonhole;
mod positions;
mod single_gpu;

pub(crate) use crate::formulation::assignment::integral::{Counts, Limits, Share, Whole, seated};

use crate::formulation::assignment::columns::{Spread, rate};
use crate::{
    costs::{CostSums, alike},
    formulation::{
        sharded::least as least_of_shared,
        solver::{Answer, Settings, solve},
    },
    problem::{Deadline, SYSTEMS, pins::Pins},
    space::rules::{Permission, SystemRules, Warmup},
};
use good_lp::{ProblemVariables, SolverModel, highs, variable, variables};
use spipe_base::Bytes;
use spipe_cost::LayerMemory;
use spipe_plan::{Family, GRADIENT_SLOTS, System};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Beyond so many shares of runs of layers, or so many devices, the places of devices are not told apart.
const LARGEST: usize = 1000;
const MOST_PLACES: usize = 40;

/// Beyond so many devices it is left open which layers are streamed to how many of them.
const MOST_SPLIT: usize = 64;

/// The least iteration of any placement of `system`, in ms, as far as time allows to find out; infinite if none fits.
pub(crate) fn least((costs, pins): (&CostSums<'_>, &Pins), system: System, deadline: Option<&Deadline<'_>>) -> f64 {
    let stopped = deadline.is_some_and(Deadline::stopped);
    if system.family() == Family::Sharded {
        let least = if stopped { 0.0 } else { least_of_shared((costs, pins), system, deadline) };
        return least.max(compute_bound::of_shared(costs));
    }
    let of = |rules: SystemRules| {
        let late = stopped || costs.late(deadline);
        if late { compute_bound::of(costs, rules.computing) } else { relaxation(costs, &rules, deadline) }
    };
    SystemRules::in_problem(costs, system).into_iter().map(of).fold(f64::INFINITY, f64::min)
}

/// The least iteration of any placement with one stage per device, in ms, whichever of `systems` it has.
pub(crate) fn least_of_stages(costs: &CostSums<'_>, systems: &[System]) -> f64 {
    let of_stages = systems.iter().filter(|system| SYSTEMS.contains(system));
    let turns: BTreeSet<Option<Warmup>> =
        of_stages.flat_map(|system| SystemRules::in_problem(costs, *system)).map(|rules| rules.turn).collect();
    let stages = SystemRules::of_stages(costs.host_help);
    let bounds = turns.into_iter().map(|turn| relaxation(costs, &SystemRules { turn, ..stages }, None));
    bounds.reduce(f64::min).unwrap_or(0.0)
}

/// The least iteration, in ms, if each run of layers could be spread over all devices: the time for which the busiest
/// device, link or optimizer is busy. Every placement has T ≥ m (F_i + B_i) + O_i for each of its devices, T ≥ bytes ÷ rate
/// for each copy engine, and is one way to spread the layers.
///
/// In training, T is also at least one pass of one microbatch, forward and backward, through the layers from the first
/// trained one on, each on its fastest device: the next iteration's forward there waits for the step. Where backwards are
/// split, gradients of weights are not on that way, and a recompute waits for no gradient.
///
/// Layers are whole: of those that need more than a third of a device, it has two at most, some device has the largest one, and some
/// device has one more than all can have ([`crowded`]). Devices wait for the first microbatch ([`Spread::fill`]).
///
/// Where each device has neighbouring layers, every place in the chain of devices has a bound of its own ([`chain_of_places`]).
///
/// Infinite if nothing fits; no more than that pass if the solver has no answer, or time is over.
pub(crate) fn relaxation(costs: &CostSums<'_>, rules: &SystemRules, deadline: Option<&Deadline<'_>>) -> f64 {
    let classes = classes(costs, rules);
    let chain = chain(costs, rules, &classes);
    if classes.is_empty() || !chain.is_finite() {
        return f64::INFINITY;
    }
    let devices: usize = classes.iter().map(|class| class.count).sum();
    // A large program would take longer than the bound is worth.
    let small = devices <= MOST_PLACES && devices * classes.len() * costs.runs.len() <= LARGEST;
    let turn = rules.turns(costs).filter(|_| small);
    let of_part = |classes: &Vec<Class>| spread(costs, rules, (classes, chain), turn);
    let parts = streaming_or_not(costs, rules, classes.clone());
    let least = parts.iter().map(of_part).fold(f64::INFINITY, f64::min).max(chain_or_zero(costs, rules, chain));
    let alone = single_gpu::least((costs, rules), (&classes, chain), deadline).unwrap_or(0.0);
    least.max(alone).max(pigeonhole::least(costs, rules, (&classes, chain)))
}

/// The least time for which the busiest is busy; zero if the solver has no answer.
fn spread(costs: &CostSums<'_>, rules: &SystemRules, (classes, chain): (&[Class], f64), turn: Option<Warmup>) -> f64 {
    let mut vars = variables!();
    let busiest = vars.add(variable().min(0.0).name("busiest"));
    let unit = unit(chain);
    let mut spread = Spread::new((costs, rules), (unit, busiest), turn, classes);
    spread.layers(classes, &mut vars);
    spread.fill(classes);
    solved(spread, vars, (None, costs.program_time))
}

/// The least time of the busiest, in ms, where layers are whole to a gap; infinite if nothing fits, zero if the solver has no answer in so
/// much time.
fn solved(spread: Spread<'_, '_>, vars: ProblemVariables, (gap, time_limit): (Option<f64>, Duration)) -> f64 {
    let (busiest, unit) = (spread.busiest, spread.unit);
    let mut problem = vars.minimise(busiest).using(highs);
    for row in spread.rows {
        problem.add_constraint(row);
    }
    let settings = Settings { gap: gap.unwrap_or(0.0), time_limit, ..Settings::default() };
    // The solver's tolerance is 10⁻⁷ of numbers around one.
    let off = gap.map_or(1e-6, |gap| 2.0 * gap);
    match solve(problem, &settings) {
        Answer::Solved(solution) => good_lp::Solution::value(&solution, busiest) * unit * (1.0 - off),
        Answer::Infeasible => f64::INFINITY,
        _ => 0.0,
    }
}

/// How many ms are 1 in a program, for numbers around one.
fn unit(chain: f64) -> f64 {
    if chain > 0.0 { chain } else { 1.0 }
}

/// The chain bounds an iteration only where iterations wait for each other.
fn chain_or_zero(costs: &CostSums<'_>, rules: &SystemRules, chain: f64) -> f64 {
    if costs.training && rules.synchronous { chain } else { 0.0 }
}

/// Devices that compute alike.
#[derive(Clone)]
struct Class {
    /// So many of these, whichever they are.
    count: usize,
    members: Vec<usize>,
    /// Only layers that need less room than that for their copies are streamed to them.
    streams_below: u64,
    /// Bytes that each of them holds beside its layers.
    beside: u64,
    /// GB per second to and from DRAM, for all members together.
    rates: [f64; 2],
}

fn classes(costs: &CostSums<'_>, rules: &SystemRules) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for (index, device) in costs.devices.iter().enumerate() {
        if !rules.computing.allows(index, costs) {
            continue;
        }
        match classes.iter_mut().find(|class| alike(&costs.devices[class.members[0]], device)) {
            Some(class) => {
                class.members.push(index);
                class.count += 1;
            }
            None => classes.push(Class {
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

/// What a device holds beside its layers where gradients may leave: those of two stages, or of all if these are less, and what its layers
/// work with. One that is alone has all layers, another one perhaps only the smallest. Where the first and the last layer share parameters,
/// the others are taken to be alike: in a stage with an end they do not leave.
fn passing_gradients(layers: &[LayerMemory], alone: bool) -> u64 {
    let of = |layers: &[LayerMemory], bytes: fn(&LayerMemory) -> Bytes| {
        let all = layers.iter().map(|layer| bytes(layer).get());
        if alone { all.max() } else { all.min() }.unwrap_or(0)
    };
    // Gradients that both ends share do not leave.
    let tied = layers.iter().any(|layer| layer.tied_gradients > Bytes::ZERO);
    let leaving = if tied && alone { layers.get(1..layers.len() - 1).unwrap_or_default() } else { layers };
    let gradients = of(leaving, |layer| layer.gradients);
    let all: u64 = leaving.iter().map(|layer| layer.gradients.get()).sum();
    (GRADIENT_SLOTS * gradients).min(if alone { all } else { gradients }) + of(layers, |layer| layer.workspace)
}

/// Where parameters are streamed to devices that are all alike: for each number of those to which none of the larger layers is, both
/// classes with what is held beside layers ([`SystemRules::buffers`]).
fn streaming_or_not(costs: &CostSums<'_>, rules: &SystemRules, classes: Vec<Class>) -> Vec<Vec<Class>> {
    let [class] = classes.as_slice() else { return vec![classes] };
    if rules.streams == Permission::Forbidden || class.count > MOST_SPLIT {
        return vec![classes];
    }
    let bytes = &costs.devices[class.members[0]].bytes;
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for layer in bytes {
        *counts.entry(SystemRules::buffers(layer, costs.training)).or_default() += 1;
    }
    let most = counts.iter().max_by_key(|(_, count)| **count).map_or(0, |(buffers, _)| *buffers);
    let part = |small: usize| {
        let with = Class { count: class.count - small, beside: class.beside + most, ..class.clone() };
        let without = Class { count: small, streams_below: most, ..class.clone() };
        [with, without].into_iter().filter(|class| class.count > 0).collect()
    };
    (0..=class.count).map(part).collect()
}

/// One microbatch's way through the layers from the first trained one on, each on its fastest device; infinite if some layer
/// runs nowhere.
fn chain(costs: &CostSums<'_>, rules: &SystemRules, classes: &[Class]) -> f64 {
    let ways = ways(costs, rules, classes);
    if ways.iter().any(|way| way.is_infinite()) {
        return f64::INFINITY;
    }
    let first = (0..costs.layers).find(|layer| costs.context.cost.trained_parameters((*layer).into()) > 0);
    let from = if costs.training { first.unwrap_or(costs.layers) } else { 0 };
    ways[from..].iter().sum()
}

/// What one microbatch takes in each layer, forward and backward, on the fastest device; infinite for one that runs nowhere.
fn ways(costs: &CostSums<'_>, rules: &SystemRules, classes: &[Class]) -> Vec<f64> {
    let cost = costs.context.cost;
    let way = |layer: usize, class: &Class| {
        let device = class.members[0];
        let times = costs.devices[device].times[layer]?;
        let input = cost.time(layer.into(), device.into())?.backward_input.to_ms();
        let backward = if rules.splits { input.min(times.backward) } else { times.backward };
        Some(times.forward + backward)
    };
    let fastest = |layer: usize| classes.iter().filter_map(|class| way(layer, class)).fold(f64::INFINITY, f64::min);
    (0..costs.layers).map(fastest).collect()
}
