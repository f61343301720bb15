//! What everyone who meets at the [board](crate::board) sees.

use crate::{
    RunError,
    account::{Account, Instance},
    rules::Rules,
};
use spipe_base::{ActionId, Bytes, IdleCause, LaneId, MemoryId, SimTime};
use spipe_schedule::{Anchor, Precedence};
use spipe_trace::Shortage;
use std::collections::{BTreeMap, VecDeque};

/// How one action went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    /// When everything it waited for was there; the end of the lane's action before it if that was later.
    pub ready: SimTime,
    pub start: SimTime,
    pub end: SimTime,
    /// What came last among what it waited for.
    pub last: Option<Last>,
    /// Whether its lane stood idle for it.
    pub waited: bool,
}

/// The thing that came last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Last {
    pub cause: IdleCause,
    /// The action of the same iteration that it came from, if it did.
    pub from: Option<ActionId>,
}

/// One iteration while it is remembered.
#[derive(Debug)]
pub(crate) struct Iteration {
    pub records: Vec<Record>,
    pub started: Vec<bool>,
    pub ended: Vec<bool>,
    /// Actions that have not ended.
    pub left: usize,
    /// Losses by microbatch.
    pub losses: BTreeMap<usize, f64>,
    /// The norm of the gradients that it stepped with, where somebody has asked for it.
    pub norm: Option<f64>,
    /// Whether it stepped nothing.
    pub left_out: bool,
}

/// An iteration that is over.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub index: u32,
    pub loss: f64,
    pub norm: Option<f64>,
    pub left_out: bool,
    /// From the end of the iteration before, or the start of the run.
    pub duration: SimTime,
    pub peaks: BTreeMap<String, Bytes>,
}

/// What an action leaves behind.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What its buffers really come to now.
    pub held: Vec<(Instance, Bytes)>,
    /// The loss of a microbatch.
    pub loss: Option<(usize, f64)>,
    /// The norm of all gradients.
    pub norm: Option<f64>,
    /// Whether all steps are left out, because some gradients are not finite.
    pub left_out: bool,
    /// When it was over, if that was before this was known.
    pub end: Option<std::time::Instant>,
}

/// How far a lane has come.
#[derive(Debug, Default)]
pub(crate) struct LaneState {
    /// Over all iterations.
    pub position: usize,
    pub running: bool,
    pub free_since: SimTime,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct State {
    pub iterations: VecDeque<Iteration>,
    /// The number of the first of them.
    pub oldest: u32,
    pub lanes: Vec<LaneState>,
    pub account: Account,
    /// When memory was last freed, by memory.
    pub freed: Vec<SimTime>,
    /// Iterations of the run.
    pub steps: u32,
    /// Iterations that may begin by now; lanes wait before the others.
    pub limit: u32,
    /// Of the iterations that are over.
    pub durations: Vec<SimTime>,
    pub losses: Vec<f64>,
    /// Those that nobody has asked for yet.
    pub finished: VecDeque<Finished>,
    pub failure: Option<RunError>,
    last_end: SimTime,
}

/// Iterations that are remembered for the trace.
const REMEMBERED: usize = 65;

/// What keeps an action from starting.
#[derive(Clone, Copy)]
pub(crate) enum Block {
    /// Nothing.
    Ready(Turn),
    /// An action that has not come far enough.
    Precedence,
    /// Time that must pass.
    Until(SimTime),
    /// Memory.
    Memory(MemoryId, Bytes),
}

/// When the last thing came that an action waited for, and what it was.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub at: SimTime,
    pub last: Option<Last>,
}

impl State {
    /// Before the first of `steps` iterations.
    pub fn new(rules: &Rules<'_>, steps: u32) -> Self {
        Self {
            iterations: VecDeque::new(),
            oldest: 0,
            lanes: rules.program.lanes().iter().map(|_| LaneState::default()).collect(),
            account: Account::new(rules),
            freed: vec![SimTime::ZERO; rules.program.memories().len()],
            steps,
            limit: steps,
            durations: Vec::new(),
            losses: Vec::new(),
            finished: VecDeque::new(),
            failure: None,
            last_end: SimTime::ZERO,
        }
    }

    pub fn iteration(&mut self, iteration: u32) -> &mut Iteration {
        &mut self.iterations[(iteration - self.oldest) as usize]
    }

    /// Makes room for an iteration, and forgets the oldest ones that are over.
    pub fn remember(&mut self, rules: &Rules<'_>, iteration: u32) {
        let actions = rules.program.actions().len();
        while self.oldest + self.iterations.len() as u32 <= iteration {
            self.iterations.push_back(Iteration {
                records: vec![Record::default(); actions],
                started: vec![false; actions],
                ended: vec![false; actions],
                left: actions,
                losses: BTreeMap::new(),
                norm: None,
                left_out: false,
            });
        }
        // The one before the current one is still waited for.
        while self.iterations.len() > REMEMBERED && self.iterations[0].left == 0 && self.iterations[1].left == 0 {
            self.iterations.pop_front();
            self.oldest += 1;
            let start = self.iterations[0].records.iter().map(|record| record.start).min().unwrap_or_default();
            self.account.forget_before(start);
        }
    }

    /// What keeps an action from starting now.
    pub fn block(&self, rules: &Rules<'_>, iteration: u32, action: ActionId, now: SimTime) -> Block {
        let mut turn = Turn { at: SimTime::ZERO, last: None };
        for precedence in &rules.arriving[action] {
            let Some(met) = self.met(precedence, iteration) else { return Block::Precedence };
            let due = met + precedence.lag;
            if due >= turn.at {
                let from = (precedence.distance == 0).then_some(precedence.from);
                turn = Turn { at: due, last: Some(Last { cause: precedence.cause, from }) };
            }
        }
        if turn.at > now {
            return Block::Until(turn.at);
        }
        for (memory, needed) in rules.needs(action) {
            if needed > self.account.free(rules, memory) {
                return Block::Memory(memory, needed);
            }
        }
        Block::Ready(turn)
    }

    /// When a precedence was met; none if it has not been.
    fn met(&self, precedence: &Precedence, iteration: u32) -> Option<SimTime> {
        let Some(of) = iteration.checked_sub(u32::from(precedence.distance)) else { return Some(SimTime::ZERO) };
        let Some(index) = of.checked_sub(self.oldest) else { return Some(SimTime::ZERO) };
        let there = self.iterations.get(index as usize)?;
        let record = &there.records[precedence.from.index()];
        match precedence.anchor {
            Anchor::EndToStart => there.ended[precedence.from.index()].then_some(record.end),
            Anchor::StartToStart => there.started[precedence.from.index()].then_some(record.start),
        }
    }

    /// Writes down that an iteration is over.
    pub fn finish(&mut self, rules: &Rules<'_>, index: u32, end: SimTime) {
        let first = self.durations.is_empty();
        let current = self.iteration(index);
        let start = current.records.iter().map(|record| record.start).min().unwrap_or_default();
        // Ascending, like every other sum over microbatches.
        let loss = current.losses.values().sum::<f64>() / current.losses.len().max(1) as f64;
        let (norm, left_out) = (current.norm, current.left_out);
        let duration = end - if first { start } else { self.last_end };
        self.last_end = end;
        self.durations.push(duration);
        self.losses.push(loss);
        let peaks = self.account.take_recent_peaks(rules);
        self.finished.push_back(Finished { index, loss, norm, left_out, duration, peaks });
    }

    /// Counts nothing before `now` as time of the next iteration: nothing ran, on purpose.
    pub fn resume(&mut self, now: SimTime) {
        self.last_end = now;
        for lane in &mut self.lanes {
            lane.free_since = now;
        }
    }

    /// Iterations of which an action has started.
    pub fn begun(&self) -> u32 {
        let begun = self.iterations.iter().rposition(|iteration| iteration.started.contains(&true));
        self.oldest + begun.map_or(0, |last| last as u32 + 1)
    }

    /// What is wrong if no lane runs and none can start: no memory, or a circle.
    pub fn stall(&self, rules: &Rules<'_>, now: SimTime) -> Option<RunError> {
        let mut shortage = None;
        let mut waiting = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            let Some((iteration, action)) = rules.at(LaneId::from(index), lane.position) else { continue };
            if lane.running {
                return None;
            }
            if iteration >= self.limit {
                continue;
            }
            match self.block(rules, iteration, action, now) {
                Block::Ready(_) | Block::Until(_) => return None,
                Block::Precedence => waiting.push(rules.program.describe(action)),
                Block::Memory(memory, needed) => {
                    shortage.get_or_insert((memory, needed, action));
                }
            }
        }
        Some(match shortage {
            Some((memory, needed, action)) => RunError::OutOfMemory(Box::new(Shortage {
                memory: rules.program.memories()[memory].name.clone(),
                at: now,
                needed,
                free: self.account.free(rules, memory),
                action: rules.program.describe(action),
                holders: self.account.holders(rules, memory),
            })),
            None => RunError::Stalled { waiting: waiting.join(", ") },
        })
    }

    /// The failure of more being held somewhere than there is room for, once `done` is.
    pub fn exceeded(&self, rules: &Rules<'_>, done: impl Fn() -> String) -> Option<RunError> {
        let (memory, held) = self.account.exceeded(rules)?;
        let space = &rules.program.memories()[memory];
        Some(RunError::Exceeded { memory: space.name.clone(), capacity: rules.capacity(memory), held, done: done() })
    }
}
