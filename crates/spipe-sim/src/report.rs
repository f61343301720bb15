//! From a finished run to a trace.

use crate::{
    Iterations, Options,
    engine::{End, Engine, Round},
    memory::{Change, Memories},
};
use spipe_base::{ActionId, BufferId, Bytes, IdVec, LaneId, MemoryId, SimTime};
use spipe_schedule::Program;
use spipe_trace::{
    Arrow, FORMAT_VERSION, Holder, Lane, MemoryTrack, Origin, Sample, Shortage, Span, Status, Trace, idle_intervals,
};
use std::{collections::BTreeMap, num::NonZeroU32};

/// The number of holders that a report names (a choice).
const HOLDERS: usize = 8;

/// The result of a simulation.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The last iteration.
    pub trace: Trace,
    /// Whether the last iteration repeats the one before exactly; always true for
    /// [`Iterations::One`].
    pub steady: bool,
    /// The number of simulated actions, over all iterations.
    pub actions: u64,
    /// The bytes that each memory holds at its peak, by memory and by part; the parts add up to the peak.
    pub parts: Parts,
}

/// Bytes by memory and part, such as `gpu0` and `weights`.
pub type Parts = BTreeMap<String, BTreeMap<&'static str, Bytes>>;

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
    let (memories, parts) = memories(program, &engine.memories, origin, origin + window);
    let trace = Trace {
        format_version: FORMAT_VERSION,
        name: shape.name.clone(),
        origin: Origin::Predicted,
        notes: shape.notes.clone(),
        status,
        iteration: window,
        iterations: iterations(engine),
        tokens: shape.tokens,
        folds: program.folds().to_vec(),
        lanes,
        spans,
        arrows,
        idle,
        memories,
        iteration_without_profiler: None,
        explanation: None,
    };
    Simulation { trace, steady, actions: engine.simulated, parts }
}

/// The period of a run:
///
/// - the shift between the last two iterations if they repeat;
/// - otherwise the mean period of the slowest lane over the later half of the iterations;
/// - for a single iteration, the time from its first start to its last end.
pub(crate) fn period(options: &Options, engine: &Engine<'_>) -> SimTime {
    let whole = engine.whole() as usize;
    if options.iterations == Iterations::One {
        let last = engine.rounds[0].ends.iter().max().copied().unwrap_or_default();
        return last - first_start(&engine.rounds[0]);
    }
    if whole < 2 {
        return SimTime::ZERO;
    }
    if engine.repeats() {
        return first_start(&engine.rounds[whole - 1]) - first_start(&engine.rounds[whole - 2]);
    }
    // Lanes that only feed others may still run ahead, and lanes nearly as slow as the slowest take
    // long to fall behind it.
    let from = (whole / 2).min(whole - 2);
    let lanes = engine.rounds[whole - 1].ends.iter().zip(&engine.rounds[from].ends);
    let stretch = lanes.map(|(late, early)| late.saturating_sub(*early)).max().unwrap_or_default();
    SimTime::ns(stretch.as_ns() / (whole - 1 - from) as u64)
}

fn first_start(round: &Round) -> SimTime {
    round.first.unwrap_or_default()
}

/// The times between the starts of whole iterations.
fn iterations(engine: &Engine<'_>) -> Vec<SimTime> {
    let whole = engine.whole() as usize;
    engine.rounds[..whole].windows(2).map(|pair| first_start(&pair[1]) - first_start(&pair[0])).collect()
}

fn trace_lane(program: &Program, lane: &spipe_schedule::Lane) -> Lane {
    Lane { name: lane.name.clone(), device: program.devices()[lane.device].name.clone(), role: lane.role }
}

/// The spans of one iteration, sorted by lane and start, and the arrows between them. An unfinished
/// iteration has spans only of actions that ended.
fn spans(program: &Program, round: &Round, origin: SimTime, whole: bool) -> (Vec<Span>, Vec<Arrow>) {
    let mut spans = Vec::with_capacity(program.actions().len());
    let mut index_of: Vec<Option<NonZeroU32>> = vec![None; program.actions().len()];
    for (lane, this) in program.lanes().enumerate() {
        let mut free = SimTime::ZERO;
        for action in &this.queue {
            let state = &round.states[action.index()];
            if state.skipped || (!whole && state.end == SimTime::ZERO) {
                continue;
            }
            let idle = state.start > free;
            free = state.end;
            spans.push(span(program, lane, *action, (state.start - origin, state.end - origin)));
            index_of[action.index()] = NonZeroU32::new(spans.len() as u32);
            if let (true, Some(span)) = (idle, spans.last_mut()) {
                span.waited_for = Some(if state.lacked_memory { spipe_base::IdleCause::Memory } else { state.cause });
            }
        }
    }
    let arrows = arrows(program, round, &index_of, spans.len());
    (spans, arrows)
}

/// The arrows to each span from the one that it waited for last, sorted by both ends. `index_of`
/// counts spans from one.
fn arrows(program: &Program, round: &Round, index_of: &[Option<NonZeroU32>], spans: usize) -> Vec<Arrow> {
    let index = |action: ActionId| index_of[action.index()].map(|number| number.get() - 1);
    let last_of = |to: ActionId| Some((index(round.states[to.index()].met_by()?)?, index(to)?));
    // A counting sort by the first end. Placing in the order of lanes, which is that of the second
    // end, sorts by both.
    let mut place = vec![0u32; spans + 1];
    let queued = || program.lanes().iter().flat_map(|lane| lane.queue.iter().copied());
    for (from, _) in queued().filter_map(last_of) {
        place[from as usize + 1] += 1;
    }
    for index in 0..spans {
        place[index + 1] += place[index];
    }
    let mut arrows = vec![Arrow { from: 0, to: 0 }; place[spans] as usize];
    for (from, to) in queued().filter_map(last_of) {
        arrows[place[from as usize] as usize] = Arrow { from, to };
        place[from as usize] += 1;
    }
    arrows
}

fn span(program: &Program, lane: LaneId, action: ActionId, (start, end): (SimTime, SimTime)) -> Span {
    let this = &program.actions()[action];
    let moved: Bytes = program.flows(this).iter().map(|flow| flow.bytes).sum();
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

/// The tracks of all memories that are ever used, from `start` to `end`, with times relative to
/// `start`, and the parts of each at its peak.
fn memories(program: &Program, memories: &Memories, start: SimTime, end: SimTime) -> (Vec<MemoryTrack>, Parts) {
    let mut curves: IdVec<MemoryId, Curve> = program.memories().iter().map(|_| Curve::default()).collect();
    for (buffer, this) in program.buffers().enumerate() {
        curves[this.memory].held += this.bytes * u64::from(memories.before[buffer.index()]);
    }
    for (curve, _) in curves.iter_mut().zip(memories.touched.iter()).filter(|(_, touched)| **touched) {
        curve.samples.push(Sample { at: SimTime::ZERO, bytes: curve.held });
    }
    let changes = || memories.changes.iter().take_while(|change| change.at <= end);
    for change in changes() {
        let buffer = &program.buffers()[change.buffer];
        curves[buffer.memory].apply(&change, buffer.bytes, start);
    }
    // The first of the highest samples.
    let top = |curve: &Curve| curve.samples.iter().rev().max_by_key(|sample| sample.bytes).copied();
    let tops: IdVec<MemoryId, Option<Sample>> = curves.iter().map(top).collect();
    let until_peak = |change: &Change| {
        let top = tops[program.buffers()[change.buffer].memory];
        top.is_some_and(|top| change.at <= start + top.at)
    };
    let mut held = memories.before.clone();
    count(changes().filter(until_peak), &mut held);
    let mut holders = holders(program, &held);
    let named = curves.into_iter().zip(tops).zip(program.memories().enumerate());
    let tracks = named
        .filter_map(|((curve, top), (id, memory))| {
            let top = top.filter(|top| top.bytes > Bytes::ZERO)?;
            Some(MemoryTrack {
                name: memory.name.clone(),
                capacity: memory.capacity,
                peak: top.bytes,
                holders: std::mem::take(&mut holders[id]),
                samples: curve.samples,
            })
        })
        .collect();
    (tracks, parts(program, &held))
}

/// The bytes of each part of each memory, when `held` instances of each buffer are held.
fn parts(program: &Program, held: &[u32]) -> Parts {
    let mut parts = Parts::new();
    for (buffer, this) in program.buffers().enumerate().filter(|(buffer, _)| held[buffer.index()] > 0) {
        let memory = program.memories()[this.memory].name.clone();
        let bytes = this.bytes * u64::from(held[buffer.index()]);
        *parts.entry(memory).or_default().entry(this.content.part()).or_default() += bytes;
    }
    parts
}

/// The bytes of one memory over time. All changes at one instant make one sample.
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

/// Updates the number of instances held of each buffer by `changes`.
fn count(changes: impl Iterator<Item = Change>, held: &mut [u32]) {
    for change in changes {
        let count = &mut held[change.buffer.index()];
        *count = if change.opened { *count + 1 } else { *count - 1 };
    }
}

/// The largest holders of each memory, when `held` instances of each buffer are held.
fn holders(program: &Program, held: &[u32]) -> IdVec<MemoryId, Vec<Holder>> {
    let none = BTreeMap::<String, Group>::new;
    let mut groups: IdVec<MemoryId, _> = program.memories().iter().map(|_| none()).collect();
    for (buffer, this) in program.buffers().enumerate().filter(|(buffer, _)| held[buffer.index()] > 0) {
        let count = u64::from(held[buffer.index()]);
        let first = Group { first: buffer, bytes: Bytes::ZERO, microbatches: 0 };
        let group = groups[this.memory].entry(this.content.group()).or_insert(first);
        group.bytes += this.bytes * count;
        group.microbatches += if this.content.microbatch().is_some() { count } else { 0 };
    }
    groups.into_iter().map(largest).collect()
}

/// Buffers with the same content for several microbatches.
struct Group {
    first: BufferId,
    bytes: Bytes,
    microbatches: u64,
}

/// The largest groups by bytes. Ties go to the group with the first buffer of the program.
fn largest(groups: BTreeMap<String, Group>) -> Vec<Holder> {
    let mut groups: Vec<(String, Group)> = groups.into_iter().filter(|(_, group)| group.bytes > Bytes::ZERO).collect();
    groups.sort_by_key(|(_, group)| (std::cmp::Reverse(group.bytes), group.first));
    let holder = |(what, Group { bytes, microbatches, .. }): (String, Group)| {
        let what = match microbatches {
            0 => what,
            1 => format!("{what} (1 microbatch)"),
            more => format!("{what} ({more} microbatches)"),
        };
        Holder { what, bytes }
    };
    groups.into_iter().take(HOLDERS).map(holder).collect()
}

/// The report of a run that ended for lack of memory.
fn shortage(program: &Program, engine: &Engine<'_>, end: &End) -> Shortage {
    let End::OutOfMemory { action, memory, needed } = end else {
        unreachable!("only called for runs that ended for lack of memory")
    };
    let capacity = engine.memories.capacity(*memory);
    let (held, action) = match action {
        Some(action) => (engine.memories.held[*memory], program.describe(*action)),
        None => (Bytes::ZERO, "before the first action".into()),
    };
    let mut open = engine.memories.before.clone();
    count(engine.memories.changes.iter(), &mut open);
    let mut holders = holders(program, &open);
    Shortage {
        memory: program.memories()[*memory].name.clone(),
        at: engine.now(),
        needed: *needed,
        free: capacity.saturating_sub(held),
        action,
        holders: std::mem::take(&mut holders[*memory]),
    }
}
