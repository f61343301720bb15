//! Where lanes meet: what has started and ended, what memory is free, and whether the run goes on.
//!
//! One lock holds all of it. Every wait is on one condition, and everyone who waits can be woken by a failure.

use crate::{
    RunError,
    account::Instance,
    rules::{Rules, instance},
    state::{Block, Finished, Last, Outcome, Record, State},
};
use spipe_base::{ActionId, IdleCause, LaneId, SimTime};
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The meeting place.
#[derive(Debug)]
pub(crate) struct Board<'a> {
    pub rules: &'a Rules<'a>,
    state: Mutex<State>,
    changed: Condvar,
    zero: Instant,
}

impl<'a> Board<'a> {
    /// A board before the first of `steps` iterations.
    pub fn new(rules: &'a Rules<'a>, steps: u32) -> Self {
        Self { rules, state: Mutex::new(State::new(rules, steps)), changed: Condvar::new(), zero: Instant::now() }
    }

    /// Time since the run began.
    pub fn now(&self) -> SimTime {
        nanoseconds(self.zero.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at or changes what everyone sees.
    pub fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.lock())
    }

    /// Whether somebody has failed.
    pub fn has_failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// Waits until the lane's next action may start, takes its memory and starts it; none if the run is over.
    pub fn begin(&self, lane: LaneId) -> Option<(u32, ActionId)> {
        let mut state = self.lock();
        let (iteration, action) = self.rules.at(lane, state.lanes[lane.index()].position)?;
        let mut short_of = None;
        let mut turn = loop {
            if state.failure.is_some() || iteration >= state.steps {
                return None;
            }
            if iteration >= state.limit {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.remember(self.rules, iteration);
            match state.block(self.rules, iteration, action, self.now()) {
                Block::Ready(turn) => break turn,
                Block::Until(due) => {
                    let left = Duration::from_nanos(due.saturating_sub(self.now()).as_ns());
                    state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
                Block::Memory(memory, _) => short_of = Some(memory),
                Block::Precedence => {}
            }
            if let Some(failure) = state.stall(self.rules, self.now()) {
                state.failure = Some(failure);
                self.changed.notify_all();
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        if let Some(freed) = short_of.map(|memory| state.freed[memory.index()]).filter(|freed| *freed > turn.at) {
            turn.at = freed;
            turn.last = Some(Last { cause: IdleCause::Memory, from: None });
        }
        let start = self.now();
        let free_since = state.lanes[lane.index()].free_since;
        state.lanes[lane.index()].running = true;
        for buffer in &self.rules.opens[action] {
            state.account.acquire(self.rules, start, instance(self.rules.program, *buffer, iteration));
        }
        let waited = turn.at > free_since;
        let current = state.iteration(iteration);
        current.started[action.index()] = true;
        current.records[action.index()] =
            Record { ready: turn.at.max(free_since), start, end: start, last: turn.last, waited };
        drop(state);
        self.changed.notify_all();
        Some((iteration, action))
    }

    /// Ends the lane's action. What it returns is no longer used by anyone and can be dropped.
    pub fn end(&self, lane: LaneId, (iteration, action): (u32, ActionId), outcome: Outcome) -> Vec<Instance> {
        let end = self.now();
        let over = outcome.end.map(|over| nanoseconds(over.saturating_duration_since(self.zero)));
        let mut state = self.lock();
        let holds = !outcome.held.is_empty();
        for (instance, bytes) in outcome.held {
            state.account.hold(self.rules, end, instance, bytes);
        }
        if let Some(failure) =
            holds.then(|| state.exceeded(self.rules, || self.rules.program.describe(action))).flatten()
        {
            state.failure.get_or_insert(failure);
        }
        let mut gone = Vec::new();
        for buffer in &self.rules.uses[action] {
            let instance = instance(self.rules.program, *buffer, iteration);
            if state.account.release(self.rules, end, instance) {
                state.freed[self.rules.program.buffers()[*buffer].memory.index()] = end;
                gone.push(instance);
            }
        }
        state.lanes[lane.index()].running = false;
        state.lanes[lane.index()].position += 1;
        state.lanes[lane.index()].free_since = end;
        let current = state.iteration(iteration);
        let record = &mut current.records[action.index()];
        record.end = over.map_or(end, |over| over.clamp(record.start, end));
        current.ended[action.index()] = true;
        current.left -= 1;
        current.losses.extend(outcome.loss);
        current.norm = current.norm.or(outcome.norm);
        current.left_out |= outcome.left_out;
        if current.left == 0 {
            state.finish(self.rules, iteration, end);
        }
        drop(state);
        self.changed.notify_all();
        gone
    }

    /// Stops everyone; the first failure counts.
    pub fn fail(&self, failure: RunError) {
        self.lock().failure.get_or_insert(failure);
        self.changed.notify_all();
    }

    /// Lets iterations that have begun end, and begins no more.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.limit = state.limit.min(state.begun());
        state.steps = state.limit;
        drop(state);
        self.changed.notify_all();
    }

    /// Lets iterations before `limit` begin. Once they are over, nothing runs until more may.
    pub fn allow(&self, limit: u32) {
        let mut state = self.lock();
        state.limit = limit.min(state.steps);
        state.resume(self.now());
        drop(state);
        self.changed.notify_all();
    }

    /// Iterations that are over, and whether more are to come.
    pub fn progress(&self) -> (u32, bool) {
        let state = self.lock();
        let done = state.durations.len() as u32;
        (done, done < state.steps)
    }

    /// Waits for the next iteration to be over; none if all that may begin are.
    pub fn next_finished(&self) -> Result<Option<Finished>, RunError> {
        let mut state = self.lock();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if let Some(finished) = state.finished.pop_front() {
                return Ok(Some(finished));
            }
            if state.durations.len() as u32 >= state.limit {
                return Ok(None);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The failure, if there was one, and what is known otherwise.
    pub fn into_state(self) -> Result<State, RunError> {
        let mut state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match state.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(state),
        }
    }
}

fn nanoseconds(duration: Duration) -> SimTime {
    SimTime::ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
