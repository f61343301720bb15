//! Label-setting dynamic program over partitions, from the last stage to the first: decides whether
//! a subproblem has a partition that meets lower bounds for a given iteration.
//!
//! Notation: m microbatches, K of them in flight on a stage; F, R (recompute) and B of a stage; a
//! and g, the transfers over the boundary behind it. Every cycle of the event graph that spans one
//! iteration is a lower bound. The longest paths through a stage and all stages behind it are the
//! following, with those of the next stage marked ′:
//!
//! ```text
//! U  first microbatch, there and back: the longer of
//!        F + a + U′ + g + B           K F + R + B         (last stage: F + R + B)
//! L  last microbatch, there and back: the longer of
//!        F + a + L′ + g + B           F + K (R + B)       (last stage: F + R + B)
//! V  from the first one's arrival to the last one's gradient: the longest of
//!        m (F + R + B)                F + a + V′ + g + B
//!        U + (m − K) F + (m − 1)(R + B)
//!        (m − 1) F + (m − K)(R + B) + L
//!        U + Z(m − K − 1) + L         if m > K
//! Z  Z(n): from a forward between the first and the last to the backward that the forward of
//!    n microbatches later follows, with d more in flight here than behind: the longest of
//!        F + R + B                    if n = 1
//!        Z(k) + Z(n − k)              F + a + Z′(n − d) + g + B
//! X  from the last one's arrival to the first one's gradient in the next iteration: the longest of
//!        F + a + X′ + g + B           U + L + the stage's step
//! ```
//!
//! An iteration takes at least
//!
//! - V plus the step on the stage's own device, or plus gradients out, the step and parameters back
//!   if it goes to a socket;
//! - X′ + g + B + Z(m − K − 1) + F + a, if m > K;
//! - m F in inference.
//!
//! Sockets share the steps: those of all stages together take no longer than the iteration. The order
//! in which a socket updates several stages is left to the event graph.
//!
//! A label has these path lengths and the bytes in host memories: nothing else of the stages behind
//! matters. Several labels may be best in V, X or the steps of the sockets. The [`LabelLimits`] limits how many
//! are kept; the others are merged into one that is as good as both, so that a refusal is certain.
//! Last stages that subproblems have in common are evaluated once.

mod backtrack;
mod label;
pub(crate) mod partitioner;

use crate::{
    bisect::first_of,
    bounds::partition_dp::{
        backtrack::trace,
        label::{Label, LabelSet, SOCKETS, Suffix, TurnCounts, Turns},
        partitioner::{Partitioner, some},
    },
    costs::{CostSums, DeviceSums, HostOffload, StageSlot, StageTimes},
    problem::{Deadline, tolerances::ROUNDING},
    space::subproblem::{DecidedPartition, Subproblem},
};
use rayon::prelude::*;
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

pub(crate) use crate::bounds::partition_dp::label::LabelLimits;

/// Number of layers above which fewer labels are kept, since the work grows with the square of both, and
/// the least number kept.
const MANY: usize = 250;
const FEWEST: usize = 4;

/// A stage with its labels by start layer, in front of the stages behind it.
struct StageNode<'n> {
    stage_slot: StageSlot,
    ways: Vec<LabelSet>,
    behind: Option<&'n Self>,
}

/// Slot of a stage in a subproblem.
#[derive(Clone, Copy)]
struct StagePlace {
    stage_slot: StageSlot,
    /// First and last layer at which it may start.
    first: usize,
    last: usize,
}

/// One choice for a stage.
struct StageChoice {
    host_offload: HostOffload,
    recomputed: usize,
    times: StageTimes,
}

/// Data of a stage that does not depend on its layers.
struct At<'d> {
    stage_slot: StageSlot,
    device: &'d DeviceSums,
    /// Host offloads it may have, each with the least recompute of every range of layers.
    choices: Vec<(HostOffload, &'d [u16])>,
    /// Socket that it runs on, if any.
    home: Option<usize>,
    /// Both transfers over the boundary behind it, in ms, by the layer after the boundary.
    wires: Vec<(f64, f64)>,
    /// Microbatches in flight here minus those behind; none if negative.
    fewer: Option<usize>,
    /// Microbatches between its first and its last one in flight, if any.
    between: Option<TurnCounts>,
}

/// The dynamic program for one iteration time.
pub(crate) struct PartitionSearch<'d, 'a> {
    costs: &'d CostSums<'a>,
    partitioner: &'d Partitioner<'d, 'a>,
    limit: f64,
    /// With the slack in ms.
    grain: (LabelLimits, f64),
    /// By layer, the least time of one microbatch through all earlier layers and back, in ms. A
    /// stage waits for it before its first pass and after its last one.
    before: Vec<f64>,
    /// Number of sockets, those that are distinguished, and the usable bytes of their memories.
    all_sockets: f64,
    sockets: Vec<usize>,
    usable: [u64; SOCKETS],
}

impl<'d, 'a> PartitionSearch<'d, 'a> {
    pub fn new(
        costs: &'d CostSums<'a>,
        partitioner: &'d Partitioner<'d, 'a>,
        (limit, grain): (f64, LabelLimits),
    ) -> Self {
        // The work grows with the square of the layers and of the labels.
        let most = (grain.most * MANY / costs.layers.max(MANY)).max(FEWEST);
        let grain = LabelLimits { most, ..grain };
        let is_socket = |device: &usize| costs.devices[*device].is_cpu;
        let mut sockets: Vec<usize> = (0..costs.devices.len()).filter(is_socket).collect();
        let all_sockets = sockets.len() as f64;
        sockets.truncate(SOCKETS);
        let mut usable = [u64::MAX; SOCKETS];
        for (usable, socket) in usable.iter_mut().zip(&sockets) {
            *usable = costs.devices[*socket].usable;
        }
        Self {
            costs,
            partitioner,
            limit: limit * (1.0 + ROUNDING),
            grain: (grain, limit * grain.slack),
            before: before(costs),
            all_sockets,
            sockets,
            usable,
        }
    }

    /// Returns the result of each subproblem, in order; none for those that the deadline left out.
    pub fn all(&self, cases: &[&Subproblem], deadline: Option<&Deadline<'_>>) -> Vec<Option<Option<DecidedPartition>>> {
        let group: Vec<usize> = (0..cases.len()).filter(|case| cases[*case].stages() <= self.costs.layers).collect();
        let mut list: Vec<Option<Option<DecidedPartition>>> =
            cases.iter().map(|case| (case.stages() > self.costs.layers).then_some(None)).collect();
        let places: Vec<Vec<StagePlace>> = cases.iter().map(|case| self.backwards(case)).collect();
        for (case, divided) in self.visit((cases, &places), group, (0, None), deadline) {
            list[case] = Some(divided);
        }
        list
    }

    /// Returns the slots of a subproblem, last stage first. Interchangeable devices are put in one
    /// order, so that subproblems share as many last stages as possible.
    fn backwards(&self, case: &Subproblem) -> Vec<StagePlace> {
        let mut used: BTreeMap<usize, usize> = BTreeMap::new();
        let starts = self.starts(case);
        let ordered = |(stage, stage_slot): (usize, &StageSlot)| {
            let class = self.partitioner.class(stage_slot.device);
            let next = used.entry(class[0]).or_default();
            let device = class[*next];
            *next += 1;
            StagePlace { stage_slot: StageSlot { device, ..*stage_slot }, first: stage, last: starts[stage] }
        };
        case.stage_slots.iter().enumerate().rev().map(ordered).collect()
    }

    /// Returns the last layer at which each stage can start: earlier stages have no time for more.
    fn starts(&self, case: &Subproblem) -> Vec<usize> {
        let next = |start: &mut usize, stage_slot: &StageSlot| {
            let here = *start;
            *start = if here < self.costs.layers { self.farthest(*stage_slot, here).max(here) } else { here };
            Some(here)
        };
        case.stage_slots.iter().scan(0, next).collect()
    }

    /// Evaluates the subproblems of `group`, whose last `depth` stages are those of `behind`.
    fn visit(
        &self,
        (cases, places): (&[&Subproblem], &[Vec<StagePlace>]),
        group: Vec<usize>,
        (depth, behind): (usize, Option<&StageNode<'_>>),
        deadline: Option<&Deadline<'_>>,
    ) -> Vec<(usize, Option<DecidedPartition>)> {
        if deadline.is_some_and(Deadline::over) {
            return Vec::new();
        }
        let mut by_slot: BTreeMap<StageSlot, Vec<usize>> = BTreeMap::new();
        for case in group {
            by_slot.entry(places[case][depth].stage_slot).or_default().push(case);
        }
        let groups: Vec<(StageSlot, Vec<usize>)> = by_slot.into_iter().collect();
        let of_group = |(stage_slot, group): (StageSlot, Vec<usize>)| {
            let first = group.iter().map(|case| places[*case][depth].first).min().unwrap_or(0);
            let last = group.iter().map(|case| places[*case][depth].last).max().unwrap_or(0);
            let Some(ways) = self.ways(StagePlace { stage_slot, first, last }, behind, deadline) else {
                return Vec::new();
            };
            let node = StageNode { stage_slot, ways, behind };
            if stage_slot.first {
                return group.into_iter().map(|case| (case, trace(cases[case], &node, self.all_sockets))).collect();
            }
            if node.ways.iter().all(|ways| ways.list.is_empty()) {
                return group.into_iter().map(|case| (case, None)).collect();
            }
            self.visit((cases, places), group, (depth + 1, Some(&node)), deadline)
        };
        groups.into_par_iter().flat_map_iter(of_group).collect()
    }

    fn at(&self, stage_slot: StageSlot, behind: Option<&StageNode<'_>>) -> Option<At<'d>> {
        let device = &self.costs.devices[stage_slot.device];
        let next = behind.map(|behind| behind.stage_slot.device);
        let fewer = stage_slot.in_flight.checked_sub(behind.map_or(0, |behind| behind.stage_slot.in_flight));
        let wires = |end: usize| match (next, end) {
            (None, _) | (_, 0) => (0.0, 0.0),
            (Some(next), end) => self.costs.transfers((stage_slot.device, next), end),
        };
        Some(At {
            stage_slot,
            device,
            choices: self.partitioner.choices(stage_slot)?,
            home: self.slot(stage_slot.device),
            wires: (0..=self.costs.layers).map(wires).collect(),
            fewer: fewer.and_then(|fewer| usize::try_from(fewer).ok()),
            between: (self.costs.microbatches - stage_slot.in_flight).checked_sub(1).map(TurnCounts::new),
        })
    }

    /// Returns the index of a distinguished socket.
    fn slot(&self, device: usize) -> Option<usize> {
        self.sockets.iter().position(|socket| *socket == device)
    }

    /// Returns whether gradients reach the first stage, so that stages wait for each other.
    const fn cycles(&self) -> bool {
        self.costs.training && self.costs.frozen == 0
    }

    /// Returns the labels of a stage by start layer; none if the deadline expired.
    fn ways(
        &self,
        place: StagePlace,
        behind: Option<&StageNode<'_>>,
        deadline: Option<&Deadline<'_>>,
    ) -> Option<Vec<LabelSet>> {
        let layers = self.costs.layers;
        let Some(at) = self.at(place.stage_slot, behind) else { return Some(vec![LabelSet::default(); layers + 1]) };
        let starts = if place.stage_slot.first { 0..=0 } else { place.first.max(1)..=place.last.min(layers - 1) };
        let of_start = |from: usize| {
            if deadline.is_some_and(Deadline::over) {
                return None;
            }
            Some(if starts.contains(&from) { self.ways_from(&at, from, behind) } else { LabelSet::default() })
        };
        (0..=layers).into_par_iter().map(of_start).collect()
    }

    /// Returns the labels of a stage that starts at layer `from`.
    fn ways_from(&self, at: &At<'_>, from: usize, behind: Option<&StageNode<'_>>) -> LabelSet {
        let mut ways = LabelSet::default();
        let nearest = if behind.is_none() { self.costs.layers } else { from + 1 };
        for to in nearest..=self.farthest(at.stage_slot, from) {
            let next: &[Label] = behind.map_or(&[], |behind| &behind.ways[to].list);
            if behind.is_some() && next.is_empty() {
                continue;
            }
            self.choices(at, (from, to), |choice| {
                let StageChoice { host_offload, recomputed, .. } = choice;
                let mut take = |next: usize, rest: Option<&Suffix>| {
                    if let Some(behind) = self.through(at, (from, to), &choice, rest) {
                        ways.keep(Label { behind, to, next, host_offload, recomputed }, self.grain);
                    }
                };
                if behind.is_none() {
                    take(0, None);
                }
                next.iter().enumerate().for_each(|(index, way)| take(index, Some(&way.behind)));
            });
        }
        ways
    }

    /// Returns the last layer at which a stage that starts at `from` may end, by its bytes and the
    /// work of its passes.
    fn farthest(&self, stage_slot: StageSlot, from: usize) -> usize {
        let (device, m) = (&self.costs.devices[stage_slot.device], self.costs.microbatches as f64);
        let holds = |to: usize| {
            device.able(from, to)
                && device.state(from, to, stage_slot.host_offload) <= device.usable
                && m * device.pass((from, to), self.costs.training) + self.before[from] <= self.limit
        };
        // Each condition stays violated once it is violated.
        first_of((from + 1, self.costs.layers + 1), |to| !holds(to)) - 1
    }

    /// Passes to `take` the choices for layers `from..to` that meet the bounds of the stage alone.
    fn choices(&self, at: &At<'_>, (from, to): (usize, usize), mut take: impl FnMut(StageChoice)) {
        let m = self.costs.microbatches;
        let index = from * (self.costs.layers + 1) + to;
        for (host_offload, table) in &at.choices {
            let Some(mut recomputed) = some(table[index]) else { continue };
            if host_offload.activations {
                // Activations that fit on the device need not leave it.
                let stays = host_offload.without_activations();
                let stays = at
                    .choices
                    .iter()
                    .find(|(host_offload, _)| *host_offload == stays)
                    .and_then(|(_, table)| some(table[index]));
                match self.leaving(at, (from, to), (*host_offload, recomputed)) {
                    Some(enough) if stays.is_none_or(|stays| stays > enough) => recomputed = enough,
                    _ => continue,
                }
            } else if at.device.link_time(*host_offload, m, (from, to), recomputed) > self.limit {
                continue;
            }
            let times = at.device.stage_times((from, to), recomputed, *host_offload);
            let choice = StageChoice { host_offload: *host_offload, recomputed, times };
            let alone = if self.costs.training {
                m as f64 * times.busy() + choice.times.stepped()
            } else {
                m as f64 * times.forward
            };
            if alone <= self.limit {
                take(choice);
            }
        }
    }

    /// Returns the least recompute from `least` on with which offloaded activations meet the limit
    /// on their link.
    fn leaving(
        &self,
        at: &At<'_>,
        (from, to): (usize, usize),
        (host_offload, least): (HostOffload, usize),
    ) -> Option<usize> {
        let (device, m) = (at.device, self.costs.microbatches);
        let meets = |recomputed: usize| device.link_time(host_offload, m, (from, to), recomputed) <= self.limit;
        if meets(least) {
            return Some(least);
        }
        let (_, most) = device.recomputes(self.costs.training, from, to)?;
        // Beyond the first, each recomputed layer reduces what is offloaded.
        meets(most).then(|| first_of(((least + 1).min(most), most), meets))
    }

    /// Extends the label `next` by a stage; none if a bound is violated.
    fn through(
        &self,
        at: &At<'_>,
        (from, to): (usize, usize),
        choice: &StageChoice,
        next: Option<&Suffix>,
    ) -> Option<Suffix> {
        let held = self.held(at, (from, to), choice, next)?;
        if !self.cycles() {
            return Some(Suffix { held, ..Suffix::NOTHING });
        }
        let (times, wires) = (&choice.times, at.wires[to]);
        let mut behind = match next {
            Some(next) => self.onwards(at, (times, wires), next)?,
            None => {
                let (busy, m) = (times.busy(), self.costs.microbatches as f64);
                Suffix { first: busy, back: busy, passes: m * busy, turns: Turns::staying(busy), ..Suffix::NOTHING }
            }
        };
        behind.between = behind.between.max(behind.first + behind.back + times.stepped());
        behind.stepped += if choice.host_offload.optimizer { times.step } else { 0.0 };
        let passed = behind.passes + times.stepped().max(self.before[from]);
        let met = passed <= self.limit && behind.stepped <= self.all_sockets * self.limit;
        met.then_some(Suffix { held, ..behind })
    }

    /// Returns the bytes in host memories; none where they do not fit. A stage that shares a memory
    /// may recompute more than it would alone, so the smaller need counts.
    fn held(
        &self,
        at: &At<'_>,
        (from, to): (usize, usize),
        choice: &StageChoice,
        next: Option<&Suffix>,
    ) -> Option<[u64; SOCKETS]> {
        let mut held = next.map_or([0; SOCKETS], |next| next.held);
        let (_, most) = at.device.recomputes(self.costs.training, from, to)?;
        if let Some(home) = at.home {
            let need = |recomputed: usize| at.device.need(at.stage_slot, (from, to), recomputed);
            held[home] += need(choice.recomputed).min(need(most));
        }
        let host = at.device.host(choice.host_offload);
        if let Some(helper) = host.and_then(|host| self.slot(host.socket.index())) {
            held[helper] += at.device.need_of_host(at.stage_slot, choice.host_offload, (from, to), most);
        }
        held.iter().zip(&self.usable).all(|(held, usable)| held <= usable).then_some(held)
    }

    /// Extends `next` by the passes of a stage, without its step; none if a bound is violated.
    fn onwards(&self, at: &At<'_>, (times, (there, back)): (&StageTimes, (f64, f64)), next: &Suffix) -> Option<Suffix> {
        let (m, rest) = (self.costs.microbatches as f64, (self.costs.microbatches - at.stage_slot.in_flight) as f64);
        let (forward, again, backward) = (times.forward, times.recompute, times.backward);
        let (turned, in_flight) = (again + backward, m - rest);
        let way = forward + there + back + backward;
        let first = (way + next.first).max(in_flight * forward + turned);
        let last = (way + next.back).max(forward + in_flight * turned);
        let mut passes = (m * times.busy())
            .max(way + next.passes)
            .max(first + rest * forward + (m - 1.0) * turned)
            .max((m - 1.0) * forward + rest * turned + last);
        let turns = match at.fewer {
            Some(fewer) => next.turns.before(times.busy(), (way, fewer)),
            None => Turns::staying(times.busy()),
        };
        if let Some(between) = &at.between {
            let steady = turns.over(between);
            if next.between + way + steady > self.limit {
                return None;
            }
            passes = passes.max(first + steady + last);
        }
        let between = way + next.between;
        Some(Suffix { first, back: last, passes, between, turns, ..*next })
    }
}

/// Returns, by layer, the least time of one microbatch through all earlier layers and back, in ms;
/// zero if no layer waits for gradients.
fn before(costs: &CostSums<'_>) -> Vec<f64> {
    let waits = costs.training && costs.frozen == 0;
    let fastest = |layer: usize| {
        let pass = |device: &DeviceSums| device.able(layer, layer + 1).then(|| device.pass((layer, layer + 1), true));
        costs.devices.iter().filter_map(pass).reduce(f64::min).filter(|_| waits).unwrap_or(0.0)
    };
    let add = |sum: &mut f64, layer: usize| {
        *sum += fastest(layer);
        Some(*sum)
    };
    std::iter::once(0.0).chain((0..costs.layers).scan(0.0, add)).collect()
}
