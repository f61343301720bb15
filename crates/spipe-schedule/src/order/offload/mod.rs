//! Selective offload of activations (Wan et al., PipeOffload, arXiv 2503.01328, section 4).

mod switch;

pub use switch::Step;

use super::{Order, Pass, StageTimes, Token, timing::Timing, uniform};
use spipe_base::{Diagnostic, Faults, SimTime};
use switch::{CopyTimes, Preference, Trip, Wish, changes, peaks, place};

/// A precedence between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// The step that must have ended.
    pub from: Step,
    /// The step that may then start.
    pub to: Step,
    /// Whether `to` waits for memory that `from` releases; otherwise both use the same link.
    pub for_memory: bool,
}

/// An order with offloads and reloads of activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offloading {
    /// The order of compute.
    pub order: Order,
    /// The copies of each device with their durations. A device runs them in this order, one at a
    /// time.
    pub copies: Vec<Vec<(Step, SimTime)>>,
    /// The precedences beyond the order of compute, the order of copies, and data dependencies.
    pub barriers: Vec<Barrier>,
    /// The peak of each device, in activations.
    pub peaks: Vec<usize>,
}

/// The time of a copy while the switch carries only offloads, in percent of its time while both
/// directions are in use (the same paper, section 4).
const ALONE_PERCENT: u64 = 70;

/// The uniform order with at most the first `offloaded` chunks of every device offloaded, because
/// they wait longest for their backward. `copy` is the time of copying one activation in one
/// direction.
///
/// Two neighbouring GPUs share a switch. Forwards that no backward waits for yet are delayed.
/// Several delays, several rankings of the copies of the two GPUs, and fewer offloaded chunks are
/// tried, and those with the smallest peaks are kept: where copies take as long as computing,
/// another chunk may displace copies that save more. No pass is delayed beyond its time in
/// [`uniform`]: activations that cannot be copied out and back in time stay on the device.
///
/// # Errors
/// Zero amounts, or more offloaded chunks than there are.
pub fn offloaded(shape: [usize; 3], times: &StageTimes, offloaded: usize, copy: SimTime) -> Result<Offloading, Faults> {
    best_offload(shape, |stages| vec![*times; stages], offloaded, copy)
}

/// The same with `times` for each stage, in model order.
///
/// # Errors
/// Zero amounts, more offloaded chunks than there are, or times for another number of stages.
pub fn offloaded_with_stage_times(
    shape: [usize; 3],
    times: &[StageTimes],
    offloaded: usize,
    copy: SimTime,
) -> Result<Offloading, Faults> {
    if times.len() != shape[0] * shape[1] {
        let fault = format!("there are times for {} stages, and {} stages", times.len(), shape[0] * shape[1]);
        return Err(Diagnostic::error(fault).into());
    }
    best_offload(shape, |_| times.to_vec(), offloaded, copy)
}

fn best_offload(
    [devices, chunks, microbatches]: [usize; 3],
    times: impl Fn(usize) -> Vec<StageTimes>,
    offloaded: usize,
    copy: SimTime,
) -> Result<Offloading, Faults> {
    let order = uniform(devices, chunks, microbatches)?;
    if offloaded > chunks {
        let fault = format!("{offloaded} chunks to offload are more than the {chunks} chunks of a device");
        return Err(Diagnostic::error(fault).hint(format!("offload at most {chunks}")).into());
    }
    let copies = CopyTimes {
        shared: copy,
        alone: SimTime::ns(copy.as_ns() / 100 * ALONE_PERCENT + copy.as_ns() % 100 * ALONE_PERCENT / 100),
    };
    let of_stages = times(order.stages());
    let soonest = Timing::of(&order, &of_stages);
    let variant = |(offloaded, ahead): (usize, u64)| {
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
    let choices = (0..=offloaded).rev().flat_map(|offloaded| [0, 2, 4].map(|ahead| (offloaded, ahead)));
    let best =
        choices.map(variant).min_by_key(|(_, _, peaks)| (peaks.iter().max().copied(), peaks.iter().sum::<usize>()));
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

/// The GPUs on one switch, and their copies.
struct Switch {
    /// The index of the first GPU.
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
        // The ranking needs a typical time, not that of each stage.
        let times = timing.times[0];
        let half = SimTime::ns(times.forward.as_ns() / 2);
        let mut best: Option<Self> = None;
        for early in [SimTime::ZERO, times.backward_input] {
            let wishes = wishes(devices, timing, &offloaded, early);
            for seat in (0..devices.len()).rev() {
                let trips = place(&wishes, devices.len(), copies, Preference { seat, by: half });
                let peaks = peaks(devices, timing, &trips);
                // Ties go to the smaller peak of the later GPU, because the earlier GPU has the
                // larger peak in any case.
                let rank =
                    |peaks: &[usize]| (peaks.iter().max().copied(), peaks.iter().rev().copied().collect::<Vec<_>>());
                if best.as_ref().is_none_or(|best| rank(&peaks) < rank(&best.peaks)) {
                    best = Some(Self { first, trips, peaks });
                }
            }
        }
        best.unwrap_or(Self { first, trips: Vec::new(), peaks: Vec::new() })
    }

    /// The copies of one GPU by start.
    fn copies(&self, seat: usize) -> Vec<(Step, SimTime)> {
        let mut copies: Vec<(SimTime, Step, SimTime)> = Vec::new();
        for trip in self.trips.iter().filter(|trip| trip.seat == seat) {
            copies.push((trip.out.0, Step::Offload(trip.forward), trip.out.1 - trip.out.0));
            copies.push((trip.back.0, Step::Reload(trip.forward), trip.back.1 - trip.back.0));
        }
        copies.sort_unstable();
        copies.into_iter().map(|(_, step, time)| (step, time)).collect()
    }

    /// The precedences of the switch: copies in one direction take turns, and the first reload
    /// waits for the offloads that have the switch to themselves.
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

    /// The precedences of a GPU's memory: a step that would exceed the peak waits for a step that
    /// releases an activation.
    fn room(&self, seat: usize, tokens: &[Token], timing: &Timing<'_>) -> Vec<Barrier> {
        let [takes, gives] = changes(seat, tokens, timing, &self.trips);
        let later = takes.iter().skip(self.peaks[seat]);
        later.zip(&gives).map(|(take, give)| Barrier { from: give.1, to: take.1, for_memory: true }).collect()
    }
}

/// The activations to offload, with reloads that end `early` before their backward-input.
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
