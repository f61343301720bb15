//! A device that has all layers and streams some of them, case by case: how large the largest layer that is streamed to it is, how many
//! layers the longest streamed stage has, and whether one chunk is there at a time.
//!
//! Each case says how much the device has beside what its layers hold while it computes one of them: parameters and gradients of the largest
//! streamed layer, or of so many layers as the longest stage has, and its workspace. The input of each streamed stage that is
//! computed again stays until then: of r layers in stages of at most s there are r ÷ s inputs at least.
//!
//! An iteration begins with the forward of the first layer and ends with its backward. If that layer is streamed, its gradients have to leave,
//! the host has to step it, and its parameters have to come back before the next one begins. If one chunk is there at a time, nothing arrives
//! while another one is computed.

use crate::formulation::assignment::{Class, columns::Spread, solved, unit};
use crate::{
    costs::{CostSums, HostOffload},
    problem::Deadline,
    space::rules::{Permission, SystemRules},
};
use good_lp::{Expression, constraint, variable, variables};
use spipe_base::{Bytes, LayerId};
use spipe_cost::LayerMemory;

/// Intervals of the layers of the longest streamed stage; the last one has no end.
const LENGTHS: [(usize, Option<usize>); 6] =
    [(1, Some(1)), (2, Some(2)), (3, Some(4)), (5, Some(8)), (9, Some(16)), (17, None)];

/// Beyond so many runs of equal layers only the size of the largest one is told apart.
const MOST_RUNS: usize = 24;

/// For how many layers it is asked what hosts step of those before them.
const MOST_ROWS: usize = 64;

/// Into how many sizes layers are sorted.
const SIZES: usize = 6;

/// How far from the optimum a program may stop.
const GAP: f64 = 1e-3;

/// What a device does that streams in a certain way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Alone {
    /// GiB that each streamed layer holds on all microbatches if it is computed again.
    pub input: f64,
    /// What these inputs come to too much for a first layer whose own is smaller, in GiB.
    pub less: f64,
    /// Whether nothing arrives while a chunk is computed.
    pub serial: bool,
    /// GB per second at which chunks arrive.
    pub rate: f64,
    /// What the first layer waits for after its last gradient, in ms, if it is streamed.
    pub wait: f64,
    /// The shortest way of gradients out and of parameters back, in ms, if anything is streamed.
    pub copies: f64,
    /// Whether the first and the last layer share parameters, so that both are streamed or none of them is.
    pub shares: bool,
}

/// The least iteration, in ms, as far as time allows to find out; infinite if nothing fits, none where there is no such device.
pub(crate) fn least(
    (costs, rules): (&CostSums<'_>, &SystemRules),
    (classes, chain): (&[Class], f64),
    deadline: Option<&Deadline<'_>>,
) -> Option<f64> {
    let [class] = classes else { return None };
    let [member] = class.members[..] else { return None };
    let rounds = rules.in_rounds && !rules.apart && rules.synchronous && rules.streams != Permission::Forbidden;
    if !rounds || !costs.training || costs.devices[member].is_cpu {
        return None;
    }
    let solved = |case: &(Class, Alone), whole: bool| {
        if costs.late(deadline) { 0.0 } else { of_case(costs, rules, (case, chain), whole) }
    };
    let mut cases: Vec<(f64, (Class, Alone))> =
        cases(costs, rules, class).into_iter().map(|case| (solved(&case, false), case)).collect();
    cases.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let mut least = f64::INFINITY;
    for (fractions, case) in cases {
        if fractions >= least {
            break;
        }
        least = least.min(solved(&case, true).max(fractions));
    }
    Some(least)
}

/// Every case with what it leaves of the device.
fn cases(costs: &CostSums<'_>, rules: &SystemRules, class: &Class) -> Vec<(Class, Alone)> {
    let device = &costs.devices[class.members[0]];
    let inputs = || (0..costs.layers).map(|layer| device.input(layer));
    let input = inputs().skip(1).min().unwrap_or(0);
    // The first stage may have a smaller one.
    let credit = costs.microbatches * input.saturating_sub(device.input(0));
    let (wait, copies) = waits(costs, class.members[0]);
    let ends = [0, costs.layers - 1].map(LayerId::from);
    let shares = costs.context.model.tied().iter().any(|group| ends.iter().all(|end| group.contains(end)));
    let rate = class.rates[0];
    let nothing = Alone { input: 0.0, less: 0.0, serial: false, rate, wait, copies: 0.0, shares: false };
    let mut cases = Vec::new();
    if rules.streams == Permission::Free {
        cases.push((Class { streams_below: 0, ..class.clone() }, nothing));
    }
    let few = costs.runs.len() <= MOST_RUNS;
    let lengths: &[(usize, Option<usize>)] = if few { &LENGTHS } else { &[(1, None)] };
    let of_layers = |bytes: fn(&LayerMemory) -> Bytes| device.bytes.iter().map(move |layer| bytes(layer).get());
    let workspace = |least: u64| {
        let large = device.bytes.iter().filter(|layer| SystemRules::buffers(layer, costs.training) >= least);
        large.map(|layer| layer.workspace.get()).min().unwrap_or(0)
    };
    let smallest = of_layers(|layer| layer.parameters).min().unwrap_or(0);
    // Whatever is computed, some chunk is there.
    let busiest = smallest + of_layers(|layer| layer.workspace).max().unwrap_or(0);
    let buffers: Vec<u64> = {
        let mut buffers: Vec<u64> =
            device.bytes.iter().map(|layer| SystemRules::buffers(layer, costs.training)).collect();
        buffers.sort_unstable();
        buffers
    };
    for (least, below) in &sizes(&buffers) {
        for (shortest, longest) in lengths.iter().filter(|(shortest, _)| *shortest <= costs.layers) {
            let several: u64 = buffers[..*shortest].iter().sum();
            let beside = (several + workspace(0)).max(least + workspace(*least)).max(busiest);
            let longest = longest.filter(|_| credit <= beside);
            let less = longest.map_or(0, |_| credit);
            let input =
                longest.map_or(0.0, |longest| costs.microbatches as f64 * Bytes::new(input).to_gib() / longest as f64);
            let copies = if *least > 0 { copies } else { 0.0 };
            // One chunk at a time, or more.
            for serial in [true, false].into_iter().filter(|serial| !serial || rules.one_resident) {
                let class = Class { streams_below: *below, beside: beside - less, ..class.clone() };
                let less = Bytes::new(less).to_gib();
                cases.push((class, Alone { input, less, serial, copies, shares, ..nothing }));
            }
        }
    }
    cases
}

/// What the first layer waits for from its last gradient to its parameters if a host steps it, and for how long the layer copies both that does
/// so in the least time, in ms.
fn waits(costs: &CostSums<'_>, device: usize) -> (f64, f64) {
    let hosts = costs.hosts(device).count();
    let device = &costs.devices[device];
    let times = |layer: usize| {
        let host_offload = |host: usize| HostOffload { optimizer: true, activations: false, host };
        (0..hosts).map(move |host| device.stage_times((layer, layer + 1), 0, host_offload(host)))
    };
    let trained = |layer: usize| device.bytes[layer].gradients.get() > 0;
    let first = times(0).map(|times| times.stepped()).reduce(f64::min).filter(|_| trained(0));
    // Where some are not trained, it may be them that are streamed.
    let all = (0..costs.layers).all(|layer| trained(layer) || device.bytes[layer].parameters.get() == 0);
    let copies = (0..costs.layers).filter(|layer| all && trained(*layer)).flat_map(times);
    let copies = copies.map(|times| times.out + times.back).reduce(f64::min);
    (first.unwrap_or(0.0), copies.unwrap_or(0.0))
}

/// Sizes of the largest streamed layer, each from so many bytes to less than so many.
fn sizes(sorted: &[u64]) -> Vec<(u64, u64)> {
    let mut distinct = sorted.to_vec();
    distinct.dedup();
    let each = distinct.len().div_ceil(SIZES);
    distinct.chunks(each).map(|chunk| (chunk[0], chunk[chunk.len() - 1] + 1)).collect()
}

/// The least iteration of a case, with whole layers or with fractions; infinite if nothing fits, zero if the solver has no answer.
fn of_case(
    costs: &CostSums<'_>,
    rules: &SystemRules,
    ((class, alone), chain): (&(Class, Alone), f64),
    whole: bool,
) -> f64 {
    let mut vars = variables!();
    let busiest = vars.add(variable().min(0.0).name("busiest"));
    let (unit, nothing, classes) = (unit(chain), vec![0; costs.devices.len()], std::slice::from_ref(class));
    let spread = Spread::new((costs, rules), (unit, busiest), None, classes).alone(*alone);
    let mut spread = if whole { spread.whole(&nothing) } else { spread };
    spread.layers(classes, &mut vars);
    solved(spread, vars, (whole.then_some(GAP), costs.program_time))
}

impl Spread<'_, '_> {
    /// The rows of a device that streams in a certain way.
    pub(crate) fn streamed_alone(&mut self, alone: Alone) {
        self.ends_alike(alone);
        self.wait(alone);
    }

    /// While a layer is computed there is its workspace beside all that is held, and what it needs if it is streamed. A device has at least
    /// the part of that which is streamed of its run.
    pub(crate) fn room_to_compute(&mut self, (class, alone): (&Class, Alone), held: &Expression) {
        let whole = Class { beside: 0, ..class.clone() };
        let usable = self.usable(&whole).to_gib() + alone.less;
        for (run, (layer, count)) in self.runs.iter().enumerate() {
            let bytes = &self.costs.devices[class.members[0]].bytes[*layer];
            let buffers = Bytes::new(SystemRules::buffers(bytes, self.costs.training)).to_gib() / *count as f64;
            let shares = self.shares.iter().filter(|(other, _, choice, _)| *other == run && choice.streams);
            let streamed: Expression = shares.map(|(_, _, _, share)| *share).sum();
            self.rows.push(constraint!(held.clone() + buffers * streamed + bytes.workspace.to_gib() <= usable));
        }
    }

    /// The first and the last layer are both streamed or both not, if they share parameters and are in different stages.
    fn ends_alike(&mut self, alone: Alone) {
        let [Some((_, 1)), Some((_, 1))] = [self.runs.first(), self.runs.last()] else { return };
        let streamed = |run: usize| -> Expression {
            let of_run = self.shares.iter().filter(|(other, _, choice, _)| *other == run && choice.streams);
            of_run.map(|(_, _, _, share)| *share).sum()
        };
        if alone.shares && self.runs.len() > 1 {
            self.rows.push(constraint!(streamed(0) == streamed(self.runs.len() - 1)));
        }
    }

    /// If the first layer is streamed, all that is computed comes between its first forward and its step. What the host steps of the first l
    /// layers comes between the last backward and the next forward of the l-th, and what layers from there on compute does not. And
    /// chunks come one by one, if they do.
    fn wait(&mut self, alone: Alone) {
        let first = self.runs.first().filter(|(first, _)| *first == 0).map_or(0, |(_, count)| *count);
        let shares = self.shares.iter().filter(|(run, _, choice, _)| first > 0 && *run == 0 && choice.streams);
        // All of its run are streamed, or it is left open which are.
        let streamed: Expression = shares.map(|(_, _, _, share)| *share).sum();
        let streamed = streamed - (first as f64 - 1.0);
        let waits = streamed.clone() * (alone.wait / self.unit);
        self.rows.push(constraint!(self.computed.clone() + waits <= self.busiest));
        if alone.serial {
            self.rows.push(constraint!(self.serial.clone() <= self.busiest));
        }
        let places = self.runs.iter().enumerate().flat_map(|(run, (_, count))| (0..*count).map(move |at| (run, at)));
        let places: Vec<(usize, usize)> = places.collect();
        let (apart, copies) = (places.len().div_ceil(MOST_ROWS), alone.copies / self.unit);
        for (run, at) in places.iter().rev().step_by(apart) {
            // Anything is streamed, or the first layer is.
            let last = (run + 1, at + 1) == (self.runs.len(), self.runs[*run].1);
            let copied = if last { copies.into() } else { streamed.clone() * copies };
            for again in [false, true] {
                let row = self.stepped_before((*run, *at), again) + copied.clone();
                self.rows.push(constraint!(row <= self.busiest));
            }
        }
    }

    /// What the host steps up to a layer, with what is computed from there on; with what all of its run recompute, less what those before it
    /// may, or without.
    fn stepped_before(&self, (last, at): (usize, usize), again: bool) -> Expression {
        let rate = self.step_rate() * self.unit;
        let step = |layer: usize| {
            let parameters = self.costs.context.cost.trained_parameters(layer.into());
            if rate > 0.0 { parameters as f64 / 1e9 / rate } else { 0.0 }
        };
        let mut sum = Expression::default();
        for (run, _, choice, share) in &self.shares {
            let layer = self.runs[*run].0;
            if *run > last {
                sum.add_mul(self.computed_in(layer, choice), *share);
            } else if choice.steps_on_host {
                sum.add_mul(step(layer), *share);
            }
            if *run == last && again {
                sum.add_mul(self.ms_of_all(self.again(choice, layer)), *share);
            }
        }
        // Those of its run behind this layer may be the ones that are stepped.
        let (layer, count) = self.runs[last];
        let times =
            self.shares.iter().find(|(run, ..)| *run == last).and_then(|(_, _, choice, _)| choice.device.times[layer]);
        let times = times.unwrap_or_default();
        let before = if again { at as f64 * self.ms_of_all(times.forward) } else { 0.0 };
        sum + (count - at) as f64 * self.ms_of_all(times.busy()) - before - (count - 1 - at) as f64 * step(layer)
    }
}
