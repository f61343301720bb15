//! The automatic Zero Bubble schedule under a memory limit (Qi et al., arXiv 2401.10241, section
//! 3.1).

use super::{Order, Pass, StageTimes, Token, at_least_one};
use spipe_base::{Bytes, Diagnostic, Faults, SimTime};

/// The best of eight list schedules with split backwards, for one stage per device with the given
/// times.
///
/// No device holds more than `limit`, in units of [`StageTimes::UNIT`] per activation. For p
/// devices the paper's ZB-1p has a limit of p activations, its ZB-2p one of 2p. Each of the eight
/// schedules
///
/// 1. runs warm-up forwards until memory is full or the first backward-input arrives, fewer on
///    later stages;
/// 2. gives every stage one forward and one backward-input in turn, and runs backward-weights where
///    the wait for either is long enough, where memory demands it, or where the stage has idled at
///    least as long as all others;
/// 3. runs the remaining backward-inputs with backward-weights in between, and then the remaining
///    backward-weights.
///
/// They differ in three switches. The best one has the shortest time from the first start to the
/// last end on the slowest device.
pub fn automatic(stages: &[StageTimes], microbatches: usize, limit: Bytes) -> Result<Order, Faults> {
    at_least_one(&[("devices", stages.len()), ("microbatches", microbatches)])?;
    if limit < StageTimes::UNIT {
        let fault = format!("a limit of {} activations leaves no room for a forward", in_units(limit));
        return Err(Diagnostic::error(fault).hint("use a limit of at least 1").into());
    }
    let mut best: Option<(SimTime, Order)> = None;
    for late_forward in [false, true] {
        for backward_first in [true, false] {
            for eager_weights in [true, false] {
                let switches = Switches { late_forward, backward_first, eager_weights };
                let mut list = List::new(stages, microbatches, limit, switches);
                list.run();
                if best.as_ref().is_none_or(|(cost, _)| list.cost() < *cost) {
                    best = Some((list.cost(), list.order()));
                }
            }
        }
    }
    best.map(|(_, order)| order).ok_or_else(Faults::new)
}

fn in_units(bytes: Bytes) -> f64 {
    bytes.as_f64() / StageTimes::UNIT.as_f64()
}

/// The differences between the eight schedules.
#[derive(Clone, Copy)]
struct Switches {
    /// A forward of the warm-up may end after the first backward-input arrives.
    late_forward: bool,
    /// A stage that is well ahead of the next one delays a forward that would delay a
    /// backward-input.
    backward_first: bool,
    /// A backward-weight may delay the next pass even on a stage that has idled less than another.
    eager_weights: bool,
}

/// The progress of a stage.
#[derive(Clone, Default)]
struct Progress {
    forwards: usize,
    backwards: usize,
    weights: usize,
    held: Bytes,
    start: Option<SimTime>,
    /// The end of its last pass.
    free: SimTime,
    /// Its idle time since its first forward.
    idle: SimTime,
    forward_ends: Vec<SimTime>,
    backward_ends: Vec<SimTime>,
    tokens: Vec<Token>,
}

/// The state of one list schedule.
struct List<'a> {
    stages: &'a [StageTimes],
    microbatches: usize,
    limit: Bytes,
    switches: Switches,
    progress: Vec<Progress>,
}

impl<'a> List<'a> {
    fn new(stages: &'a [StageTimes], microbatches: usize, limit: Bytes, switches: Switches) -> Self {
        Self { stages, microbatches, limit, switches, progress: vec![Progress::default(); stages.len()] }
    }

    fn run(&mut self) {
        self.warm_up();
        for microbatch in 1..self.microbatches {
            for stage in self.forwards_of_round() {
                self.forward_in_turn(stage);
            }
            for stage in (0..self.stages.len()).rev() {
                self.backward_in_turn(stage, microbatch);
            }
        }
        for stage in 0..self.stages.len() {
            while self.progress[stage].weights < self.microbatches {
                self.put(stage, Pass::BackwardWeight);
            }
        }
    }

    /// The longest time of a stage from its first start to its last end.
    fn cost(&self) -> SimTime {
        let reach = |progress: &Progress| progress.free - progress.start.unwrap_or_default();
        self.progress.iter().map(reach).max().unwrap_or_default()
    }

    fn order(self) -> Order {
        Order::new(self.progress.into_iter().map(|progress| progress.tokens).collect())
    }

    /// Runs the warm-up forwards and the first backward-input of each stage.
    fn warm_up(&mut self) {
        for stage in 0..self.stages.len() {
            self.put(stage, Pass::Forward);
        }
        let more = self.more_forwards();
        for (stage, more) in more.into_iter().enumerate() {
            for _ in 0..more {
                self.put(stage, Pass::Forward);
            }
        }
        for stage in (0..self.stages.len()).rev() {
            self.put(stage, Pass::BackwardInput);
        }
    }

    /// The warm-up forwards of each stage beyond the first one: as many as fit, and fewer than the
    /// stage before, which feeds it.
    fn more_forwards(&self) -> Vec<usize> {
        let mut more = vec![0; self.stages.len()];
        let mut arrival = SimTime::ZERO;
        for (stage, times) in self.stages.iter().enumerate().rev() {
            let progress = &self.progress[stage];
            let last = stage + 1 == self.stages.len();
            let (mut held, mut free) = (progress.held, progress.free);
            while !last && 1 + more[stage] < self.microbatches && held + StageTimes::UNIT <= self.limit {
                let in_time = if self.switches.late_forward { free < arrival } else { free + times.forward <= arrival };
                if !in_time {
                    break;
                }
                held += StageTimes::UNIT;
                free += times.forward;
                more[stage] += 1;
            }
            let begun = if last { free } else { free.max(arrival) };
            arrival = begun + times.backward_input + times.latency;
        }
        for stage in 1..more.len() {
            // A stage may run all its forwards only if the stage before it has run all of its own.
            if 1 + more[stage] < self.microbatches || 1 + more[stage - 1] < self.microbatches {
                more[stage] = more[stage].min(more[stage - 1].saturating_sub(1));
            }
        }
        more
    }

    /// The stages that run a forward in this round. A stage does so only if all later stages do.
    fn forwards_of_round(&self) -> Vec<usize> {
        let first = (0..self.stages.len()).rev().find(|stage| !self.wants_forward(*stage)).map_or(0, |stage| stage + 1);
        (first..self.stages.len()).collect()
    }

    fn wants_forward(&self, stage: usize) -> bool {
        let (this, times) = (&self.progress[stage], &self.stages[stage]);
        if this.forwards == self.microbatches {
            return false;
        }
        let Some(next) = self.progress.get(stage + 1) else { return true };
        if !self.switches.backward_first || this.forwards < next.forwards + 2 {
            return true;
        }
        let next_times = &self.stages[stage + 1];
        let gradient = next.free + next_times.forward + next_times.backward_input + times.latency;
        if this.free >= gradient {
            return false;
        }
        let ready = this.free + times.forward + times.backward_weight * self.weights_for_room(stage);
        ready <= gradient || gradient - this.free > self.idle_allowance(stage)
    }

    /// The number of backward-weights that must run before a forward fits in memory.
    fn weights_for_room(&self, stage: usize) -> u64 {
        let this = &self.progress[stage];
        let over = (this.held + StageTimes::UNIT).saturating_sub(self.limit);
        let pending = (this.backwards - this.weights) as u64;
        match self.stages[stage].weight_gradient_memory {
            _ if over == Bytes::ZERO => 0,
            0 => pending,
            each => over.get().div_ceil(each).min(pending),
        }
    }

    /// The largest idle time of any stage minus that of `stage`.
    fn idle_allowance(&self, stage: usize) -> SimTime {
        let most = self.progress.iter().map(|progress| progress.idle).max().unwrap_or_default();
        most - self.progress[stage].idle
    }

    fn forward_in_turn(&mut self, stage: usize) {
        for _ in 0..self.weights_for_room(stage) {
            self.put(stage, Pass::BackwardWeight);
        }
        if let Some(arrival) = self.arrival(stage, Pass::Forward) {
            self.fill(stage, arrival);
        }
        self.put(stage, Pass::Forward);
    }

    fn backward_in_turn(&mut self, stage: usize, microbatch: usize) {
        debug_assert_eq!(self.progress[stage].backwards, microbatch);
        if let Some(arrival) = self.arrival(stage, Pass::BackwardInput) {
            self.fill(stage, arrival);
        }
        if stage == 0 && self.progress[0].forwards == self.microbatches {
            while self.progress[0].weights < self.progress[0].backwards {
                self.put(0, Pass::BackwardWeight);
            }
        }
        self.put(stage, Pass::BackwardInput);
    }

    /// Runs backward-weights in the gap before `arrival`, and possibly one that exceeds it.
    fn fill(&mut self, stage: usize, arrival: SimTime) {
        let weight = self.stages[stage].backward_weight;
        let pending = |this: &Progress| this.weights < this.backwards;
        while pending(&self.progress[stage]) && self.progress[stage].free + weight <= arrival {
            self.put(stage, Pass::BackwardWeight);
        }
        let this = &self.progress[stage];
        if pending(this) && this.free < arrival {
            let longest_wait = arrival - this.free > self.idle_allowance(stage);
            if longest_wait || self.switches.eager_weights {
                self.put(stage, Pass::BackwardWeight);
            }
        }
    }

    /// The arrival of the input of the next `pass` of `stage` from the neighbouring stage; `None`
    /// if it needs none.
    fn arrival(&self, stage: usize, pass: Pass) -> Option<SimTime> {
        let this = &self.progress[stage];
        let end = match pass {
            Pass::Forward => self.progress[stage.checked_sub(1)?].forward_ends[this.forwards],
            Pass::BackwardInput => self.progress.get(stage + 1)?.backward_ends[this.backwards],
            Pass::Backward | Pass::BackwardWeight => return None,
        };
        Some(end + self.stages[stage].latency)
    }

    fn put(&mut self, stage: usize, pass: Pass) {
        let times = &self.stages[stage];
        let arrival = self.arrival(stage, pass).unwrap_or_default();
        let this = &mut self.progress[stage];
        let start = this.free.max(arrival);
        if this.start.is_some() {
            this.idle += start - this.free;
        }
        this.start.get_or_insert(start);
        this.free = start + times.of(pass);
        let weight = Bytes::new(times.weight_gradient_memory);
        let done = match pass {
            Pass::Forward => {
                this.held += StageTimes::UNIT;
                this.forward_ends.push(this.free);
                &mut this.forwards
            }
            Pass::Backward | Pass::BackwardInput => {
                this.held -= StageTimes::UNIT - weight;
                this.backward_ends.push(this.free);
                &mut this.backwards
            }
            Pass::BackwardWeight => {
                this.held -= weight;
                &mut this.weights
            }
        };
        this.tokens.push(Token::new(stage, pass, *done));
        *done += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order is valid for random stage times.
    #[test]
    fn stages_may_differ() {
        // Lehmer's generator draws the same cases everywhere.
        let mut state = 1u64;
        let mut draw = |most: u64| {
            state = state * 48_271 % 2_147_483_647;
            1 + state % most
        };
        for case in 0..2000 {
            let (devices, microbatches) = (1 + case % 7, 1 + case / 7 % 11);
            let stage = |draw: &mut dyn FnMut(u64) -> u64| StageTimes {
                forward: SimTime::ns(draw(100)),
                backward_input: SimTime::ns(draw(100)),
                backward_weight: SimTime::ns(draw(100)),
                latency: SimTime::ns(draw(20)),
                weight_gradient_memory: StageTimes::UNIT.get(),
            };
            let stages: Vec<StageTimes> = (0..devices).map(|_| stage(&mut draw)).collect();
            let limit = StageTimes::UNIT * draw(2 * devices as u64);
            let order = automatic(&stages, microbatches, limit);
            assert_eq!(order.and_then(|order| order.validate()), Ok(()), "case {case}");
        }
    }
}
