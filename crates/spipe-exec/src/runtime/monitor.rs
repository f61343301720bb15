//! The monitor on which lanes synchronise: one lock around the [`RunState`], and one condition
//! variable.
//!
//! Every wait is on that condition, and a failure wakes everyone who waits.

use crate::{
    actions::{Outcome, store::Instance},
    error::RunError,
    runtime::{
        program_index::ProgramIndex,
        run_state::{Block, Finished, LastCondition, RunState, Timing},
    },
};
use spipe_base::{ActionId, IdleCause, LaneId, SimTime};
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A [`RunState`] with its lock and condition variable.
#[derive(Debug)]
pub(crate) struct Monitor<'a> {
    pub program_index: &'a ProgramIndex<'a>,
    state: Mutex<RunState>,
    changed: Condvar,
    zero: Instant,
}

impl<'a> Monitor<'a> {
    /// A monitor before the first of `steps` iterations.
    pub fn new(program_index: &'a ProgramIndex<'a>, steps: u32) -> Self {
        Self {
            program_index,
            state: Mutex::new(RunState::new(program_index, steps)),
            changed: Condvar::new(),
            zero: Instant::now(),
        }
    }

    /// Time since the run began.
    pub fn now(&self) -> SimTime {
        nanoseconds(self.zero.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `look` on the state, under the lock.
    pub fn with<T>(&self, look: impl FnOnce(&mut RunState) -> T) -> T {
        look(&mut self.lock())
    }

    /// Whether a lane or the caller has failed.
    pub fn has_failed(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// Waits until the lane's next action may start, then acquires its memory and starts it; none
    /// if the run is over.
    pub fn begin(&self, lane: LaneId) -> Option<(u32, ActionId)> {
        let mut state = self.lock();
        let (iteration, action) = self.program_index.at(lane, state.lanes[lane.index()].position)?;
        let mut short_of = None;
        let mut readiness = loop {
            if state.failure.is_some() || iteration >= state.steps {
                return None;
            }
            if iteration >= state.limit {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.remember(self.program_index, iteration);
            match state.block(self.program_index, iteration, action, self.now()) {
                Block::Ready(readiness) => break readiness,
                Block::Until(due) => {
                    let left = Duration::from_nanos(due.saturating_sub(self.now()).as_ns());
                    state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
                Block::Memory(memory, _) => short_of = Some(memory),
                Block::Precedence => {}
            }
            if let Some(failure) = state.stall(self.program_index, self.now()) {
                state.failure = Some(failure);
                self.changed.notify_all();
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        if let Some(freed) = short_of.map(|memory| state.freed[memory.index()]).filter(|freed| *freed > readiness.at) {
            readiness.at = freed;
            readiness.last = Some(LastCondition { cause: IdleCause::Memory, from: None });
        }
        let start = self.now();
        let free_since = state.lanes[lane.index()].free_since;
        state.lanes[lane.index()].running = true;
        for buffer in &self.program_index.opens[action] {
            state.ledger.acquire(self.program_index, start, self.program_index.program.instance(*buffer, iteration));
        }
        let waited = readiness.at > free_since;
        let current = state.iteration(iteration);
        current.started[action.index()] = true;
        current.timings[action.index()] =
            Timing { ready: readiness.at.max(free_since), start, end: start, last: readiness.last, waited };
        drop(state);
        self.changed.notify_all();
        Some((iteration, action))
    }

    /// Ends the lane's action; returns the instances that nobody uses any longer.
    pub fn end(&self, lane: LaneId, (iteration, action): (u32, ActionId), outcome: Outcome) -> Vec<Instance> {
        let end = self.now();
        let over = outcome.end.map(|over| nanoseconds(over.saturating_duration_since(self.zero)));
        let mut state = self.lock();
        let holds = !outcome.held.is_empty();
        for (instance, bytes) in outcome.held {
            state.ledger.hold(self.program_index, end, instance, bytes);
        }
        if let Some(failure) =
            holds.then(|| state.exceeded(self.program_index, || self.program_index.program.describe(action))).flatten()
        {
            state.failure.get_or_insert(failure);
        }
        let mut gone = Vec::new();
        for buffer in &self.program_index.uses[action] {
            let instance = self.program_index.program.instance(*buffer, iteration);
            if state.ledger.release(self.program_index, end, instance) {
                state.freed[self.program_index.program.buffers()[*buffer].memory.index()] = end;
                gone.push(instance);
            }
        }
        state.lanes[lane.index()].running = false;
        state.lanes[lane.index()].position += 1;
        state.lanes[lane.index()].free_since = end;
        let current = state.iteration(iteration);
        let timing = &mut current.timings[action.index()];
        timing.end = over.map_or(end, |over| over.clamp(timing.start, end));
        current.ended[action.index()] = true;
        current.left -= 1;
        current.losses.extend(outcome.loss);
        current.norm = current.norm.or(outcome.norm);
        current.left_out |= outcome.left_out;
        if current.left == 0 {
            state.finish(self.program_index, iteration, end);
        }
        drop(state);
        self.changed.notify_all();
        gone
    }

    /// Fails the run; the first failure counts.
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

    /// Lets iterations before `limit` begin, and does not count the pause before.
    pub fn allow(&self, limit: u32) {
        let mut state = self.lock();
        state.limit = limit.min(state.steps);
        state.resume(self.now());
        drop(state);
        self.changed.notify_all();
    }

    /// Number of finished iterations, and whether more are to come.
    pub fn progress(&self) -> (u32, bool) {
        let state = self.lock();
        let done = state.durations.len() as u32;
        (done, done < state.steps)
    }

    /// Waits for the next iteration to finish; none if all that may begin are finished.
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

    /// The final state, or the failure.
    pub fn into_state(self) -> Result<RunState, RunError> {
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
