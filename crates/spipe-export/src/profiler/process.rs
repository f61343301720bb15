//! One process of the profiler: its lanes and memories.

use super::{
    document::{Document, Event, Held},
    label::computation,
};
use spipe_base::{ActionKind, Bytes, IdleCause, LaneRole, Payload, SimTime, Subject};
use spipe_trace::{MemoryTrack, Sample};
use std::collections::BTreeMap;

/// The mark of a whole step in traces of exported scripts.
const STEP: &str = "spipe:step";
/// The prefix of the marks that PyTorch's optimizers make.
const OPTIMIZER: &str = "Optimizer.step#";

/// One process.
#[derive(Debug)]
pub struct Process {
    pub rank: u64,
    pub device: String,
    pub plan: Option<String>,
    pub iterations: Vec<SimTime>,
    /// The measured time from the start of an iteration to that of the next, if the file says it.
    pub period: Option<SimTime>,
    /// Whether its file says what the process held before the step.
    pub states_memory: bool,
    /// The start of the step, in ns.
    pub start: u64,
    /// Its end.
    pub end: u64,
    pub lanes: Vec<ProcessLane>,
    pub memories: Vec<Memory>,
}

/// A lane of a process.
#[derive(Debug)]
pub struct ProcessLane {
    pub name: String,
    pub device: String,
    pub role: LaneRole,
    pub spans: Vec<Raw>,
}

/// A span with times in ns.
#[derive(Clone, Debug)]
pub struct Raw {
    pub kind: ActionKind,
    pub subject: Subject,
    pub start: u64,
    pub end: u64,
    pub bytes: Option<Bytes>,
    pub waited_for: Option<IdleCause>,
}

/// The bytes of a memory over time.
#[derive(Debug)]
pub struct Memory {
    name: String,
    samples: Vec<(u64, u64)>,
}

impl Process {
    /// The process of a file, the `index`-th of several; none without actions.
    pub fn new(document: &Document, index: usize) -> Option<Self> {
        let rank = document.spipe.as_ref().map(|added| added.rank);
        let rank = rank.or_else(|| Some(document.distributed.as_ref()?.rank)).unwrap_or(index as u64);
        let device = document.spipe.as_ref().map_or_else(|| format!("rank{rank}"), |added| added.device.clone());
        let lanes: Vec<ProcessLane> = [
            compute(document, &device)?,
            optimizer(document, &device),
            copies(document, &device, "HtoD"),
            copies(document, &device, "DtoH"),
            channel(document, &device),
        ]
        .into_iter()
        .filter(|lane| !lane.spans.is_empty())
        .collect();
        let mark = document.slices().filter(|event| event.name == STEP).last().map(|event| document.times(event));
        let spans = || lanes.iter().flat_map(|lane| &lane.spans);
        let first = spans().map(|span| span.start).min()?;
        let last = spans().map(|span| span.end).max()?;
        let (start, end) = mark.map_or((first, last), |(start, end)| (start.min(first), end.max(last)));
        let times = document.spipe.as_ref().map_or(&[][..], |added| &added.iterations_ms);
        Some(Self {
            rank,
            plan: document.spipe.as_ref().and_then(|added| added.plan.clone()),
            iterations: times.iter().map(|ms| SimTime::ns((ms * 1e6).round() as u64)).collect(),
            period: None,
            states_memory: document.spipe.as_ref().is_some_and(|added| added.held_bytes.is_some()),
            start,
            end,
            memories: memories(document, &device, start),
            device,
            lanes,
        })
    }

    /// Moves everything back by `time` ns.
    pub fn shift(&mut self, time: u64) {
        let back = |at: &mut u64| *at = at.saturating_sub(time);
        self.lanes.iter_mut().flat_map(|lane| &mut lane.spans).for_each(|span| {
            back(&mut span.start);
            back(&mut span.end);
        });
        self.memories.iter_mut().flat_map(|memory| &mut memory.samples).for_each(|(at, _)| back(at));
        back(&mut self.start);
        back(&mut self.end);
    }
}

/// Whether the actions were timed on a GPU.
fn on_gpu(document: &Document) -> bool {
    document.slices().any(|event| event.cat == "gpu_user_annotation" && computation(&event.name).is_some())
}

/// The events of a category of annotations: those of the GPU if there are any.
fn annotations(document: &Document) -> impl Iterator<Item = &Event> {
    let wanted = if on_gpu(document) { "gpu_user_annotation" } else { "user_annotation" };
    document.slices().filter(move |event| event.cat == wanted)
}

/// The thread of the actions.
fn thread(document: &Document) -> Option<&serde_json::Value> {
    annotations(document).find(|event| computation(&event.name).is_some()).map(|event| &event.tid)
}

/// Arithmetic, and the optimizer steps of the same thread or stream.
fn compute(document: &Document, device: &str) -> Option<ProcessLane> {
    let (gpu, thread) = (on_gpu(document), thread(document)?);
    // The operations of a process, in the order of their starts.
    let mut operations: Vec<u64> = document
        .slices()
        .filter(|event| event.cat == "cpu_op" && !event.name.starts_with("c10d::"))
        .map(|event| document.times(event).0)
        .collect();
    operations.sort_unstable();
    let mut spans: Vec<Raw> = Vec::new();
    for event in annotations(document).filter(|event| event.tid == *thread) {
        let (start, end) = document.times(event);
        if let Some((kind, subject)) = computation(&event.name) {
            let first = operations.get(operations.partition_point(|at| *at < start)).filter(|at| **at < end);
            let begin = if gpu { start } else { first.copied().unwrap_or(start) };
            let cause = match kind {
                ActionKind::Forward => IdleCause::Activation,
                _ => IdleCause::Gradient,
            };
            // A wait within an action is longer than the way to its first operation.
            let waited_for = (begin - start > WAIT_NS).then_some(cause);
            spans.push(Raw { kind, subject, start: begin, end, bytes: None, waited_for });
        } else if event.name.starts_with(OPTIMIZER) {
            spans.push(step((start, end)));
        }
    }
    spans.sort_by_key(|span| (span.start, span.end));
    // A step that begins within an action ends it: it is started by the action's last statement.
    for index in 1..spans.len() {
        let next = spans[index].start;
        spans[index - 1].end = spans[index - 1].end.min(next);
    }
    Some(ProcessLane { device: device.into(), name: format!("{device}.compute"), role: LaneRole::Compute, spans })
}

/// A shorter time between an action's start and its first operation is no wait.
const WAIT_NS: u64 = 1_000_000;

const fn step((start, end): (u64, u64)) -> Raw {
    let subject = Subject { stage: None, microbatch: None, layers: None };
    Raw { kind: ActionKind::OptimizerStep, subject, start, end, bytes: None, waited_for: None }
}

/// Optimizer steps on other threads than the actions'.
fn optimizer(document: &Document, device: &str) -> ProcessLane {
    let own = document.slices().find(|event| event.cat == "user_annotation" && computation(&event.name).is_some());
    let steps = document.slices().filter(|event| {
        event.cat == "user_annotation"
            && event.name.starts_with(OPTIMIZER)
            && own.is_some_and(|action| action.tid != event.tid)
    });
    let spans = steps.map(|event| step(document.times(event))).collect();
    ProcessLane {
        device: device.into(),
        name: format!("{device}.optimizer"),
        role: LaneRole::Optimizer,
        spans: apart(spans),
    }
}

/// Copies between a GPU and the host in one direction.
fn copies(document: &Document, device: &str, direction: &str) -> ProcessLane {
    let (name, role, payload) = match direction {
        "HtoD" => ("h2d", LaneRole::H2d, Payload::WeightsIn),
        _ => ("d2h", LaneRole::D2h, Payload::GradientsOut),
    };
    let found = document.slices().filter(|event| event.cat == "gpu_memcpy" && event.name.contains(direction));
    let spans = found.map(|event| moved(document, event, payload)).collect();
    ProcessLane { device: device.into(), name: format!("{device}.{name}"), role, spans: apart(spans) }
}

/// The kernels of NCCL, which send and receive.
fn channel(document: &Document, device: &str) -> ProcessLane {
    let found = document.slices().filter(|event| event.cat == "kernel" && event.name.starts_with("nccl"));
    let spans = found.map(|event| moved(document, event, Payload::Activation)).collect();
    ProcessLane {
        device: device.into(),
        name: format!("{device}.channel"),
        role: LaneRole::Channel,
        spans: apart(spans),
    }
}

fn moved(document: &Document, event: &Event, payload: Payload) -> Raw {
    let (start, end) = document.times(event);
    let bytes = event.number("bytes").and_then(|bytes| u64::try_from(bytes).ok()).map(Bytes::new);
    let subject = Subject { stage: None, microbatch: None, layers: None };
    Raw { kind: ActionKind::Copy(payload), subject, start, end, bytes, waited_for: None }
}

/// Spans in order, each after the end of the one before.
fn apart(mut spans: Vec<Raw>) -> Vec<Raw> {
    spans.sort_by_key(|span| (span.start, span.end));
    let mut end = 0;
    for span in &mut spans {
        span.start = span.start.max(end);
        span.end = span.end.max(span.start);
        end = span.end;
    }
    spans
}

/// The bytes of the GPU, and of the process on cores, in a step that starts at `start`.
fn memories(document: &Document, device: &str, start: u64) -> Vec<Memory> {
    let mut tracks: BTreeMap<i64, Vec<Change>> = BTreeMap::new();
    for event in document.events.iter().filter(|event| event.name == "[memory]") {
        let place = event.number("Device Id").unwrap_or(-1);
        let total = event.number("Total Allocated");
        let change = |total| Change { at: document.times(event).0, total, by: event.number("Bytes").unwrap_or(0) };
        tracks.entry(place).or_default().extend(total.map(change));
    }
    let held = document.spipe.as_ref().and_then(|added| added.held_bytes);
    if held.is_some_and(|held| held.host > 0) {
        tracks.entry(-1).or_default();
    }
    let has_gpu = tracks.keys().any(|place| *place >= 0);
    let named = tracks.into_iter().map(|(place, mut changes)| {
        changes.sort_by_key(|change| change.at);
        let name = if place < 0 && has_gpu { format!("{device}-host") } else { device.to_owned() };
        let before = held.map(|Held { host, device }| if place < 0 { host } else { device });
        Memory { name, samples: samples(&changes, before, start) }
    });
    named.filter(|memory| !memory.samples.is_empty()).collect()
}

/// A change of a memory, as the profiler's allocator counts it.
#[derive(Clone, Copy, Debug)]
struct Change {
    at: u64,
    /// The bytes after it; on cores, only those allocated since the profiler began.
    total: i64,
    by: i64,
}

/// The bytes over time of a memory that held `before` bytes at the start of the step, if the file says so.
fn samples(changes: &[Change], before: Option<u64>, start: u64) -> Vec<(u64, u64)> {
    let counted = changes.first().map_or(0, |first| first.total - first.by);
    let missing = before.map_or(0, |before| i64::try_from(before).unwrap_or(i64::MAX) - counted);
    let bytes = |total: i64| u64::try_from(total.saturating_add(missing)).unwrap_or(0);
    let first = before.map(|before| (start.min(changes.first().map_or(start, |first| first.at)), before));
    first.into_iter().chain(changes.iter().map(|change| (change.at, bytes(change.total)))).collect()
}

impl Memory {
    /// The memory's track, with times from `zero` on.
    pub fn track(self, zero: u64) -> MemoryTrack {
        let peak = self.samples.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let mut samples: Vec<Sample> = Vec::new();
        for (at, bytes) in self.samples {
            let sample = Sample { at: SimTime::ns(at.saturating_sub(zero)), bytes: Bytes::new(bytes) };
            // Of several at one time the last one counts.
            if samples.last().is_some_and(|last| last.at == sample.at) {
                samples.pop();
            }
            samples.push(sample);
        }
        MemoryTrack { name: self.name, capacity: None, peak: Bytes::new(peak), holders: Vec::new(), samples }
    }
}
