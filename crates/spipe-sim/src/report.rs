//! From a finished run to a trace.

use crate::{
    Iterations, Options, Simulation,
    engine::{End, Engine, Round},
    memory::Change,
};
use spipe_base::{BufferId, Bytes, IdVec, LaneId, MemoryId, SimTime};
use spipe_schedule::Program;
use spipe_trace::{
    Arrow, FORMAT_VERSION, Holder, Lane, MemoryTrack, Origin, Sample, Shortage, Span, Status, Trace, idle_intervals,
};
use std::collections::BTreeMap;

/// How many holders a report names.
const HOLDERS: usize = 8;

pub(crate) fn simulation(program: &Program, options: &Options, engine: &Engine<'_>, end: &End) -> Simulation {
    let (steady, status) = match end {
        End::Done { steady } => (*steady, Status::Ok),
        End::OutOfMemory { .. } => (false, Status::OutOfMemory(shortage(program, engine, end))),
    };
    let shown = match end {
        End::Done { .. } => engine.whole().saturating_sub(1),
        End::OutOfMemory { .. } => engine.whole(),
    } as usize;
    let origin = engine.rounds.get(shown).map_or(SimTime::ZERO, first_start);
    let window = match end {
        End::Done { .. } => period(options, engine),
        End::OutOfMemory { .. } => engine.now() - origin.min(engine.now()),
    };
    let lanes: Vec<Lane> = program.lanes().iter().map(|lane| trace_lane(program, lane)).collect();
    let (spans, arrows) = match engine.rounds.get(shown) {
        Some(round) => spans(program, round, origin, matches!(end, End::Done { .. })),
        None => (Vec::new(), Vec::new()),
    };
    let idle = idle_intervals(&lanes, &spans, window);
    let shape = program.shape();
    let trace = Trace {
        format_version: FORMAT_VERSION,
        name: shape.name.clone(),
        origin: Origin::Predicted,
        notes: shape.notes.clone(),
        status,
        iteration: window,
        iterations: iterations(engine),
        tokens: shape.tokens,
        lanes,
        spans,
        arrows,
        idle,
        memories: memories(program, &engine.memories.changes, origin, origin + window),
    };
    Simulation { trace, steady, actions: engine.simulated }
}

/// The steady period: the shift between the last two iterations; over several where they do not repeat exactly; for one
/// iteration, from its first start to its last end.
pub(crate) fn period(options: &Options, engine: &Engine<'_>) -> SimTime {
    let whole = engine.whole() as usize;
    if options.iterations == Iterations::One {
        let states = &engine.rounds[0].states;
        let end = states.iter().map(|state| state.end).max().unwrap_or_default();
        return end - first_start(&engine.rounds[0]);
    }
    let from = if whole > 3 { whole / 2 } else { whole.saturating_sub(2) };
    let stretch = first_start(&engine.rounds[whole - 1]) - first_start(&engine.rounds[from]);
    SimTime::ns(stretch.as_ns() / (whole - 1 - from).max(1) as u64)
}

fn first_start(round: &Round) -> SimTime {
    round.states.iter().filter(|state| !state.skipped).map(|state| state.start).min().unwrap_or_default()
}

/// From each whole iteration's start to the next one's.
fn iterations(engine: &Engine<'_>) -> Vec<SimTime> {
    let whole = engine.whole() as usize;
    engine.rounds[..whole].windows(2).map(|pair| first_start(&pair[1]) - first_start(&pair[0])).collect()
}

fn trace_lane(program: &Program, lane: &spipe_schedule::Lane) -> Lane {
    Lane { name: lane.name.clone(), device: program.devices()[lane.device].name.clone(), role: lane.role }
}

/// The spans of one iteration by lane and start, and the arrows between them. Of an unfinished iteration, only what ended.
fn spans(program: &Program, round: &Round, origin: SimTime, whole: bool) -> (Vec<Span>, Vec<Arrow>) {
    let mut spans = Vec::new();
    let mut index_of = vec![None; program.actions().len()];
    for (lane, this) in program.lanes().enumerate() {
        let mut free = SimTime::ZERO;
        for action in &this.queue {
            let state = &round.states[action.index()];
            if state.skipped || (!whole && state.end == SimTime::ZERO) {
                continue;
            }
            let idle = state.start > free;
            free = state.end;
            index_of[action.index()] = Some(spans.len() as u32);
            spans.push(span(program, lane, *action, (state.start - origin, state.end - origin)));
            if let (true, Some(span)) = (idle, spans.last_mut()) {
                let lacked = state.lacked_memory && state.start > state.met_at;
                span.waited_for = Some(if lacked { spipe_base::IdleCause::Memory } else { state.cause });
            }
        }
    }
    let arrow = |(action, to): (usize, &Option<u32>)| {
        let from = index_of[round.states[action].met_by?.index()]?;
        Some(Arrow { from, to: (*to)? })
    };
    let mut arrows: Vec<Arrow> = index_of.iter().enumerate().filter_map(arrow).collect();
    arrows.sort_unstable_by_key(|arrow| (arrow.from, arrow.to));
    (spans, arrows)
}

fn span(program: &Program, lane: LaneId, action: spipe_base::ActionId, (start, end): (SimTime, SimTime)) -> Span {
    let this = &program.actions()[action];
    let moved: Bytes = this.flows.iter().map(|flow| flow.bytes).sum();
    Span {
        lane,
        kind: this.kind,
        subject: this.subject,
        start,
        end,
        bytes: this.kind.is_transfer().then_some(moved),
        waited_for: None,
    }
}

/// Every memory that is ever used, over the window from `start` to `end`, with times from `start`.
fn memories(program: &Program, changes: &[Change], start: SimTime, end: SimTime) -> Vec<MemoryTrack> {
    let mut curves: IdVec<MemoryId, Curve> = program.memories().iter().map(|_| Curve::default()).collect();
    for change in changes.iter().take_while(|change| change.at <= end) {
        let buffer = &program.buffers()[change.buffer];
        curves[buffer.memory].apply(change, buffer.bytes, start);
    }
    let used = curves.enumerate().filter(|(_, curve)| curve.samples.iter().any(|sample| sample.bytes > Bytes::ZERO));
    used.map(|(id, curve)| {
        let memory = &program.memories()[id];
        let top = curve.samples.iter().rev().max_by_key(|sample| sample.bytes);
        let (at, peak) = top.map_or((SimTime::ZERO, Bytes::ZERO), |sample| (sample.at, sample.bytes));
        let before = changes.iter().take_while(|change| change.at <= start + at);
        let holders = holders_of(program, before).into_iter().filter(|(memory, _)| *memory == id);
        MemoryTrack {
            name: memory.name.clone(),
            capacity: memory.capacity,
            peak,
            holders: holders.map(|(_, holder)| holder).collect(),
            samples: curve.samples.clone(),
        }
    })
    .collect()
}

/// One memory's curve in the making. Changes at one instant make one sample; what is there when the window begins, too.
#[derive(Clone, Default)]
struct Curve {
    held: Bytes,
    samples: Vec<Sample>,
}

impl Curve {
    fn apply(&mut self, change: &Change, bytes: Bytes, start: SimTime) {
        self.held = if change.opened { self.held + bytes } else { self.held - bytes };
        let at = change.at.saturating_sub(start);
        match self.samples.last_mut().filter(|sample| sample.at == at) {
            Some(sample) => sample.bytes = self.held,
            None => self.samples.push(Sample { at, bytes: self.held }),
        }
    }
}

/// Who holds what after `changes`, by memory, the largest first.
fn holders_of<'c>(program: &Program, changes: impl Iterator<Item = &'c Change>) -> Vec<(MemoryId, Holder)> {
    let mut open: Vec<u64> = vec![0; program.buffers().len()];
    for change in changes {
        let count = &mut open[change.buffer.index()];
        *count = if change.opened { *count + 1 } else { *count - 1 };
    }
    let mut groups: BTreeMap<(MemoryId, String), (Bytes, u64)> = BTreeMap::new();
    for (buffer, count) in open.into_iter().enumerate().filter(|(_, count)| *count > 0) {
        let this = &program.buffers()[BufferId::from(buffer)];
        let group = groups.entry((this.memory, this.content.group())).or_default();
        group.0 += this.bytes * count;
        group.1 += if this.content.microbatch().is_some() { count } else { 0 };
    }
    let mut holders: Vec<(MemoryId, Holder)> = groups
        .into_iter()
        .filter(|(_, (bytes, _))| *bytes > Bytes::ZERO)
        .map(|((memory, what), (bytes, microbatches))| {
            let what = match microbatches {
                0 => what,
                1 => format!("{what} (1 microbatch)"),
                more => format!("{what} ({more} microbatches)"),
            };
            (memory, Holder { what, bytes })
        })
        .collect();
    holders.sort_by(|(_, left), (_, right)| right.bytes.cmp(&left.bytes).then_with(|| left.what.cmp(&right.what)));
    let mut counts: BTreeMap<MemoryId, usize> = BTreeMap::new();
    holders.retain(|(memory, _)| {
        let count = counts.entry(*memory).or_default();
        *count += 1;
        *count <= HOLDERS
    });
    holders
}

fn shortage(program: &Program, engine: &Engine<'_>, end: &End) -> Shortage {
    let End::OutOfMemory { action, memory, needed } = end else {
        unreachable!("only called for runs that ended for want of memory")
    };
    let capacity = engine.memories.capacity(*memory);
    let (held, action) = match action {
        Some(action) => (engine.memories.held[*memory], program.describe(*action)),
        None => (Bytes::ZERO, "what is there before the first action".into()),
    };
    Shortage {
        memory: program.memories()[*memory].name.clone(),
        at: engine.now(),
        needed: *needed,
        free: capacity.saturating_sub(held),
        action,
        holders: holders_of(program, engine.memories.changes.iter())
            .into_iter()
            .filter(|(at, _)| at == memory)
            .map(|(_, holder)| holder)
            .collect(),
    }
}
