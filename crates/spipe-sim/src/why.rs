//! Why an iteration takes as long as it does: the critical path, and the chain of causes behind every
//! idle interval.
//!
//! Both follow the action that let another one start, backwards in time. A piece of the path lasts
//! from the start of its action, or from the start of the window, to the start of the action that it
//! let start. So the pieces of a window add up to it.

use crate::{
    Options, Simulation,
    critical::{At, Steady},
    engine::Engine,
    load::Loads,
    report,
};
use spipe_base::{ActionId, IdleCause, LaneId, LaneRole, SimTime};
use spipe_schedule::Program;
use spipe_trace::{Explanation, Idle, Piece, Trace, Wait};
use std::collections::{BTreeMap, BTreeSet};

/// The longest chain that a report shows.
const LONGEST_CHAIN: usize = 8;

/// The most steps back that the chain of one idle interval takes.
const MOST_STEPS: usize = 256;

/// A step of a path, with its window in ns from the start of the iteration.
#[derive(Clone, Copy)]
struct Step {
    /// The action; `None` where none explains the time.
    at: Option<At>,
    from: i64,
    to: i64,
}

/// Explains the last iteration of a run that ended well.
pub(crate) fn explanation(
    (program, options): (&Program, &Options),
    engine: &Engine<'_>,
    simulation: &Simulation,
) -> Explanation {
    let period = report::period(options, engine);
    let steady = Steady::new(program, engine, period);
    let Some(origin) = steady.origin() else { return Explanation::default() };
    let why = Why { program, loads: Loads::new(program, &steady, period), steady, origin };
    let path = why.critical_path(&simulation.trace);
    Explanation { waits: why.waits(&simulation.trace), critical_path: path, ..Explanation::default() }
}

struct Why<'e, 'a> {
    program: &'a Program,
    steady: Steady<'e, 'a>,
    loads: Loads,
    /// The start of the iteration on the clock, in ns.
    origin: i64,
}

impl Why<'_, '_> {
    /// The steps back from the start of `at` to the time `from`, the latest first.
    fn back(&self, at: At, (from, to): (i64, i64), most: usize) -> Vec<Step> {
        let (mut at, mut until, mut steps) = (at, to, Vec::new());
        // Actions without duration may form a loop at one instant.
        let mut seen = BTreeSet::from([at]);
        while until > from && steps.len() < most {
            let Some(before) = self.steady.let_start_but(at, &seen).or_else(|| self.steady.latest_end(until, &seen))
            else {
                break;
            };
            let start = self.steady.start(before);
            let ended = self.steady.end(before).min(until);
            if start < until {
                if ended < until && !self.steady.lets(before, at) {
                    steps.push(Step { at: None, from: ended.max(from), to: until });
                    until = ended.max(from);
                }
                let begin = start.max(from);
                if begin < until {
                    steps.push(Step { at: Some(before), from: begin, to: until });
                }
                until = until.min(begin);
                seen.clear();
            }
            seen.insert(before);
            at = before;
        }
        steps
    }

    fn critical_path(&self, trace: &Trace) -> Vec<Piece> {
        let length = trace.iteration.as_ns() as i64;
        let Some((at, end)) = self.steady.last(length) else { return Vec::new() };
        let begin = end - length;
        let mut steps = Vec::new();
        // The last action of a single iteration is a part of its path.
        if self.steady.end(at) == end && self.steady.start(at) < end {
            steps.push(Step { at: Some(at), from: self.steady.start(at).max(begin), to: end });
        }
        let until = steps.last().map_or(end, |step: &Step| step.from);
        steps.extend(self.back(at, (begin, until), usize::MAX));
        let reached = steps.last().map_or(end, |step| step.from);
        if reached > begin {
            steps.push(Step { at: None, from: begin, to: reached });
        }
        steps.reverse();
        self.merged(&steps)
    }

    /// The pieces of steps, those of one action joined.
    fn merged(&self, steps: &[Step]) -> Vec<Piece> {
        let same = |one: &Step, next: &Step| one.at.is_some() && one.at == next.at;
        steps
            .chunk_by(same)
            .map(|run| {
                self.piece(&Step {
                    to: run[run.len() - 1].to.max(run[0].to),
                    from: run[0].from.min(run[run.len() - 1].from),
                    at: run[0].at,
                })
            })
            .collect()
    }

    fn piece(&self, step: &Step) -> Piece {
        let ms = |ns: i64| ns as f64 / 1e6;
        let (start_ms, length) = (ms(step.from - self.origin), ms(step.to - step.from));
        let Some(at) = step.at else {
            let (lane, action) = (String::new(), "idle".to_owned());
            return Piece { lane, action, start_ms, ms: length, resource: None, full: None };
        };
        let action = &self.program.actions()[at.1];
        let (resource, full) = self.resource(at, (step.from, step.to));
        Piece {
            lane: self.program.lanes()[action.lane].name.clone(),
            action: format!("{} {}", action.kind, action.subject).trim_end().to_owned(),
            start_ms,
            ms: length,
            resource,
            full,
        }
    }

    /// The resource that decides how long an action takes: its lane while it works, otherwise the
    /// fullest channel of its flows.
    fn resource(&self, at: At, (from, to): (i64, i64)) -> (Option<String>, Option<f64>) {
        let action = &self.program.actions()[at.1];
        let duration = self.steady.end(at) - self.steady.start(at);
        let lane = || self.program.lanes()[action.lane].name.clone();
        let flows = self.program.flows(action);
        if flows.is_empty() || action.work.as_ns() as i64 >= duration {
            return (Some(lane()), Some(1.0));
        }
        let channels = flows.iter().flat_map(|flow| flow.route.iter());
        let shares = channels.map(|link| (self.loads.share(self.program, *link, (from, to)), *link));
        let fullest = shares.max_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
        match fullest {
            Some((share, link)) => (Some(self.program.channels()[link].name.clone()), Some(share.min(1.0))),
            None => (Some(lane()), None),
        }
    }

    /// The idle time of compute lanes by lane, cause and resource, the longest first.
    fn waits(&self, trace: &Trace) -> Vec<Wait> {
        let mut all: BTreeMap<(LaneId, IdleCause, Option<String>), (Wait, SimTime)> = BTreeMap::new();
        let next = self.next_actions();
        for idle in trace.idle.iter().filter(|idle| trace.lanes[idle.lane.index()].role == LaneRole::Compute) {
            let (from, to) = (self.origin + idle.start.as_ns() as i64, self.origin + idle.end.as_ns() as i64);
            let steps = self
                .after(idle, &next)
                .map_or_else(Vec::new, |at| self.back(at, (from, self.steady.start(at)), MOST_STEPS));
            let within: Vec<Step> = steps.into_iter().filter(|step| step.from < to).collect();
            let pieces: Vec<Piece> = within.iter().map(|step| self.piece(step)).collect();
            let root = self.root(idle.cause, trace, &pieces, idle.lane);
            let length = idle.end - idle.start;
            let key = (idle.lane, idle.cause, root.0.clone());
            let (wait, longest) = all.entry(key).or_insert_with(|| {
                let lane = trace.lanes[idle.lane.index()].name.clone();
                let wait = Wait {
                    lane,
                    cause: idle.cause,
                    ms: 0.0,
                    count: 0,
                    resource: root.0,
                    full: None,
                    chain: Vec::new(),
                };
                (wait, SimTime::ZERO)
            });
            wait.ms += length.to_ms();
            wait.count += 1;
            if length > *longest || wait.count == 1 {
                *longest = length;
                wait.full = root.1;
                wait.chain = pieces.into_iter().take(LONGEST_CHAIN).collect();
            }
        }
        let mut waits: Vec<Wait> = all.into_values().map(|(wait, _)| wait).collect();
        waits.sort_by(|one, other| other.ms.total_cmp(&one.ms));
        waits
    }

    /// The resource behind an interval: the memory for which it waits, or that of the longest piece.
    fn root(&self, cause: IdleCause, trace: &Trace, pieces: &[Piece], lane: LaneId) -> (Option<String>, Option<f64>) {
        if cause == IdleCause::Memory {
            let device = &trace.lanes[lane.index()].device;
            let name = self.program.devices().iter().find(|known| known.name == *device);
            let memory = name.map(|device| self.program.memories()[device.memory].name.clone());
            return (memory, Some(1.0));
        }
        let longest = pieces.iter().max_by(|one, other| one.ms.total_cmp(&other.ms));
        longest.map_or((None, None), |piece| (piece.resource.clone(), piece.full))
    }

    /// By lane, its actions with their starts in the last iteration, in order.
    fn next_actions(&self) -> Vec<Vec<(i64, ActionId)>> {
        let runs = |action: &ActionId| !self.steady.is_skipped(*action);
        let queue = |lane: &spipe_schedule::Lane| {
            lane.queue.iter().copied().filter(runs).map(|action| (self.steady.start((0, action)), action)).collect()
        };
        self.program.lanes().iter().map(queue).collect()
    }

    /// The action before which its lane is idle.
    fn after(&self, idle: &Idle, next: &[Vec<(i64, ActionId)>]) -> Option<At> {
        let queue = &next[idle.lane.index()];
        match idle.cause {
            IdleCause::Drain => queue.first().map(|(_, action)| (-1, *action)).filter(|at| self.steady.exists(*at)),
            IdleCause::WarmUp => queue.first().map(|(_, action)| (0, *action)),
            _ => {
                let end = self.origin + idle.end.as_ns() as i64;
                let place = queue.partition_point(|(start, _)| *start < end);
                queue.get(place).map(|(_, action)| (0, *action))
            }
        }
    }
}
