//! The state that lanes share under the lock of the [monitor](super::monitor).

use crate::{
    device::recent_launches,
    error::RunError,
    host::Watched,
    report::ThreadWork,
    runtime::{ledger::MemoryLedger, program_index::ProgramIndex},
};
use spipe_base::{ActionId, Bytes, IdleCause, LaneId, MemoryId, SimTime};
use spipe_schedule::{Anchor, Precedence};
use spipe_trace::Shortage;
use std::collections::{BTreeMap, VecDeque};

/// Times of one action.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    /// When its last precedence was met, or when its lane became free if that was later.
    pub ready: SimTime,
    pub start: SimTime,
    pub end: SimTime,
    /// The condition that was met last.
    pub last: Option<LastCondition>,
    /// Whether its lane stood idle for it.
    pub waited: bool,
}

/// The condition that was met last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastCondition {
    pub cause: IdleCause,
    /// The action that met it, if it is of the same iteration.
    pub from: Option<ActionId>,
}

/// One iteration, while it is remembered.
#[derive(Debug)]
pub(crate) struct Iteration {
    pub timings: Vec<Timing>,
    pub started: Vec<bool>,
    pub ended: Vec<bool>,
    /// Number of actions that have not ended.
    pub left: usize,
    /// Losses by microbatch.
    pub losses: BTreeMap<usize, f64>,
    /// The norm of all gradients, if it was computed.
    pub norm: Option<f64>,
    /// Whether all steps were skipped.
    pub left_out: bool,
}

/// A finished iteration.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub index: u32,
    pub loss: f64,
    pub norm: Option<f64>,
    pub left_out: bool,
    /// Time since the end of the iteration before, or since the start of the run.
    pub duration: SimTime,
    pub peaks: BTreeMap<String, Bytes>,
    pub work: Vec<ThreadWork>,
    /// Kernels launched on GPUs since the iteration before.
    pub launches: Option<u64>,
}

/// The progress of a lane.
#[derive(Debug, Default)]
pub(crate) struct LaneState {
    /// Number of its actions that have ended, over all iterations.
    pub position: usize,
    pub running: bool,
    pub free_since: SimTime,
}

/// The state of a run.
#[derive(Debug)]
pub(crate) struct RunState {
    pub iterations: VecDeque<Iteration>,
    /// The number of the first of them.
    pub oldest: u32,
    pub lanes: Vec<LaneState>,
    pub ledger: MemoryLedger,
    /// When memory was last freed, by memory.
    pub freed: Vec<SimTime>,
    /// Number of iterations of the run.
    pub steps: u32,
    /// Iterations before this one may begin; lanes wait before the others.
    pub limit: u32,
    /// Of all finished iterations.
    pub durations: Vec<SimTime>,
    pub losses: Vec<f64>,
    /// Finished iterations that the caller has not seen yet.
    pub finished: VecDeque<Finished>,
    pub failure: Option<RunError>,
    /// The threads whose work with memory is counted.
    pub watched: Vec<Watched>,
    last_end: SimTime,
}

/// Number of iterations remembered for the trace.
const REMEMBERED: usize = 65;

/// Whether an action can start.
#[derive(Clone, Copy)]
pub(crate) enum Block {
    /// It can.
    Ready(Readiness),
    /// An action before it has not come far enough.
    Precedence,
    /// A lag has not passed.
    Until(SimTime),
    /// Memory is short.
    Memory(MemoryId, Bytes),
}

/// When the last condition of an action was met, and which it was.
#[derive(Clone, Copy)]
pub(crate) struct Readiness {
    pub at: SimTime,
    pub last: Option<LastCondition>,
}

impl RunState {
    /// The state before the first of `steps` iterations.
    pub fn new(program_index: &ProgramIndex<'_>, steps: u32) -> Self {
        Self {
            iterations: VecDeque::new(),
            oldest: 0,
            lanes: program_index.program.lanes().iter().map(|_| LaneState::default()).collect(),
            ledger: MemoryLedger::new(program_index),
            freed: vec![SimTime::ZERO; program_index.program.memories().len()],
            steps,
            limit: steps,
            durations: Vec::new(),
            losses: Vec::new(),
            finished: VecDeque::new(),
            failure: None,
            watched: Vec::new(),
            last_end: SimTime::ZERO,
        }
    }

    pub fn iteration(&mut self, iteration: u32) -> &mut Iteration {
        &mut self.iterations[(iteration - self.oldest) as usize]
    }

    /// Makes room for an iteration, and forgets the oldest finished ones.
    pub fn remember(&mut self, program_index: &ProgramIndex<'_>, iteration: u32) {
        let actions = program_index.program.actions().len();
        while self.oldest + self.iterations.len() as u32 <= iteration {
            self.iterations.push_back(Iteration {
                timings: vec![Timing::default(); actions],
                started: vec![false; actions],
                ended: vec![false; actions],
                left: actions,
                losses: BTreeMap::new(),
                norm: None,
                left_out: false,
            });
        }
        // Actions may still wait for the iteration before the current one.
        while self.iterations.len() > REMEMBERED && self.iterations[0].left == 0 && self.iterations[1].left == 0 {
            self.iterations.pop_front();
            self.oldest += 1;
            let start = self.iterations[0].timings.iter().map(|timing| timing.start).min().unwrap_or_default();
            self.ledger.forget_before(start);
        }
    }

    /// Whether an action can start now, or why not.
    pub fn block(&self, program_index: &ProgramIndex<'_>, iteration: u32, action: ActionId, now: SimTime) -> Block {
        let mut readiness = Readiness { at: SimTime::ZERO, last: None };
        for precedence in &program_index.arriving[action] {
            let Some(met) = self.met(precedence, iteration) else { return Block::Precedence };
            let due = met + precedence.lag;
            if due >= readiness.at {
                let from = (precedence.distance == 0).then_some(precedence.from);
                readiness = Readiness { at: due, last: Some(LastCondition { cause: precedence.cause, from }) };
            }
        }
        if readiness.at > now {
            return Block::Until(readiness.at);
        }
        for (memory, needed) in program_index.needs(action) {
            if needed > self.ledger.free(program_index, memory) {
                return Block::Memory(memory, needed);
            }
        }
        Block::Ready(readiness)
    }

    /// When a precedence was met; none if it is not met yet.
    fn met(&self, precedence: &Precedence, iteration: u32) -> Option<SimTime> {
        let Some(of) = iteration.checked_sub(u32::from(precedence.distance)) else { return Some(SimTime::ZERO) };
        let Some(index) = of.checked_sub(self.oldest) else { return Some(SimTime::ZERO) };
        let there = self.iterations.get(index as usize)?;
        let timing = &there.timings[precedence.from.index()];
        match precedence.anchor {
            Anchor::EndToStart => there.ended[precedence.from.index()].then_some(timing.end),
            Anchor::StartToStart => there.started[precedence.from.index()].then_some(timing.start),
        }
    }

    /// Records the end of an iteration.
    pub fn finish(&mut self, program_index: &ProgramIndex<'_>, index: u32, end: SimTime) {
        let first = self.durations.is_empty();
        let current = self.iteration(index);
        let start = current.timings.iter().map(|timing| timing.start).min().unwrap_or_default();
        // In ascending order, like every other sum over microbatches.
        let loss = current.losses.values().sum::<f64>() / current.losses.len().max(1) as f64;
        let (norm, left_out) = (current.norm, current.left_out);
        let duration = end - if first { start } else { self.last_end };
        self.last_end = end;
        self.durations.push(duration);
        self.losses.push(loss);
        let peaks = self.ledger.take_recent_peaks(program_index);
        let launches = recent_launches();
        let work = self.watched.iter_mut().map(|watched| {
            let work = watched.take();
            ThreadWork { name: watched.name.clone(), computes: watched.computes, work }
        });
        let work = work.collect();
        self.finished.push_back(Finished { index, loss, norm, left_out, duration, peaks, work, launches });
    }

    /// Excludes the time before `now`, a deliberate pause, from the next iteration.
    pub fn resume(&mut self, now: SimTime) {
        self.last_end = now;
        for lane in &mut self.lanes {
            lane.free_since = now;
        }
    }

    /// Number of iterations of which an action has started.
    pub fn begun(&self) -> u32 {
        let begun = self.iterations.iter().rposition(|iteration| iteration.started.contains(&true));
        self.oldest + begun.map_or(0, |last| last as u32 + 1)
    }

    /// The failure if no lane runs and none can start: short memory or a cycle.
    pub fn stall(&self, program_index: &ProgramIndex<'_>, now: SimTime) -> Option<RunError> {
        let mut shortage = None;
        let mut waiting = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            let Some((iteration, action)) = program_index.at(LaneId::from(index), lane.position) else { continue };
            if lane.running {
                return None;
            }
            if iteration >= self.limit {
                continue;
            }
            match self.block(program_index, iteration, action, now) {
                Block::Ready(_) | Block::Until(_) => return None,
                Block::Precedence => waiting.push(program_index.program.describe(action)),
                Block::Memory(memory, needed) => {
                    shortage.get_or_insert((memory, needed, action));
                }
            }
        }
        Some(match shortage {
            Some((memory, needed, action)) => RunError::OutOfMemory(Box::new(Shortage {
                memory: program_index.program.memories()[memory].name.clone(),
                at: now,
                needed,
                free: self.ledger.free(program_index, memory),
                action: program_index.program.describe(action),
                holders: self.ledger.holders(program_index, memory),
            })),
            None => RunError::Stalled { waiting: waiting.join(", ") },
        })
    }

    /// The failure if a memory holds more than its capacity after `done`.
    pub fn exceeded(&self, program_index: &ProgramIndex<'_>, done: impl Fn() -> String) -> Option<RunError> {
        let (memory, held) = self.ledger.exceeded(program_index)?;
        let space = &program_index.program.memories()[memory];
        Some(RunError::Exceeded {
            memory: space.name.clone(),
            capacity: program_index.capacity(memory),
            held,
            done: done(),
        })
    }
}
