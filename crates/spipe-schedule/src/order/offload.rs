//! Selective offload of activations (Wan et al., PipeOffload, arXiv 2503.01328, section 4).

use super::{
    Order, Pass, Token,
    switch::{CopyTimes, Preference, Trip, Wish, changes, peaks, place},
    timing::Timing,
    uniform,
};
use crate::StageTimes;
use spipe_base::{Diagnostic, Faults, SimTime};

/// A copy of an activation, or the pass of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A pass of the order.
    Pass(Token),
    /// What this forward left leaves the device.
    Offload(Token),
    /// What this forward left comes back for its backward.
    Reload(Token),
}

/// A step that waits for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// What must have ended.
    pub from: Step,
    /// What may then start.
    pub to: Step,
    /// Whether `to` waits for the room that `from` gives back; otherwise both want the same link.
    pub for_memory: bool,
}

/// An order with the copies of activations that go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offloading {
    /// What each device computes.
    pub order: Order,
    /// The copies of each device, one at a time in this order, with their duration.
    pub copies: Vec<Vec<(Step, SimTime)>>,
    /// What waits for what beside the order of compute, the order of copies, and data.
    pub barriers: Vec<Barrier>,
    /// The most activations that each device holds.
    pub peaks: Vec<usize>,
}

/// The share of its time that a copy takes while the switch carries only offloads, in percent: the same source, section 4.
const ALONE_PERCENT: u64 = 70;

/// The uniform block with the first `offloaded` chunks of every device offloaded: those wait longest for their backward.
/// `copy` is how long one activation travels in one direction.
///
/// Two neighbouring GPUs share a switch. Forwards that the backwards do not wait for yet are postponed; of some amounts of
/// that, and some ways to rank the copies of the two GPUs, those with the smallest peaks are kept. Compute is never delayed
/// beyond [`uniform`] run as soon as possible: an activation for whose way there is no time stays.
pub fn offloaded(
    [devices, chunks, microbatches]: [usize; 3],
    times: &StageTimes,
    offloaded: usize,
    copy: SimTime,
) -> Result<Offloading, Faults> {
    let order = uniform(devices, chunks, microbatches)?;
    if offloaded > chunks {
        let fault = format!("{offloaded} chunks to offload are more than the {chunks} chunks of a device");
        return Err(Diagnostic::error(fault).hint(format!("offload at most {chunks}")).into());
    }
    let copies = CopyTimes { shared: copy, alone: SimTime::ns(copy.as_ns() * ALONE_PERCENT / 100) };
    let of_stages = vec![*times; order.stages()];
    let soonest = Timing::of(&order, &of_stages);
    let variant = |ahead| {
        let timing = soonest.with_late_forwards(&order, ahead);
        let switches: Vec<Switch> = (0..devices)
            .step_by(2)
            .map(|first| {
                let tokens: Vec<&[Token]> = order.devices()[first..].iter().take(2).map(Vec::as_slice).collect();
                Switch::best(first, &tokens, &timing, |token: &Token| token.stage.index() < offloaded * devices, copies)
            })
            .collect();
        let peaks: Vec<usize> = switches.iter().flat_map(|switch| switch.peaks.clone()).collect();
        (timing, switches, peaks)
    };
    let best = [0, 2, 4]
        .map(variant)
        .into_iter()
        .min_by_key(|(_, _, peaks)| (peaks.iter().max().copied(), peaks.iter().sum::<usize>()));
    let Some((timing, switches, peaks)) = best else { return Err(Faults::new()) };
    let mut copies = Vec::new();
    let mut barriers = Vec::new();
    for switch in &switches {
        for (seat, tokens) in order.devices()[switch.first..].iter().take(switch.peaks.len()).enumerate() {
            copies.push(switch.copies(seat));
            barriers.extend(switch.room(seat, tokens, &timing));
        }
        barriers.extend(switch.turns());
    }
    Ok(Offloading { order, copies, barriers, peaks })
}

/// The GPUs on one switch and their copies.
struct Switch {
    /// The first of them.
    first: usize,
    trips: Vec<Trip>,
    peaks: Vec<usize>,
}

impl Switch {
    fn best(
        first: usize,
        devices: &[&[Token]],
        timing: &Timing<'_>,
        offloaded: impl Fn(&Token) -> bool,
        copies: CopyTimes,
    ) -> Self {
        // All stages take as long.
        let times = timing.times[0];
        let half = SimTime::ns(times.forward.as_ns() / 2);
        let mut best: Option<Self> = None;
        for early in [SimTime::ZERO, times.backward_input] {
            let wishes = wishes(devices, timing, &offloaded, early);
            for seat in (0..devices.len()).rev() {
                let trips = place(&wishes, devices.len(), copies, Preference { seat, by: half });
                let peaks = peaks(devices, timing, &trips);
                // Of equal maxima, the one with the least on the later GPU: the earlier one holds more anyway.
                let rank =
                    |peaks: &[usize]| (peaks.iter().max().copied(), peaks.iter().rev().copied().collect::<Vec<_>>());
                if best.as_ref().is_none_or(|best| rank(&peaks) < rank(&best.peaks)) {
                    best = Some(Self { first, trips, peaks });
                }
            }
        }
        best.unwrap_or(Self { first, trips: Vec::new(), peaks: Vec::new() })
    }

    /// The copies of one GPU in the order of time.
    fn copies(&self, seat: usize) -> Vec<(Step, SimTime)> {
        let mut copies: Vec<(SimTime, Step, SimTime)> = Vec::new();
        for trip in self.trips.iter().filter(|trip| trip.seat == seat) {
            copies.push((trip.out.0, Step::Offload(trip.forward), trip.out.1 - trip.out.0));
            copies.push((trip.back.0, Step::Reload(trip.forward), trip.back.1 - trip.back.0));
        }
        copies.sort_unstable();
        copies.into_iter().map(|(_, step, time)| (step, time)).collect()
    }

    /// Copies in one direction take turns, and the first reload waits for the offloads that had the switch to themselves.
    fn turns(&self) -> Vec<Barrier> {
        let mut outs: Vec<(SimTime, SimTime, Step)> =
            self.trips.iter().map(|trip| (trip.out.0, trip.out.1, Step::Offload(trip.forward))).collect();
        let mut backs: Vec<(SimTime, Step)> =
            self.trips.iter().map(|trip| (trip.back.0, Step::Reload(trip.forward))).collect();
        outs.sort_unstable();
        backs.sort_unstable();
        let turn = |from, to| Barrier { from, to, for_memory: false };
        let mut turns: Vec<Barrier> = outs.windows(2).map(|pair| turn(pair[0].2, pair[1].2)).collect();
        turns.extend(backs.windows(2).map(|pair| turn(pair[0].1, pair[1].1)));
        if let Some((first, reload)) = backs.first() {
            let alone = outs.iter().rfind(|(_, end, _)| end <= first);
            turns.extend(alone.map(|(_, _, offload)| turn(*offload, *reload)));
        }
        turns
    }

    /// Whatever takes room on a GPU beyond its peak waits for what gives room before it.
    fn room(&self, seat: usize, tokens: &[Token], timing: &Timing<'_>) -> Vec<Barrier> {
        let [takes, gives] = changes(seat, tokens, timing, &self.trips);
        let later = takes.iter().skip(self.peaks[seat]);
        later.zip(&gives).map(|(take, give)| Barrier { from: give.1, to: take.1, for_memory: true }).collect()
    }
}

/// What could be offloaded, its reload done `early` before its backward-input.
fn wishes(devices: &[&[Token]], timing: &Timing<'_>, offloaded: impl Fn(&Token) -> bool, early: SimTime) -> Vec<Wish> {
    let wish = |seat: usize, forward: &Token| {
        let backward = Token { pass: Pass::BackwardInput, ..*forward };
        let until = timing.start(backward).saturating_sub(early);
        Wish { seat, forward: *forward, from: timing.end(*forward), until }
    };
    let mut wishes = Vec::new();
    for (seat, tokens) in devices.iter().enumerate() {
        let forwards = tokens.iter().filter(|token| token.pass == Pass::Forward && offloaded(token));
        wishes.extend(forwards.map(|forward| wish(seat, forward)));
    }
    wishes
}
