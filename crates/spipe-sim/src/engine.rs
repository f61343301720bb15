//! The event loop.

mod steady;

use crate::{
    Options,
    lanes::LaneSet,
    memory::{Memories, opened, used, users},
    network::{Finish, Network},
};
use spipe_base::{ActionId, Bytes, IdleCause, LaneId, MemoryId, SimTime};
use spipe_schedule::{Anchor, Outcome, Precedence, Program};
use std::{cmp::Reverse, collections::BinaryHeap, num::NonZeroU32};

/// An action of one iteration, packed: there is one for each action of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    /// Before it starts, when its last precedence was met.
    pub start: SimTime,
    pub end: SimTime,
    /// By whom its last precedence was met, counted from one.
    met_by: Option<NonZeroU32>,
    /// Before it starts, precedences still to be met; then, work and flows still under way.
    waiting: u32,
    /// Why the last precedence mattered.
    pub cause: IdleCause,
    /// It could have started earlier but for memory.
    pub lacked_memory: bool,
    /// It has started.
    begun: bool,
    /// Its guard was not met.
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

    /// By whom its last precedence was met, if that was in the same iteration.
    pub fn met_by(&self) -> Option<ActionId> {
        self.met_by.map(|number| ActionId::new(number.get() - 1))
    }
}

/// One iteration under way.
pub(crate) struct Round {
    /// Empty once the iteration is long over.
    pub states: Vec<State>,
    /// Users still to come, by buffer; empty once the iteration is over.
    users: Vec<u32>,
    left: usize,
    /// The first start.
    pub first: Option<SimTime>,
    /// The last end, by lane.
    pub ends: Vec<SimTime>,
}

/// What an iteration begins with.
#[derive(Clone)]
struct Next {
    /// How many precedences each action waits for.
    waiting: Vec<u32>,
    /// How many actions use each buffer.
    users: Vec<u32>,
}

impl Next {
    /// With precedences of at most that distance.
    fn of(program: &Program, most: u8) -> Self {
        let mut waiting = vec![0; program.actions().len()];
        for precedence in program.precedences().iter().filter(|precedence| precedence.distance <= most) {
            waiting[precedence.to.index()] += 1;
        }
        Self { waiting, users: users(program) }
    }
}

/// Something that happens at a point in time. The order of variants is the order at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The work of an action is done.
    Worked(u32, ActionId),
    /// A flow has moved its last byte, unless the event is stale.
    Moved(u32, u32),
    /// The latency of the numbered flow of an action is over.
    Arrived(u32, ActionId, u32),
    /// The numbered precedence is met after its lag.
    Met(u32, u32),
}

/// An event in the queue: packed into integers, so that the queue compares numbers. The order is that of time, then of
/// variants, then of their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: SimTime,
    /// Two bits of variant, thirty of the first field, thirty-two of the second.
    what: u64,
    third: u32,
}

/// Iterations are numbered with thirty bits.
const MOST_ITERATIONS: u32 = (1 << 30) - 1;

/// As many actions are simulated in a few milliseconds.
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

/// How a run ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// With whole iterations.
    Done { steady: bool },
    /// An action lacks memory and nothing can release it.
    OutOfMemory { action: Option<ActionId>, memory: MemoryId, needed: Bytes },
}

pub(crate) struct Engine<'a> {
    program: &'a Program,
    options: &'a Options,
    /// How far apart the first two iterations may begin.
    within: Option<SimTime>,
    /// What all iterations but the first begin with; nothing before the second.
    next: Option<Next>,
    network: Network<'a>,
    pub memories: Memories,
    pub rounds: Vec<Round>,
    /// For each lane: iteration and position of its next action, and whether it is busy.
    heads: Vec<(u32, usize)>,
    busy: Vec<bool>,
    /// Lanes whose next action may be startable now.
    candidates: LaneSet,
    /// Lanes whose next action lacks memory.
    parked: LaneSet,
    events: BinaryHeap<Reverse<Due>>,
    now: SimTime,
    pub simulated: u64,
    whole: u32,
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

    /// How many whole iterations there are.
    pub const fn whole(&self) -> u32 {
        self.whole
    }

    /// The clock.
    pub const fn now(&self) -> SimTime {
        self.now
    }

    /// Makes sure that the iteration has its states.
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

    /// Lets a flow of `action` begin to move.
    fn flow(&mut self, iteration: u32, action: ActionId, flow: usize) {
        let owner = (u64::from(iteration) << 32) | action.index() as u64;
        let flow = &self.program.actions()[action].flows[flow];
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

    fn end(&mut self, iteration: u32, action: ActionId) {
        let now = self.now;
        self.simulated += 1;
        let round = &mut self.rounds[iteration as usize];
        round.states[action.index()].end = now;
        round.left -= 1;
        round.ends[self.program.actions()[action].lane.index()] = now;
        let mut released = false;
        used(&self.program.actions()[action], |buffer| {
            // None are counted of what is held throughout.
            let users = &mut round.users[buffer.index()];
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

    /// Meets the precedences that leave `action` by that anchor.
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

    /// Starts whatever can start now, lanes in the order of their ids.
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
                self.skip(iteration, action, outcome);
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
        for buffer in opened(program, this) {
            self.memories.open(program, buffer, now);
        }
        let round = &mut self.rounds[iteration as usize];
        round.first.get_or_insert(now);
        let state = &mut round.states[action.index()];
        state.lacked_memory &= now > state.start;
        state.begun = true;
        state.start = now;
        // A pure copy has no work whose end would be worth an event.
        let works = this.work > SimTime::ZERO || this.flows.is_empty();
        state.waiting = u32::from(works) + this.flows.len() as u32;
        if works {
            self.events.push(Reverse(Due::new(now + this.work, Event::Worked(iteration, action))));
        }
        for (index, flow) in this.flows.iter().enumerate() {
            if flow.latency == SimTime::ZERO {
                self.flow(iteration, action, index);
            } else {
                let at = SimTime::ns(now.as_ns().saturating_add(flow.latency.as_ns()));
                self.events.push(Reverse(Due::new(at, Event::Arrived(iteration, action, index as u32))));
            }
        }
        self.release(iteration, action, Anchor::StartToStart);
    }

    /// Passes over an action whose guard is not met: it takes no time, and what waits for it goes on.
    fn skip(&mut self, iteration: u32, action: ActionId, _: Outcome) {
        let now = self.now;
        let state = &mut self.rounds[iteration as usize].states[action.index()];
        state.skipped = true;
        state.start = now;
        let program = self.program;
        for buffer in opened(program, &program.actions()[action]) {
            self.memories.open(program, buffer, now);
        }
        self.release(iteration, action, Anchor::StartToStart);
        self.end(iteration, action);
    }

    /// Nothing can happen any more, and not all is done.
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
        unreachable!("a checked program has no circle of precedences, so only memory can stop it")
    }
}
