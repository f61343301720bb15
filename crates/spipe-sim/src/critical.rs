//! What the length of an iteration hangs on: a circle of actions in which each starts when the one before lets it.

use crate::{Options, engine::Engine, report};
use spipe_base::{ActionId, ActionKind, SimTime, StageId};
use spipe_schedule::{Anchor, Precedence, Program};
use std::collections::BTreeMap;

/// An action of the last iteration, or of one so many before it: these repeat it.
type At = (i64, ActionId);

/// Iterations that repeat each other, looked at from behind.
struct Steady<'e, 'a> {
    program: &'a Program,
    engine: &'e Engine<'a>,
    /// In ns.
    period: i64,
    /// By action, who lets it start.
    before: Vec<Vec<&'a Precedence>>,
    /// By action, whom its lane has before it, and how many iterations earlier.
    in_lane: Vec<Option<(ActionId, i64)>>,
    /// When actions end, in order.
    ends: Vec<(i64, ActionId)>,
}

/// For how long an iteration waits for what is not a pass of a stage, by the stage for which that is done; nothing where iterations do not
/// repeat each other.
pub(crate) fn waits(program: &Program, options: &Options, engine: &Engine<'_>) -> BTreeMap<StageId, SimTime> {
    let mut waits: BTreeMap<StageId, SimTime> = BTreeMap::new();
    if !engine.repeats() {
        return waits;
    }
    let circle = Steady::new(program, engine, report::period(options, engine)).circle();
    let Some((circle, iterations)) = circle else { return waits };
    for (action, time) in circle {
        let action = &program.actions()[action];
        if let Some(stage) = action.subject.stage.filter(|_| !passes(action.kind)) {
            *waits.entry(stage).or_default() += SimTime::ns(time / iterations);
        }
    }
    waits.retain(|_, time| *time > SimTime::ZERO);
    waits
}

/// Whether an action is what every placement of its stage computes.
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

    /// The actions of a circle, each with the time from its start to that of the next, and how many iterations it goes through; none where
    /// the chain of who let whom start is lost.
    fn circle(&self) -> Option<(Vec<(ActionId, u64)>, u64)> {
        let first = self.program.actions().ids().min_by_key(|action| self.start((0, *action)))?;
        let (mut at, mut chain): (At, Vec<At>) = ((0, first), vec![(0, first)]);
        let mut seen: BTreeMap<ActionId, usize> = BTreeMap::from([(first, 0)]);
        // Actions that take no time may let each other start within an iteration for ever: then most of the chain has been seen before.
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

    /// Who let an action start: data or an edge, its lane, or who gave back the memory that it takes.
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

    /// Who ended at that moment in an iteration so many before the last, but for `except`.
    fn ended(&self, moment: i64, (back, except): At) -> Option<At> {
        let moment = moment + back * self.period;
        let from = self.ends.partition_point(|(end, _)| *end < moment);
        let ended = self.ends[from..].iter().take_while(|(end, _)| *end == moment).map(|(_, action)| (back, *action));
        ended.filter(|at| at.1 != except).find(|at| self.start(*at) < self.end(*at))
    }
}
