//! The critical cycle of a steady iteration: actions that each start when the one before permits.

use crate::{Options, engine::Engine, report};
use spipe_base::{ActionId, ActionKind, SimTime, StageId};
use spipe_schedule::{Anchor, Precedence, Program};
use std::collections::BTreeMap;

/// An action of the iteration that is the given number of iterations before the last one.
type At = (i64, ActionId);

/// Steady iterations, traversed backwards.
struct Steady<'e, 'a> {
    program: &'a Program,
    engine: &'e Engine<'a>,
    /// In ns.
    period: i64,
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
    fn new(program: &'a Program, engine: &'e Engine<'a>, period: SimTime) -> Self {
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
        let mut this = Self { program, engine, period, before, in_lane, ends: Vec::new() };
        this.ends = program.actions().ids().map(|action| (this.end((0, action)), action)).collect();
        this.ends.sort_unstable();
        this
    }

    fn start(&self, (back, action): At) -> i64 {
        let last = &self.engine.rounds[self.engine.whole() as usize - 1];
        last.states[action.index()].start.as_ns() as i64 - back * self.period
    }

    fn end(&self, (back, action): At) -> i64 {
        let last = &self.engine.rounds[self.engine.whole() as usize - 1];
        last.states[action.index()].end.as_ns() as i64 - back * self.period
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
    fn let_start(&self, (back, action): At) -> Option<At> {
        let start = self.start((back, action));
        let from = |precedence: &Precedence| (back + i64::from(precedence.distance), precedence.from);
        let met = |precedence: &&&Precedence| {
            let at = match precedence.anchor {
                Anchor::EndToStart => self.end(from(precedence)),
                Anchor::StartToStart => self.start(from(precedence)),
            };
            at + precedence.lag.as_ns() as i64 == start
        };
        let by_data = self.before[action.index()].iter().find(met).map(|precedence| from(precedence));
        let in_lane = || {
            let (before, distance) = self.in_lane[action.index()]?;
            Some((back + distance, before)).filter(|before| self.end(*before) == start)
        };
        let by_memory = || (back - 1..=back + 2).find_map(|back| self.ended(start, (back, action)));
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
