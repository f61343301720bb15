//! Divisions that meet lower bounds for a given iteration, by dynamic programming from the last stage to the first.
//!
//! For m microbatches, K in flight on a stage, and per stage F, R (recompute) and B, with transfers a and g over the
//! boundary behind it, every cycle of the order graph that goes once around is a lower bound. The longest ways through a stage and all
//! behind it (the next one's marked with ′) are
//!
//! ```text
//! U  the first microbatch there and back: the longer of    F + a + U′ + g + B    K F + R + B     of the last stage F + R + B
//! L  the last one there and back: the longer of            F + a + L′ + g + B    F + K (R + B)   the same
//! V  the first one's arrival to the last one's gradient: the longest of
//!        m (F + R + B)                F + a + V′ + g + B
//!        U + (m − K) F + (m − 1)(R + B)             (m − 1) F + (m − K)(R + B) + L
//!        U + Z(m − K − 1) + L                       where m > K
//! D  the last one's arrival to the end of all that socket s has to step for these stages:
//!        the longer of F + a + D′ and L + out, and the step: the latter two if s steps this stage
//! Y  the first one's arrival to that end: the longest of the following, and the step
//!        F + a + Y′                   m F + (m − K)(R + B) + a + D′                            V + out
//!        U + Z(m − K − 1) + F + a + D′              where m > K
//! Z  from one forward between the first and the last to the backward behind which the forward of n microbatches later comes, where
//!    d is how many more are in flight here than behind: the longest of
//!        F + R + B                    where n = 1
//!        Z(k) + Z(n − k)              F + a + Z′(n − d) + g + B
//! X  the gradient of the first one to the activation of the last one, seen from before these stages: the longest of
//!        F + a + X′ + g + B           U + L + the step on its own device           U + D + the parameters' way back
//! ```
//!
//! and an iteration takes at least V and the step on the stage's own device, or what is between if it goes to a socket
//! (gradients out, the step, parameters back); and Y and the parameters' way back, since a socket steps the stages behind before it
//! steps this one; and at least X′ + g + B + Z(m − K − 1) + F + a, where m > K. In inference it takes m F.
//!
//! All that is about sockets holds where they step in the order in which stages end; what is left open ([`Dues`]) also where they step
//! first what is urgent.
//!
//! Sockets share what there is to step. So the sum over all sockets of Y at the first stage that each steps (or V, if it steps none) is
//! followed as well: a stage that is stepped adds its step, and the forwards and activations since. Where it is left open who steps, so is
//! the sum of X: from the last one's arrival to the end of what each socket steps, and from the next first one's arrival there to its
//! gradient (or U + L); and where steps wait for all gradients then, every stage adds g + B to the former sum.
//!
//! These, and the bytes in host memories, are all that matters of the stages behind. Where several ways to divide the layers are
//! each better in V, X or Y, or the sum of Y, some of them are kept, as the [`Grain`] says; others become one that is as good as both, so
//! that what is refused is refused for certain. What stages behind have in common is worked out once for all cases.

mod backtrack;
mod hosts;
mod label;
pub(crate) mod memory_pressure;
pub(crate) mod partitioner;

use crate::{
    bisect::first_of,
    bounds::partition_dp::partitioner::{Partitioner, some},
    costs::{CostSums, DeviceSums, HostOffload, StageSlot, StageTimes},
    problem::Deadline,
    space::subproblem::Subproblem,
};
use rayon::prelude::*;
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

use crate::bounds::partition_dp::backtrack::trace;
pub(crate) use crate::bounds::partition_dp::backtrack::{Divided, any};
use crate::bounds::partition_dp::hosts::SocketEnds;
pub(crate) use crate::bounds::partition_dp::label::Grain;
use crate::bounds::partition_dp::label::{Behind, Counts, SOCKETS, Turns, Way, Ways};
use crate::bounds::partition_dp::memory_pressure::{AtSeat, OnHosts};

/// Beyond this many layers, fewer ways are told apart, down to so many.
const MANY: usize = 250;
const FEWEST: usize = 4;

/// Keeps rounding from declaring a bound unmet that is met exactly.
const TOLERANCE: f64 = 1e-9;

/// A stage with the ways to go on from each layer at which it may start, before the stages behind it.
struct Node<'n> {
    seat: StageSlot,
    ways: Vec<Ways>,
    behind: Option<&'n Self>,
}

/// Where a stage may be in a case.
#[derive(Clone, Copy)]
struct Place {
    seat: StageSlot,
    /// The layers at which it may start.
    first: usize,
    last: usize,
}

/// One choice for a stage.
struct Choice {
    host_offload: HostOffload,
    recomputed: usize,
    times: StageTimes,
    /// Steps of which it is left open which layers they are of, in ms: on the device, and on sockets.
    own: f64,
    by_hosts: OnHosts,
    ends: SocketEnds,
}

impl Choice {
    /// From the last backward to the next forward.
    fn stepped(&self) -> f64 {
        self.times.stepped() + self.own
    }
}

/// What is known of a stage before its layers are.
struct At<'d> {
    seat: StageSlot,
    device: &'d DeviceSums,
    /// The helps it may have, each with the least recompute of every range of layers.
    choices: Vec<(HostOffload, &'d [u16])>,
    /// The socket that it is on.
    home: Option<usize>,
    /// What is due for its layers where that is not chosen for a whole stage.
    dues: Option<AtSeat<'d>>,
    /// Both transfers over the boundary behind it, by the layer after that.
    wires: Vec<(f64, f64)>,
    /// How many microbatches fewer are in flight behind it; none where there are more.
    fewer: Option<usize>,
    /// How many microbatches come between its first and its last one in flight, if any do.
    between: Option<Counts>,
}

/// The search for one iteration time.
pub(crate) struct Divide<'d, 'a> {
    costs: &'d CostSums<'a>,
    partitioner: &'d Partitioner<'d, 'a>,
    limit: f64,
    /// And the slack in ms.
    grain: (Grain, f64),
    /// By layer, the least that the first microbatch takes through all layers before it, and back, in ms: what its stages wait for before
    /// their first pass and behind their last one.
    before: Vec<f64>,
    /// Whether steps wait for all gradients, where it is left open who steps: otherwise gradients may leave while others are computed.
    together: bool,
    /// How many sockets there are, those that are told apart, and the usable bytes of their memories.
    all_sockets: f64,
    sockets: Vec<usize>,
    usable: [u64; SOCKETS],
}

impl<'d, 'a> Divide<'d, 'a> {
    pub fn new(costs: &'d CostSums<'a>, partitioner: &'d Partitioner<'d, 'a>, (limit, grain): (f64, Grain)) -> Self {
        // The work grows with the square of the layers and that of the ways.
        let most = (grain.most * MANY / costs.layers.max(MANY)).max(FEWEST);
        let grain = Grain { most, ..grain };
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
            limit: limit * (1.0 + TOLERANCE),
            grain: (grain, limit * grain.slack),
            before: before(costs),
            together: partitioner.dues.is_some() && (costs.phased || costs.context.workload().checks_gradients()),
            all_sockets,
            sockets,
            usable,
        }
    }

    /// Each of `cases`, in order, as far as the deadline allows; none otherwise.
    pub fn all(&self, cases: &[&Subproblem], deadline: Option<&Deadline<'_>>) -> Vec<Option<Option<Divided>>> {
        let group: Vec<usize> = (0..cases.len()).filter(|case| cases[*case].stages() <= self.costs.layers).collect();
        let mut list: Vec<Option<Option<Divided>>> =
            cases.iter().map(|case| (case.stages() > self.costs.layers).then_some(None)).collect();
        let places: Vec<Vec<Place>> = cases.iter().map(|case| self.backwards(case)).collect();
        for (case, divided) in self.visit((cases, &places), group, (0, None), deadline) {
            list[case] = Some(divided);
        }
        list
    }

    /// The seats of a case, the last one first, with devices that are as good as each other in one order, so that cases have as many of
    /// their last stages in common as they can.
    fn backwards(&self, case: &Subproblem) -> Vec<Place> {
        let mut used: BTreeMap<usize, usize> = BTreeMap::new();
        let starts = self.starts(case);
        let ordered = |(stage, seat): (usize, &StageSlot)| {
            let class = self.partitioner.class(seat.device);
            let next = used.entry(class[0]).or_default();
            let device = class[*next];
            *next += 1;
            Place { seat: StageSlot { device, ..*seat }, first: stage, last: starts[stage] }
        };
        case.seats.iter().enumerate().rev().map(ordered).collect()
    }

    /// The last layer at which each stage of a case can start: those before it have no time for more.
    fn starts(&self, case: &Subproblem) -> Vec<usize> {
        let next = |start: &mut usize, seat: &StageSlot| {
            let here = *start;
            *start = if here < self.costs.layers { self.farthest(*seat, here).max(here) } else { here };
            Some(here)
        };
        case.seats.iter().scan(0, next).collect()
    }

    /// Those of `cases`, with their seats from the last one on, that have the same last `depth` stages, which lead to `behind`.
    fn visit(
        &self,
        (cases, places): (&[&Subproblem], &[Vec<Place>]),
        group: Vec<usize>,
        (depth, behind): (usize, Option<&Node<'_>>),
        deadline: Option<&Deadline<'_>>,
    ) -> Vec<(usize, Option<Divided>)> {
        if deadline.is_some_and(Deadline::over) {
            return Vec::new();
        }
        let mut by_seat: BTreeMap<StageSlot, Vec<usize>> = BTreeMap::new();
        for case in group {
            by_seat.entry(places[case][depth].seat).or_default().push(case);
        }
        let groups: Vec<(StageSlot, Vec<usize>)> = by_seat.into_iter().collect();
        let of_group = |(seat, group): (StageSlot, Vec<usize>)| {
            let first = group.iter().map(|case| places[*case][depth].first).min().unwrap_or(0);
            let last = group.iter().map(|case| places[*case][depth].last).max().unwrap_or(0);
            let Some(ways) = self.ways(Place { seat, first, last }, behind, deadline) else { return Vec::new() };
            let node = Node { seat, ways, behind };
            if seat.first {
                return group.into_iter().map(|case| (case, trace(cases[case], &node, self.all_sockets))).collect();
            }
            if node.ways.iter().all(|ways| ways.list.is_empty()) {
                return group.into_iter().map(|case| (case, None)).collect();
            }
            self.visit((cases, places), group, (depth + 1, Some(&node)), deadline)
        };
        groups.into_par_iter().flat_map_iter(of_group).collect()
    }

    fn at(&self, seat: StageSlot, behind: Option<&Node<'_>>) -> Option<At<'d>> {
        let device = &self.costs.devices[seat.device];
        let next = behind.map(|behind| behind.seat.device);
        let fewer = seat.in_flight.checked_sub(behind.map_or(0, |behind| behind.seat.in_flight));
        let wires = |end: usize| match (next, end) {
            (None, _) | (_, 0) => (0.0, 0.0),
            (Some(next), end) => self.costs.transfers((seat.device, next), end),
        };
        Some(At {
            seat,
            device,
            choices: self.partitioner.choices(seat)?,
            home: self.slot(seat.device),
            dues: self.partitioner.dues.as_ref().and_then(|dues| dues.at(seat)),
            wires: (0..=self.costs.layers).map(wires).collect(),
            fewer: fewer.and_then(|fewer| usize::try_from(fewer).ok()),
            between: (self.costs.microbatches - seat.in_flight).checked_sub(1).map(Counts::new),
        })
    }

    /// The number of a socket that is told apart.
    fn slot(&self, device: usize) -> Option<usize> {
        self.sockets.iter().position(|socket| *socket == device)
    }

    /// Whether gradients go all the way back, so that the stages wait for each other.
    const fn cycles(&self) -> bool {
        self.costs.training && self.costs.frozen == 0
    }

    /// By the layer at which it starts, the ways to go on with a stage; none where the deadline came before.
    fn ways(&self, place: Place, behind: Option<&Node<'_>>, deadline: Option<&Deadline<'_>>) -> Option<Vec<Ways>> {
        let layers = self.costs.layers;
        let Some(at) = self.at(place.seat, behind) else { return Some(vec![Ways::default(); layers + 1]) };
        let starts = if place.seat.first { 0..=0 } else { place.first.max(1)..=place.last.min(layers - 1) };
        let of_start = |from: usize| {
            if deadline.is_some_and(Deadline::over) {
                return None;
            }
            Some(if starts.contains(&from) { self.ways_from(&at, from, behind) } else { Ways::default() })
        };
        (0..=layers).into_par_iter().map(of_start).collect()
    }

    /// The ways to go on with a stage that starts at a layer.
    fn ways_from(&self, at: &At<'_>, from: usize, behind: Option<&Node<'_>>) -> Ways {
        let mut ways = Ways::default();
        let nearest = if behind.is_none() { self.costs.layers } else { from + 1 };
        for to in nearest..=self.farthest(at.seat, from) {
            let next: &[Way] = behind.map_or(&[], |behind| &behind.ways[to].list);
            if behind.is_some() && next.is_empty() {
                continue;
            }
            self.choices(at, (from, to), |choice| {
                let Choice { host_offload, recomputed, by_hosts, .. } = choice;
                let mut take = |next: usize, rest: Option<&Behind>| {
                    if let Some(behind) = self.through(at, (from, to), &choice, rest) {
                        ways.keep(Way { behind, to, next, host_offload, recomputed, hosted: by_hosts.all }, self.grain);
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

    /// The last layer at which a stage that starts at `from` may end for its bytes and the work of its passes.
    fn farthest(&self, seat: StageSlot, from: usize) -> usize {
        let (device, m) = (&self.costs.devices[seat.device], self.costs.microbatches as f64);
        let holds = |to: usize| {
            device.able(from, to)
                && device.state(from, to, seat.host_offload) <= device.usable
                && m * device.pass((from, to), self.costs.training) + self.before[from] <= self.limit
        };
        // Each of these is lost for good where it is lost.
        first_of((from + 1, self.costs.layers + 1), |to| !holds(to)) - 1
    }

    /// What may be chosen for layers `from..to` on a stage, as far as the stage alone is concerned.
    fn choices(&self, at: &At<'_>, (from, to): (usize, usize), mut take: impl FnMut(Choice)) {
        let m = self.costs.microbatches;
        let index = from * (self.costs.layers + 1) + to;
        let ends = self.socket_ends(at, (from, to));
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
            let mut each = |times: StageTimes, (own, by_hosts): (f64, OnHosts)| {
                let choice = Choice { host_offload: *host_offload, recomputed, times, own, by_hosts, ends };
                let alone = if self.costs.training {
                    m as f64 * times.busy() + choice.stepped()
                } else {
                    m as f64 * times.forward
                };
                if alone <= self.limit {
                    take(choice);
                }
            };
            match at.dues {
                Some(dues) => dues.each((from, to), (self.limit, self.stepped_at_most(at, (from, to))), |due| {
                    each(StageTimes { recompute: due.recompute, optimizer: 0.0, ..times }, (due.own, due.by_hosts));
                }),
                None => each(times, (0.0, OnHosts::NONE)),
            }
        }
    }

    /// For how long hosts can step some layers at most, which they do behind the last gradient of the last one and before its first activation.
    fn stepped_at_most(&self, at: &At<'_>, (from, to): (usize, usize)) -> f64 {
        let busy = at.device.pass((from, to), self.cycles());
        self.all_sockets * (self.limit - (self.costs.microbatches - 1) as f64 * busy)
    }

    /// The least recompute from `least` on with which what leaves for the host can do so in time.
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
        // Beyond the first, each recomputed layer leaves that much less.
        meets(most).then(|| first_of(((least + 1).min(most), most), meets))
    }

    /// The ways through a stage and those behind it, if they meet the bounds.
    fn through(
        &self,
        at: &At<'_>,
        (from, to): (usize, usize),
        choice: &Choice,
        next: Option<&Behind>,
    ) -> Option<Behind> {
        let helper = at.device.host(choice.host_offload).and_then(|host| self.slot(host.socket.index()));
        let held = self.held(at, (from, to), (choice, helper), next)?;
        if !self.cycles() {
            return Some(Behind { held, ..Behind::NOTHING });
        }
        let stepper = helper.filter(|_| choice.host_offload.optimizer);
        let (times, wires) = (&choice.times, at.wires[to]);
        let mut behind = match next {
            Some(next) => self.onwards(at, (times, wires), next)?,
            None => {
                let (busy, m) = (times.busy(), self.costs.microbatches as f64);
                Behind { first: busy, back: busy, passes: m * busy, turns: Turns::staying(busy), ..Behind::NOTHING }
            }
        };
        let sum = behind.sum;
        // What is urgent does not wait for what sockets step behind it.
        if let Some(stepper) = stepper.filter(|_| !self.costs.urgent) {
            let (last, all) = (&mut behind.last[stepper], &mut behind.all[stepper]);
            *last = last.max(behind.back + times.out) + times.step;
            *all = all.max(behind.passes + times.out) + times.step;
            if *all + times.back > self.limit {
                return None;
            }
            behind.between = behind.between.max(behind.first + *last + times.back);
            behind.closed[stepper] = *all;
            behind.sum += behind.since[stepper] + times.step;
            behind.since[stepper] = 0.0;
        } else {
            behind.between = behind.between.max(behind.first + behind.back + choice.stepped());
        }
        let closed = &behind.closed[..self.sockets.len()];
        let most = |closed: &f64| if closed.is_finite() { *closed } else { behind.passes };
        let others = self.all_sockets - closed.len() as f64;
        behind.sum = behind.sum.max(closed.iter().map(most).sum::<f64>() + others * behind.passes);
        self.step_by_hosts(at, (from, to), (choice, sum), &mut behind);
        let most = self.all_sockets * self.limit;
        let passed = behind.passes + choice.stepped().max(self.before[from]);
        let met = passed <= self.limit && behind.sum <= most && behind.cycle <= most;
        met.then_some(Behind { held, ..behind })
    }

    /// The same where there are stages behind, without the step.
    fn onwards(&self, at: &At<'_>, (times, (there, back)): (&StageTimes, (f64, f64)), next: &Behind) -> Option<Behind> {
        let (m, rest) = (self.costs.microbatches as f64, (self.costs.microbatches - at.seat.in_flight) as f64);
        let (forward, again, backward) = (times.forward, times.recompute, times.backward);
        let (turned, in_flight) = (again + backward, m - rest);
        let way = forward + there + back + backward;
        let first = (way + next.first).max(in_flight * forward + turned);
        let last = (way + next.back).max(forward + in_flight * turned);
        let mut passes = (m * times.busy())
            .max(way + next.passes)
            .max(first + rest * forward + (m - 1.0) * turned)
            .max((m - 1.0) * forward + rest * turned + last);
        let mut until_last = m * forward + rest * turned;
        let turns = match at.fewer {
            Some(fewer) => next.turns.before(times.busy(), (way, fewer)),
            None => Turns::staying(times.busy()),
        };
        let mut cycle = next.cycle;
        if let Some(between) = &at.between {
            let steady = turns.over(between);
            if next.between + way + steady > self.limit {
                return None;
            }
            cycle = cycle.max(next.around + self.all_sockets * (way + steady));
            passes = passes.max(first + steady + last);
            until_last = until_last.max(first + steady + forward);
        }
        let (between, around) = (way + next.between, self.all_sockets * way + next.around);
        // From the last gradient of the stages behind to that of this one.
        let drain = if self.together { self.all_sockets * (back + backward) } else { 0.0 };
        let sum = next.sum + drain;
        let mut behind = Behind { first, back: last, passes, between, around, cycle, turns, sum, ..*next };
        for socket in 0..self.sockets.len() {
            if next.closed[socket].is_finite() {
                behind.since[socket] += forward + there;
            }
            behind.last[socket] = forward + there + next.last[socket];
            behind.all[socket] = (forward + there + next.all[socket]).max(until_last + there + next.last[socket]);
        }
        Some(behind)
    }
}

/// How long one microbatch takes at least through the layers before each, and back; nothing where none of them waits for gradients.
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
