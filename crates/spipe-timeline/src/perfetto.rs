//! The renderer for <https://ui.perfetto.dev> and `chrome://tracing`, in the layout of PyTorch's
//! profiler.
//!
//! | trace | JSON event |
//! |---|---|
//! | device | a process (`pid`), named after its track if there are two |
//! | lane | a thread (`tid`) of its device; its bubbles in a thread below it |
//! | span | `X`, named `PP:2F0` as by PyTorch for arithmetic; category as by PyTorch; times in µs |
//! | arrow | flow `s` at the end of the source, `f` (`bp: e`) at the start of the target; `copy` for copies |
//! | memory | counter `C` in bytes, on the device with its name |
//! | note, shortage of memory | global instant `i`; notes also label every process |
//!
//! Format: "Trace Event Format" (Duffy, Sinclair; the Chromium project). The file contains no
//! wall-clock time and no host name: equal traces give equal bytes.

use crate::{
    Picture,
    palette::cause_meaning,
    scene::{Scene, Track, clean},
};
use serde_json::{Value, json};
use spipe_base::{ActionKind, LaneId, SimTime};
use spipe_trace::{Idle, MemoryTrack, Span};
use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    io::{self, Write},
};

/// Returns the JSON text, with one event per line.
pub fn perfetto(picture: &Picture) -> String {
    let mut text = Vec::new();
    // Writing into memory does not fail, and JSON is UTF-8.
    match write_perfetto(picture, &mut text).map(|()| String::from_utf8(text)) {
        Ok(Ok(text)) => text,
        other => unreachable!("{other:?}"),
    }
}

/// Writes the same text event by event, so that it is never in memory as a whole.
///
/// # Errors
/// The errors of `out`.
pub fn write_perfetto(picture: &Picture, out: &mut impl Write) -> io::Result<()> {
    let scene = Scene::of(picture);
    let facts: Vec<String> = scene.facts();
    let other = json!({ "title": scene.title, "facts": facts, "notes": scene.notes(), "faults": scene.faults() });
    let title = Value::from(scene.title.as_str());
    writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"traceName\":{title},\"otherData\":{other},\"traceEvents\":[")?;
    let mut events = Events { out, is_first: true, processes: 0, flows: 0 };
    for track in &scene.tracks {
        events.add_track(&scene, track)?;
    }
    events.add_words(&scene)?;
    out.write_all(b"\n]}\n")
}

struct Events<'a, W> {
    out: &'a mut W,
    is_first: bool,
    processes: usize,
    flows: usize,
}

/// The process and thread ids of a lane.
type Place = (usize, usize);

impl<W: Write> Events<'_, W> {
    fn push(&mut self, event: impl Display) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.is_first) { "" } else { ",\n" };
        write!(self.out, "{comma}{event}")
    }

    fn process(&mut self, scene: &Scene, track: &Track, name: &str) -> io::Result<usize> {
        self.processes += 1;
        let pid = self.processes;
        let name = if scene.is_double() { format!("{} {name}", track.label) } else { name.to_owned() };
        let labels: Vec<String> = std::iter::once(crate::scene::origin(track.trace.origin).to_owned())
            .chain(track.trace.notes.iter().map(|note| clean(note)))
            .collect();
        self.metadata("process_name", (pid, 0), json!({ "name": name }))?;
        self.metadata("process_labels", (pid, 0), json!({ "labels": labels.join(", ") }))?;
        self.metadata("process_sort_index", (pid, 0), json!({ "sort_index": pid }))?;
        Ok(pid)
    }

    fn thread(&mut self, place: Place, name: &str) -> io::Result<()> {
        self.metadata("thread_name", place, json!({ "name": name }))?;
        self.metadata("thread_sort_index", place, json!({ "sort_index": place.1 }))
    }

    fn metadata(&mut self, name: &str, (pid, tid): Place, args: Value) -> io::Result<()> {
        self.push(json!({ "ph": "M", "name": name, "pid": pid, "tid": tid, "args": args }))
    }

    fn add_track(&mut self, scene: &Scene, track: &Track) -> io::Result<()> {
        let mut processes: BTreeMap<String, usize> = BTreeMap::new();
        let mut places: BTreeMap<LaneId, Place> = BTreeMap::new();
        for (number, lane) in track.trace.lanes.iter().enumerate() {
            let device = clean(&lane.device);
            let pid = match processes.get(&device) {
                Some(pid) => *pid,
                None => self.process(scene, track, &clean(&track.trace.label_of(&lane.device)))?,
            };
            processes.insert(device, pid);
            // Lanes have odd thread ids, so that their bubbles come directly below them.
            let (lane_id, place) = (LaneId::from(number), (pid, 2 * number + 1));
            let name = clean(&lane.name);
            self.thread(place, &name)?;
            places.insert(lane_id, place);
            let quoted = Value::from(name.as_str()).to_string();
            for (_, span) in track.spans(lane_id) {
                self.push(Slice { place, span, lane: &quoted })?;
            }
            if !track.idle(lane_id).is_empty() {
                let below = (pid, place.1 + 1);
                self.thread(below, &format!("{name} bubbles"))?;
                for interval in track.idle(lane_id) {
                    self.push(Bubble { place: below, interval })?;
                }
            }
        }
        for memory in &track.trace.memories {
            let name = clean(&memory.name);
            let pid = match processes.get(&name) {
                Some(pid) => *pid,
                None => self.process(scene, track, &clean(&track.trace.label_of(&memory.name)))?,
            };
            processes.insert(name.clone(), pid);
            self.add_counters(pid, &name, memory)?;
        }
        self.add_flows(track, &places)
    }

    fn add_counters(&mut self, pid: usize, name: &str, memory: &MemoryTrack) -> io::Result<()> {
        let name = Value::from(format!("memory of {name}")).to_string();
        for sample in &memory.samples {
            let (ts, bytes) = (Micros(sample.at), sample.bytes.get());
            self.push(format_args!(
                "{{\"ph\":\"C\",\"name\":{name},\"cat\":\"memory\",\"pid\":{pid},\"tid\":0,\"ts\":{ts},\"args\":{{\"bytes\":{bytes}}}}}"
            ))?;
        }
        Ok(())
    }

    /// Adds a flow per arrow. A flow is bound to the slice that is open at its time. A slice is
    /// closed at its end, so the flow starts in its last nanosecond.
    fn add_flows(&mut self, track: &Track, places: &BTreeMap<LaneId, Place>) -> io::Result<()> {
        let spans = &track.trace.spans;
        for arrow in &track.trace.arrows {
            let ends = [arrow.from, arrow.to].map(|index| {
                let span = spans.get(index as usize).filter(|span| span.start <= span.end)?;
                Some((span, *places.get(&span.lane)?))
            });
            let [Some((from, (from_pid, from_tid))), Some((to, (to_pid, to_tid)))] = ends else { continue };
            self.flows += 1;
            let id = self.flows;
            let leaves = from.end.saturating_sub(SimTime::ns(1)).max(from.start);
            let copies = from.kind.is_transfer() || to.kind.is_transfer();
            let (name, category) = if copies { ("copy", "copy") } else { ("unblocks", "dependency") };
            let (leaves, arrives) = (Micros(leaves), Micros(to.start));
            self.push(format_args!(
                "{{\"ph\":\"s\",\"id\":{id},\"name\":\"{name}\",\"cat\":\"{category}\",\"pid\":{from_pid},\"tid\":{from_tid},\"ts\":{leaves}}}"
            ))?;
            self.push(format_args!(
                "{{\"ph\":\"f\",\"bp\":\"e\",\"id\":{id},\"name\":\"{name}\",\"cat\":\"{category}\",\"pid\":{to_pid},\"tid\":{to_tid},\"ts\":{arrives}}}"
            ))?;
        }
        Ok(())
    }

    fn add_words(&mut self, scene: &Scene) -> io::Result<()> {
        for note in scene.notes() {
            self.push(json!({ "ph": "i", "s": "g", "name": note, "cat": "note", "pid": 1, "tid": 0, "ts": 0 }))?;
        }
        for (track, fault) in scene.tracks.iter().filter_map(Track::shortage).zip(scene.faults()) {
            let ts = track.at.as_ns() as f64 / 1e3;
            self.push(
                json!({ "ph": "i", "s": "g", "name": fault, "cat": "out-of-memory", "pid": 1, "tid": 0, "ts": ts }),
            )?;
        }
        Ok(())
    }
}

/// An event of an action. It is formatted by hand, because there are millions.
struct Slice<'a> {
    place: Place,
    span: &'a Span,
    /// The name of the lane as JSON.
    lane: &'a str,
}

impl Display for Slice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place: (pid, tid), span, lane } = self;
        // Labels are numbers and names of kinds, without anything to escape.
        let (prefix, label) = (if span.kind.is_compute() { "PP:" } else { "" }, span.label());
        let (category, ts, dur) = (category(span.kind), Micros(span.start), Micros(span.duration()));
        write!(
            f,
            "{{\"ph\":\"X\",\"name\":\"{prefix}{label}\",\"cat\":\"{category}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"dur\":{dur},\
             \"args\":{{\"lane\":{lane},\"kind\":\"{}\"",
            span.kind.name()
        )?;
        if let Some(stage) = span.subject.stage {
            write!(f, ",\"stage\":{}", stage.index())?;
        }
        if let Some(microbatch) = span.subject.microbatch {
            write!(f, ",\"microbatch\":{}", microbatch.index())?;
        }
        if let Some(layers) = span.subject.layers {
            write!(f, ",\"layers\":\"{layers}\"")?;
        }
        if let Some(bytes) = span.bytes {
            write!(f, ",\"bytes\":{}", bytes.get())?;
        }
        if let Some(cause) = span.waited_for {
            write!(f, ",\"waited-for\":\"{}\"", cause.name())?;
        }
        f.write_str("}}")
    }
}

/// The category that PyTorch's profiler gives to such a slice; the kind itself where it has none.
fn category(kind: ActionKind) -> &'static str {
    match kind {
        ActionKind::Copy(_) => "gpu_memcpy",
        ActionKind::Collective(_) => "kernel",
        kind if kind.is_compute() => "user_annotation",
        kind => kind.name(),
    }
}

/// An event of an idle interval.
struct Bubble<'a> {
    place: Place,
    interval: &'a Idle,
}

impl Display for Bubble<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place: (pid, tid), interval } = self;
        let (name, meaning) = (interval.cause.name(), cause_meaning(interval.cause));
        let (ts, dur) = (Micros(interval.start), Micros(interval.end.saturating_sub(interval.start)));
        write!(
            f,
            "{{\"ph\":\"X\",\"name\":\"{name}\",\"cat\":\"bubble\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"dur\":{dur},\
             \"args\":{{\"cause\":\"{meaning}\"}}}}"
        )
    }
}

/// A time in microseconds, with nanoseconds as decimals.
struct Micros(SimTime);

impl Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.as_ns() as f64 / 1e3)
    }
}
