//! The event loop.

mod steady;

use crate::{
    Options,
    lanes::LaneSet,
    memory::{Memories, releasing_users},
    network::{Finish, Network},
};
use spipe_base::{ActionId, BufferId, Bytes, IdVec, IdleCause, LaneId, MemoryId, SimTime};
use spipe_schedule::{Anchor, Precedence, Program};
use std::{cmp::Reverse, collections::BinaryHeap, num::NonZeroU32};

/// The state of an action in one iteration, packed because there is one for every action of the
/// program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    /// Its start; before that, the time when its last precedence was met.
    pub start: SimTime,
    pub end: SimTime,
    /// The action that met its last precedence, counted from one.
    met_by: Option<NonZeroU32>,
    /// Before its start, the number of precedences to be met; then, the number of its work and
    /// flows under way.
    waiting: u32,
    /// The idle cause of the last precedence.
    pub cause: IdleCause,
    /// Whether lack of memory delayed its start.
    pub lacked_memory: bool,
    /// Whether it has started.
    begun: bool,
    /// Whether its guard was not met.
    pub skipped: bool,
}

impl State {
    const WAITING: Self = Self {
        start: SimTime::ZERO,
        end: SimTime::ZERO,
        met_by: None,
        waiting: 0,
        cause: IdleCause::Order,
        lacked_memory: false,
        begun: false,
        skipped: false,
    };

    /// The action that met its last precedence, if it is of the same iteration.
    pub fn met_by(&self) -> Option<ActionId> {
        self.met_by.map(|number| ActionId::new(number.get() - 1))
    }
}

/// An iteration.
pub(crate) struct Round {
    /// By action; empty once the iteration is no longer needed.
    pub states: Vec<State>,
    /// By buffer, the number of actions that have yet to use it; empty once the iteration is over.
    users: IdVec<BufferId, u32>,
    /// The number of actions that have yet to end.
    left: usize,
    /// The start of its first action.
    pub first: Option<SimTime>,
    /// By lane, the last end.
    pub ends: Vec<SimTime>,
}

/// The initial counts of an iteration.
#[derive(Clone)]
struct Next {
    /// By action, the number of precedences.
    waiting: Vec<u32>,
    /// By buffer, the number of actions that use it.
    users: IdVec<BufferId, u32>,
}

impl Next {
    /// The counts with precedences of distance `most` or less.
    fn of(program: &Program, most: u8) -> Self {
        let mut waiting = vec![0; program.actions().len()];
        for precedence in program.precedences().iter().filter(|precedence| precedence.distance <= most) {
            waiting[precedence.to.index()] += 1;
        }
        Self { waiting, users: releasing_users(program) }
    }
}

/// An event. At one instant, events are processed in the order of variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The work of an action has ended.
    Worked(u32, ActionId),
    /// A flow has moved its last byte, unless the event is stale.
    Moved(u32, u32),
    /// The latency of a flow of an action has ended.
    Arrived(u32, ActionId, u32),
    /// The lag of a precedence has ended.
    Met(u32, u32),
}

/// An event in the queue, packed into integers so that the queue compares numbers. Events are
/// ordered by time, then by variant, then by fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: SimTime,
    /// Two bits for the variant, thirty for the first field, thirty-two for the second.
    what: u64,
    third: u32,
}

/// The largest number of an iteration, in thirty bits.
const MOST_ITERATIONS: u32 = (1 << 30) - 1;

/// The number of actions that is simulated in a few milliseconds.
const FEW_ACTIONS: u32 = 10_000;

impl Due {
    const fn new(at: SimTime, event: Event) -> Self {
        let (variant, first, second, third) = match event {
            Event::Worked(iteration, action) => (0, iteration, action.index() as u32, 0),
            Event::Moved(slot, version) => (1, slot, version, 0),
            Event::Arrived(iteration, action, flow) => (2, iteration, action.index() as u32, flow),
            Event::Met(iteration, precedence) => (3, iteration, precedence, 0),
        };
        Self { at, what: variant << 62 | (first as u64) << 32 | second as u64, third }
    }

    const fn event(self) -> Event {
        let (first, second) = ((self.what >> 32) as u32 & MOST_ITERATIONS, self.what as u32);
        match self.what >> 62 {
            0 => Event::Worked(first, ActionId::new(second)),
            1 => Event::Moved(first, second),
            2 => Event::Arrived(first, ActionId::new(second), self.third),
            _ => Event::Met(first, second),
        }
    }
}

/// The end of a run.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// All iterations are complete.
    Done { steady: bool },
    /// An action lacks memory that no running action can release.
    OutOfMemory { action: Option<ActionId>, memory: MemoryId, needed: Bytes },
}

/// The state of a run.
pub(crate) struct Engine<'a> {
    program: &'a Program,
    options: &'a Options,
    /// The longest time allowed between the starts of the first two iterations.
    within: Option<SimTime>,
    /// The initial counts of all iterations after the first; `None` until the second.
    next: Option<Next>,
    network: Network<'a>,
    pub memories: Memories,
    pub rounds: Vec<Round>,
    /// By lane, the iteration and position of its next action.
    heads: Vec<(u32, usize)>,
    /// By lane, whether it is busy.
    busy: Vec<bool>,
    /// The lanes whose next action may be able to start now.
    candidates: LaneSet,
    /// The lanes whose next action lacks memory.
    parked: LaneSet,
    events: BinaryHeap<Reverse<Due>>,
    now: SimTime,
    /// The number of simulated actions.
    pub simulated: u64,
    /// The number of complete iterations.
    whole: u32,
    /// Work space for new finish times of flows.
    finishes: Vec<Finish>,
}

impl<'a> Engine<'a> {
    pub fn new(program: &'a Program, options: &'a Options) -> Self {
        let lanes = program.lanes().len();
        Self {
            program,
            options,
            within: None,
            next: None,
            network: Network::new(program.channels()),
            memories: Memories::new(program),
            rounds: Vec::new(),
            heads: vec![(0, 0); lanes],
            busy: vec![false; lanes],
            candidates: LaneSet::full(lanes),
            parked: LaneSet::empty(lanes),
            events: BinaryHeap::new(),
            now: SimTime::ZERO,
            simulated: 0,
            whole: 0,
            finishes: Vec::new(),
        }
    }

    /// Runs whole iterations until they repeat, the limit is reached, or memory is exhausted.
    pub fn run(&mut self) -> End {
        if let Some(memory) = self.memories.overfull() {
            return End::OutOfMemory { action: None, memory, needed: self.memories.held[memory] };
        }
        if self.program.actions().is_empty() {
            self.round(0);
            return End::Done { steady: true };
        }
        loop {
            self.start_all();
            if let Some(end) = self.finished() {
                return end;
            }
            let Some(Reverse(due)) = self.events.pop() else { return self.stuck() };
            self.now = due.at;
            self.happen(due.event());
            while self.events.peek().is_some_and(|Reverse(next)| next.at == due.at) {
                if let Some(Reverse(due)) = self.events.pop() {
                    self.happen(due.event());
                }
            }
        }
    }

    /// The number of complete iterations.
    pub const fn whole(&self) -> u32 {
        self.whole
    }

    /// The time on the clock.
    pub const fn now(&self) -> SimTime {
        self.now
    }

    /// Adds the states of an iteration, if they are missing.
    fn round(&mut self, iteration: u32) {
        while self.rounds.len() <= iteration as usize {
            let next = match self.rounds.len() {
                0 => Next::of(self.program, 0),
                _ => self.next.get_or_insert_with(|| Next::of(self.program, u8::MAX)).clone(),
            };
            self.memories.expect(self.program);
            let state = |waiting: u32| State { waiting, ..State::WAITING };
            let states: Vec<State> = next.waiting.into_iter().map(state).collect();
            let ends = vec![SimTime::ZERO; self.program.lanes().len()];
            self.rounds.push(Round { left: states.len(), states, users: next.users, first: None, ends });
        }
    }

    /// Processes an event.
    fn happen(&mut self, event: Event) {
        match event {
            Event::Worked(iteration, action) => self.part_done(iteration, action),
            Event::Moved(slot, version) => {
                if let Some(owner) = self.network.finished(slot as usize, version) {
                    self.network.remove(slot as usize, self.now, &mut self.finishes);
                    self.expect_finishes();
                    self.part_done((owner >> 32) as u32, ActionId::new(owner as u32));
                }
            }
            Event::Arrived(iteration, action, flow) => self.flow(iteration, action, flow as usize),
            Event::Met(iteration, precedence) => {
                self.meet(iteration, &self.program.precedences()[precedence as usize]);
            }
        }
    }

    /// Starts a flow of `action`, after its latency.
    fn flow(&mut self, iteration: u32, action: ActionId, flow: usize) {
        let owner = (u64::from(iteration) << 32) | action.index() as u64;
        let flow = &self.program.flows(&self.program.actions()[action])[flow];
        self.network.add(self.now, flow, owner, &mut self.finishes);
        self.expect_finishes();
    }

    fn expect_finishes(&mut self) {
        for finish in self.finishes.drain(..) {
            self.events.push(Reverse(Due::new(finish.at, Event::Moved(finish.slot as u32, finish.version))));
        }
    }

    fn part_done(&mut self, iteration: u32, action: ActionId) {
        let state = &mut self.rounds[iteration as usize].states[action.index()];
        state.waiting -= 1;
        if state.waiting == 0 {
            self.end(iteration, action);
        }
    }

    /// Ends an action: releases its buffers and its lane, and meets precedences.
    fn end(&mut self, iteration: u32, action: ActionId) {
        let now = self.now;
        self.simulated += 1;
        let round = &mut self.rounds[iteration as usize];
        round.states[action.index()].end = now;
        round.left -= 1;
        round.ends[self.program.actions()[action].lane.index()] = now;
        let mut released = false;
        self.program.each_buffer(&self.program.actions()[action], |buffer| {
            // Buffers that are not released have a count of zero.
            let users = &mut round.users[buffer];
            if *users == 1 {
                self.memories.close(self.program, buffer, now);
                released = true;
            }
            *users = users.saturating_sub(1);
        });
        if released {
            self.candidates.take_all(&mut self.parked);
        }
        let lane = self.program.actions()[action].lane;
        self.busy[lane.index()] = false;
        self.propose(lane);
        self.release(iteration, action, Anchor::EndToStart);
    }

    /// Meets the precedences from `action` with the given anchor.
    fn release(&mut self, iteration: u32, action: ActionId, anchor: Anchor) {
        let program = self.program;
        for number in program.leaving(action) {
            let precedence = &program.precedences()[number];
            if precedence.anchor != anchor {
                continue;
            }
            let target = iteration + u32::from(precedence.distance);
            if target >= self.limit() {
                continue;
            }
            if precedence.lag == SimTime::ZERO {
                self.meet(target, precedence);
            } else {
                let met = Event::Met(target, number as u32);
                self.events.push(Reverse(Due::new(self.now + precedence.lag, met)));
            }
        }
    }

    fn meet(&mut self, iteration: u32, precedence: &Precedence) {
        let now = self.now;
        self.round(iteration);
        let state = &mut self.rounds[iteration as usize].states[precedence.to.index()];
        state.waiting -= 1;
        if now > state.start || precedence.cause <= state.cause {
            state.start = now;
            state.cause = precedence.cause;
            let number = NonZeroU32::MIN.saturating_add(precedence.from.index() as u32);
            state.met_by = (precedence.distance == 0).then_some(number);
        }
        if state.waiting == 0 {
            self.propose(self.program.actions()[precedence.to].lane);
        }
    }

    fn propose(&mut self, lane: LaneId) {
        self.candidates.insert(lane);
    }

    /// Starts all actions that can start now, in the order of lane ids.
    fn start_all(&mut self) {
        while let Some(lane) = self.candidates.pop_first() {
            self.start_lane(lane);
        }
    }

    fn start_lane(&mut self, lane: LaneId) {
        let program = self.program;
        let queue = &program.lanes()[lane].queue;
        if self.busy[lane.index()] || queue.is_empty() {
            return;
        }
        let (iteration, position) = self.heads[lane.index()];
        if iteration >= self.limit() {
            return;
        }
        let action = queue[position];
        self.round(iteration);
        if self.rounds[iteration as usize].states[action.index()].waiting > 0 {
            return;
        }
        if let Some(guard) = program.actions()[action].guard {
            let outcome = self.options.outcomes.get(&guard.check).copied().unwrap_or_default();
            if outcome != guard.outcome {
                self.advance(lane, iteration, position);
                self.skip(iteration, action);
                return;
            }
        }
        if self.memories.lacking(program, action).is_some() {
            self.parked.insert(lane);
            self.rounds[iteration as usize].states[action.index()].lacked_memory = true;
            return;
        }
        self.advance(lane, iteration, position);
        self.busy[lane.index()] = true;
        self.begin(iteration, action);
    }

    fn advance(&mut self, lane: LaneId, iteration: u32, position: usize) {
        let length = self.program.lanes()[lane].queue.len();
        self.heads[lane.index()] = if position + 1 < length { (iteration, position + 1) } else { (iteration + 1, 0) };
    }

    fn begin(&mut self, iteration: u32, action: ActionId) {
        let program = self.program;
        let now = self.now;
        let this = &program.actions()[action];
        for buffer in program.opened_by(this) {
            self.memories.open(program, buffer, now);
        }
        let round = &mut self.rounds[iteration as usize];
        round.first.get_or_insert(now);
        let state = &mut round.states[action.index()];
        state.lacked_memory &= now > state.start;
        state.begun = true;
        state.start = now;
        // A pure copy needs no event for the end of its work.
        let flows = program.flows(this);
        let works = this.work > SimTime::ZERO || flows.is_empty();
        state.waiting = u32::from(works) + flows.len() as u32;
        if works {
            self.events.push(Reverse(Due::new(now + this.work, Event::Worked(iteration, action))));
        }
        for (index, flow) in flows.iter().enumerate() {
            if flow.latency == SimTime::ZERO {
                self.flow(iteration, action, index);
            } else {
                let at = SimTime::ns(now.as_ns().saturating_add(flow.latency.as_ns()));
                self.events.push(Reverse(Due::new(at, Event::Arrived(iteration, action, index as u32))));
            }
        }
        self.release(iteration, action, Anchor::StartToStart);
    }

    /// Skips an action whose guard is not met: it takes no time, and meets its precedences.
    fn skip(&mut self, iteration: u32, action: ActionId) {
        let now = self.now;
        let state = &mut self.rounds[iteration as usize].states[action.index()];
        state.skipped = true;
        state.start = now;
        let program = self.program;
        for buffer in program.opened_by(&program.actions()[action]) {
            self.memories.open(program, buffer, now);
        }
        self.release(iteration, action, Anchor::StartToStart);
        self.end(iteration, action);
    }

    /// The end of a run without events in which actions remain.
    fn stuck(&self) -> End {
        for (lane, (iteration, position)) in self.heads.iter().enumerate() {
            if !self.parked.contains(LaneId::from(lane)) {
                continue;
            }
            let action = self.program.lanes()[LaneId::from(lane)].queue[*position];
            if let Some((memory, needed)) = self.memories.lacking(self.program, action) {
                debug_assert!(*iteration < self.limit());
                return End::OutOfMemory { action: Some(action), memory, needed };
            }
        }
        unreachable!("a checked program has no cycle of precedences, so only memory can stop it")
    }
}
