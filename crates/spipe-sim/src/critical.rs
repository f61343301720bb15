//! The critical cycle of a steady iteration: actions that each start when the one before permits.

use crate::{
    Options,
    engine::{Engine, State},
    report,
};
use spipe_base::{ActionId, ActionKind, SimTime, StageId};
use spipe_schedule::{Anchor, Precedence, Program};
use std::collections::{BTreeMap, BTreeSet};

/// The most actions with equal or earlier ends that are looked at for a stand-in.
const LOOK_BACK: usize = 64;

/// An action of the iteration that is the given number of iterations before the last one.
pub(crate) type At = (i64, ActionId);

/// Steady iterations, traversed backwards.
pub(crate) struct Steady<'e, 'a> {
    program: &'a Program,
    engine: &'e Engine<'a>,
    /// In ns.
    period: i64,
    /// Whether the last iteration repeats the one before.
    repeats: bool,
    /// By action, the precedences that it waits for.
    before: Vec<Vec<&'a Precedence>>,
    /// By action, its predecessor on its lane, and the number of iterations in between.
    in_lane: Vec<Option<(ActionId, i64)>>,
    /// The ends of actions in the last iteration, sorted.
    ends: Vec<(i64, ActionId)>,
}

/// The time that an iteration waits for actions other than passes, by their stage; empty if
/// iterations do not repeat.
pub(crate) fn waits(program: &Program, options: &Options, engine: &Engine<'_>) -> BTreeMap<StageId, SimTime> {
    let mut waits: BTreeMap<StageId, SimTime> = BTreeMap::new();
    if !engine.repeats() {
        return waits;
    }
    let cycle = Steady::new(program, engine, report::period(options, engine)).cycle();
    let Some((cycle, iterations)) = cycle else { return waits };
    for (action, time) in cycle {
        let action = &program.actions()[action];
        if let Some(stage) = action.subject.stage.filter(|_| !passes(action.kind)) {
            *waits.entry(stage).or_default() += SimTime::ns(time / iterations);
        }
    }
    waits.retain(|_, time| *time > SimTime::ZERO);
    waits
}

/// Whether an action is a pass, which every placement of its stage has.
const fn passes(kind: ActionKind) -> bool {
    kind.is_compute() && !matches!(kind, ActionKind::Recompute)
}

impl<'e, 'a> Steady<'e, 'a> {
    pub fn new(program: &'a Program, engine: &'e Engine<'a>, period: SimTime) -> Self {
        let mut before = vec![Vec::new(); program.actions().len()];
        for precedence in program.precedences() {
            before[precedence.to.index()].push(precedence);
        }
        let mut in_lane = vec![None; program.actions().len()];
        for queue in program.lanes().iter().map(|lane| &lane.queue) {
            for pair in queue.windows(2) {
                in_lane[pair[1].index()] = Some((pair[0], 0));
            }
            if let (Some(first), Some(last)) = (queue.first(), queue.last()) {
                in_lane[first.index()] = Some((*last, 1));
            }
        }
        let period = period.as_ns() as i64;
        let repeats = engine.repeats();
        let mut this = Self { program, engine, period, repeats, before, in_lane, ends: Vec::new() };
        this.ends = program.actions().ids().map(|action| (this.end((0, action)), action)).collect();
        this.ends.sort_unstable();
        this
    }

    /// The state of an action `back` iterations before the last one, and the time by which that of
    /// another iteration differs from it. Iterations that do not repeat are known as far as they are
    /// kept.
    fn state(&self, (back, action): At) -> (&State, i64) {
        let last = self.engine.whole() as usize - 1;
        let kept = usize::try_from(back).ok().filter(|back| !self.repeats && *back <= last);
        let round = kept.map(|back| &self.engine.rounds[last - back]).filter(|round| !round.states.is_empty());
        match round {
            Some(round) => (&round.states[action.index()], 0),
            None => (&self.engine.rounds[last].states[action.index()], -back * self.period),
        }
    }

    /// The start of an action on the clock, in ns.
    pub fn start(&self, at: At) -> i64 {
        let (state, shift) = self.state(at);
        state.start.as_ns() as i64 + shift
    }

    /// The end of an action on the clock, in ns.
    pub fn end(&self, at: At) -> i64 {
        let (state, shift) = self.state(at);
        state.end.as_ns() as i64 + shift
    }

    /// Whether the guard of an action was not met.
    pub fn is_skipped(&self, action: ActionId) -> bool {
        self.state((0, action)).0.skipped
    }

    /// Whether the iteration of an action exists: a single one has none before or after it.
    pub fn exists(&self, (back, _): At) -> bool {
        back == 0 || self.engine.whole() > 1
    }

    /// The start of the last iteration on the clock, in ns.
    pub fn origin(&self) -> Option<i64> {
        let last = self.engine.whole().checked_sub(1)?;
        self.engine.rounds[last as usize].first.map(|first| first.as_ns() as i64)
    }

    /// The action at the end of the critical path, with the end of the path: of repeating iterations
    /// the first action of the next one, which starts there; otherwise the one that ends last.
    pub fn last(&self, length: i64) -> Option<(At, i64)> {
        let runs = |action: &ActionId| !self.is_skipped(*action);
        if self.repeats {
            let first = self.program.actions().ids().filter(runs).min_by_key(|action| self.start((0, *action)))?;
            return Some(((-1, first), self.start((0, first)) + length));
        }
        let last = self.program.actions().ids().filter(runs).max_by_key(|action| self.end((0, *action)))?;
        Some(((0, last), self.end((0, last))))
    }

    /// Whether `before` let `at` start, with a latency in between.
    pub fn lets(&self, before: At, (back, action): At) -> bool {
        let from = |precedence: &&&Precedence| (back + i64::from(precedence.distance), precedence.from) == before;
        self.before[action.index()].iter().any(|precedence| from(&precedence))
    }

    /// The action that let another one start, none of `but`.
    pub fn let_start_but(&self, at: At, but: &BTreeSet<At>) -> Option<At> {
        self.let_start_among(at, &|before| !but.contains(&before) && self.exists(before))
    }

    /// The action that ends last at or before `moment` and starts before it, none of `but`: a stand-in
    /// where nothing let an action start at its very time.
    pub fn latest_end(&self, moment: i64, but: &BTreeSet<At>) -> Option<At> {
        let of = |back: i64| {
            let place = self.ends.partition_point(|(end, _)| end - back * self.period <= moment);
            let earlier = self.ends[..place].iter().rev().map(|(_, action)| (back, *action));
            earlier.take(LOOK_BACK).find(|at| self.start(*at) < moment && !but.contains(at))
        };
        (-1..=2).filter(|back| self.exists((*back, ActionId::new(0)))).filter_map(of).max_by_key(|at| self.end(*at))
    }

    /// The actions of a critical cycle, each with the time from its start to that of the next one,
    /// and the number of iterations that the cycle spans. `None` if no action is found that let
    /// another one start.
    fn cycle(&self) -> Option<(Vec<(ActionId, u64)>, u64)> {
        let first = self.program.actions().ids().min_by_key(|action| self.start((0, *action)))?;
        let (mut at, mut chain): (At, Vec<At>) = ((0, first), vec![(0, first)]);
        let mut seen: BTreeMap<ActionId, usize> = BTreeMap::from([(first, 0)]);
        // Actions without duration may form an endless loop within one iteration. Most of the chain
        // has then been seen before.
        while seen.len() >= chain.len() / 2 {
            let before = self.let_start(at)?;
            let known = seen.get(&before.1).copied().filter(|place| chain[*place].0 < before.0);
            if let Some(place) = known {
                let iterations = (before.0 - chain[place].0) as u64;
                chain.push(before);
                let times = chain[place..]
                    .windows(2)
                    .map(|pair| (pair[1].1, (self.start(pair[0]) - self.start(pair[1])) as u64));
                return Some((times.collect(), iterations));
            }
            seen.entry(before.1).or_insert(chain.len());
            chain.push(before);
            at = before;
        }
        None
    }

    /// The action that let another one start: by a precedence, on its lane, or by releasing memory.
    fn let_start(&self, at: At) -> Option<At> {
        self.let_start_among(at, &|_| true)
    }

    /// The same among the actions that `may` accepts.
    fn let_start_among(&self, (back, action): At, may: &dyn Fn(At) -> bool) -> Option<At> {
        let start = self.start((back, action));
        let from = |precedence: &Precedence| (back + i64::from(precedence.distance), precedence.from);
        let met = |precedence: &&&Precedence| {
            let at = match precedence.anchor {
                Anchor::EndToStart => self.end(from(precedence)),
                Anchor::StartToStart => self.start(from(precedence)),
            };
            at + precedence.lag.as_ns() as i64 == start
        };
        let allowed = |precedence: &&&Precedence| may(from(precedence));
        let by_data = self.before[action.index()].iter().filter(allowed).find(met).map(|precedence| from(precedence));
        let in_lane = || {
            let (before, distance) = self.in_lane[action.index()]?;
            Some((back + distance, before)).filter(|before| may(*before) && self.end(*before) == start)
        };
        let by_memory =
            || (back - 1..=back + 2).find_map(|back| self.ended(start, (back, action)).filter(|before| may(*before)));
        by_data.or_else(in_lane).or_else(by_memory)
    }

    /// An action other than `except` that ended at `moment`, `back` iterations before the last.
    fn ended(&self, moment: i64, (back, except): At) -> Option<At> {
        let moment = moment + back * self.period;
        let from = self.ends.partition_point(|(end, _)| *end < moment);
        let ended = self.ends[from..].iter().take_while(|(end, _)| *end == moment).map(|(_, action)| (back, *action));
        ended.filter(|at| at.1 != except).find(|at| self.start(*at) < self.end(*at))
    }
}
