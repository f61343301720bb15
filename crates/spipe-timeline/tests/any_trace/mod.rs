//! Arbitrary traces that can be read from a file, including odd ones: no lanes, zero time,
//! everything at once, very long, without a name.

use proptest::{collection::vec, option, prelude::*, sample::select};
use spipe_base::{ActionKind, Bytes, IdleCause, LaneId, LaneRole, LayerRange, MicrobatchId, SimTime, StageId, Subject};
use spipe_trace::{
    Arrow, FORMAT_VERSION, Holder, Idle, Lane, MemoryTrack, Origin, Sample, Shortage, Span, Status, Trace,
};

const ROLES: [LaneRole; 7] = [
    LaneRole::Compute,
    LaneRole::H2d,
    LaneRole::D2h,
    LaneRole::Channel,
    LaneRole::Optimizer,
    LaneRole::NvmeIn,
    LaneRole::NvmeOut,
];

/// Ordinary and odd names.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,6}[0-9]\\.[a-z0-9]{1,8}",
        Just("</script><b>&\"'".to_owned()),
        Just("tab\there\u{0}\u{7f}\u{2028}\u{FFFE}".to_owned()),
        Just(String::new()),
        "\\PC{0,40}",
    ]
}

fn device() -> impl Strategy<Value = String> {
    prop_oneof![4 => select(vec!["gpu0", "gpu1", "cpu0"]).prop_map(str::to_owned), 1 => name()]
}

fn kind() -> impl Strategy<Value = ActionKind> {
    select(ActionKind::all().collect::<Vec<_>>())
}

fn cause() -> impl Strategy<Value = IdleCause> {
    select(IdleCause::ALL.to_vec())
}

/// The largest time that a file may state, 10⁹ s, in nanoseconds.
const MOST_TIME: u64 = 1_000_000_000_000_000_000;

fn time() -> impl Strategy<Value = SimTime> {
    prop_oneof![
        6 => 0..1_000_000u64,
        2 => 0..4u64,
        1 => Just(MOST_TIME),
        1 => 0..=MOST_TIME,
    ]
    .prop_map(SimTime::ns)
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![8 => 0..1u64 << 40, 1 => 0..=1u64 << 62].prop_map(Bytes::new)
}

fn subject() -> impl Strategy<Value = Subject> {
    let layers =
        (0..200usize, 0..20usize).prop_map(|(first, more)| LayerRange::new(first.into(), (first + more).into()));
    let layers = option::of(layers).prop_map(Option::flatten);
    (option::of(0..9u32), option::of(0..2000u32), layers).prop_map(|(stage, microbatch, layers)| Subject {
        stage: stage.map(StageId::new),
        microbatch: microbatch.map(MicrobatchId::new),
        layers,
    })
}

fn span(lanes: usize) -> impl Strategy<Value = Span> {
    (0..lanes, kind(), subject(), time(), time(), option::of(bytes()), option::of(cause())).prop_map(
        |(lane, kind, subject, one, other, bytes, waited_for)| Span {
            lane: LaneId::from(lane),
            kind,
            subject,
            start: one.min(other),
            end: one.max(other),
            bytes,
            waited_for,
        },
    )
}

fn idle(lanes: usize) -> impl Strategy<Value = Idle> {
    (0..lanes, time(), time(), cause()).prop_map(|(lane, start, end, cause)| Idle {
        lane: LaneId::from(lane),
        start: start.min(end),
        end: start.max(end),
        cause,
    })
}

fn holder() -> impl Strategy<Value = Holder> {
    (name(), bytes()).prop_map(|(what, bytes)| Holder { what, bytes })
}

fn memory() -> impl Strategy<Value = MemoryTrack> {
    (device(), option::of(bytes()), bytes(), vec(holder(), 0..4), vec((time(), bytes()), 0..30)).prop_map(
        |(name, capacity, peak, holders, mut samples)| {
            samples.sort();
            let samples = samples.into_iter().map(|(at, bytes)| Sample { at, bytes }).collect();
            MemoryTrack { name, capacity, peak, holders, samples }
        },
    )
}

fn status() -> impl Strategy<Value = Status> {
    let shortage = (name(), time(), bytes(), bytes(), name(), vec(holder(), 0..4));
    let shortage = shortage.prop_map(|(memory, at, needed, free, action, holders)| {
        Status::OutOfMemory(Shortage { memory, at, needed, free, action, holders })
    });
    prop_oneof![4 => Just(Status::Ok), 1 => shortage]
}

/// Spans in the order that trace files have, and arrows between them.
fn work(lanes: usize) -> BoxedStrategy<(Vec<Span>, Vec<Arrow>, Vec<Idle>)> {
    if lanes == 0 {
        return Just((vec![], vec![], vec![])).boxed();
    }
    (vec(span(lanes), 0..40), vec((any::<u32>(), any::<u32>()), 0..20), vec(idle(lanes), 0..20))
        .prop_map(|(mut spans, pairs, idle)| {
            spans.sort_by_key(|span| (span.lane, span.start));
            let count = spans.len() as u32;
            let arrow = |(from, to): (u32, u32)| (count > 0).then(|| Arrow { from: from % count, to: to % count });
            let arrows = pairs.into_iter().filter_map(arrow).collect();
            (spans, arrows, idle)
        })
        .boxed()
}

fn lane() -> impl Strategy<Value = Lane> {
    (name(), device(), select(ROLES.to_vec())).prop_map(|(name, device, role)| Lane { name, device, role })
}

/// A trace that [`spipe_trace::from_json`] accepts.
pub fn any_trace() -> impl Strategy<Value = Trace> {
    let lanes = prop_oneof![4 => vec(lane(), 0..7), 1 => vec(lane(), 60..90)];
    let body = lanes.prop_flat_map(|lanes| (work(lanes.len()), Just(lanes)));
    let words = (name(), select(vec![Origin::Predicted, Origin::Measured]), vec(name(), 0..3), status());
    (body, words, time(), option::of(any::<u64>()), vec(memory(), 0..4)).prop_map(
        |(((spans, arrows, idle), lanes), (name, origin, notes, status), iteration, tokens, memories)| Trace {
            format_version: FORMAT_VERSION,
            name,
            origin,
            notes,
            status,
            iteration,
            iterations: vec![iteration],
            tokens,
            lanes,
            spans,
            arrows,
            idle,
            memories,
            iteration_without_profiler: None,
            folds: Vec::new(),
            explanation: None,
        },
    )
}
