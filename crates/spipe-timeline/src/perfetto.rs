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
use serde_json::{Map, Value, json};
use spipe_base::{ActionKind, LaneId, SimTime};
use spipe_trace::{Idle, MemoryTrack, Span};
use std::collections::BTreeMap;

/// Returns the JSON text, with one event per line.
pub fn perfetto(picture: &Picture) -> String {
    let scene = Scene::of(picture);
    let mut events = Events { lines: Vec::new(), processes: 0, flows: 0 };
    for track in &scene.tracks {
        events.add_track(&scene, track);
    }
    events.add_words(&scene);
    let facts: Vec<String> = scene.facts();
    let other = json!({ "title": scene.title, "facts": facts, "notes": scene.notes(), "faults": scene.faults() });
    format!(
        "{{\"displayTimeUnit\":\"ms\",\"traceName\":{},\"otherData\":{other},\"traceEvents\":[\n{}\n]}}\n",
        Value::from(scene.title.as_str()),
        events.lines.join(",\n"),
    )
}

struct Events {
    lines: Vec<String>,
    processes: usize,
    flows: usize,
}

/// The process and thread ids of a lane.
type Place = (usize, usize);

impl Events {
    fn push(&mut self, event: Value) {
        self.lines.push(event.to_string());
    }

    fn process(&mut self, scene: &Scene, track: &Track, name: &str) -> usize {
        self.processes += 1;
        let pid = self.processes;
        let name = if scene.is_double() { format!("{} {name}", track.label) } else { name.to_owned() };
        let labels: Vec<String> = std::iter::once(crate::scene::origin(track.trace.origin).to_owned())
            .chain(track.trace.notes.iter().map(|note| clean(note)))
            .collect();
        self.metadata("process_name", (pid, 0), json!({ "name": name }));
        self.metadata("process_labels", (pid, 0), json!({ "labels": labels.join(", ") }));
        self.metadata("process_sort_index", (pid, 0), json!({ "sort_index": pid }));
        pid
    }

    fn thread(&mut self, place: Place, name: &str) {
        self.metadata("thread_name", place, json!({ "name": name }));
        self.metadata("thread_sort_index", place, json!({ "sort_index": place.1 }));
    }

    fn metadata(&mut self, name: &str, (pid, tid): Place, args: Value) {
        self.push(json!({ "ph": "M", "name": name, "pid": pid, "tid": tid, "args": args }));
    }

    fn add_track(&mut self, scene: &Scene, track: &Track) {
        let mut processes: BTreeMap<String, usize> = BTreeMap::new();
        let mut places: BTreeMap<LaneId, Place> = BTreeMap::new();
        for (number, lane) in track.trace.lanes.iter().enumerate() {
            let device = clean(&lane.device);
            let pid = match processes.get(&device) {
                Some(pid) => *pid,
                None => self.process(scene, track, &device),
            };
            processes.insert(device, pid);
            // Lanes have odd thread ids, so that their bubbles come directly below them.
            let (lane_id, place) = (LaneId::from(number), (pid, 2 * number + 1));
            let name = clean(&lane.name);
            self.thread(place, &name);
            places.insert(lane_id, place);
            for (_, span) in track.spans(lane_id) {
                self.push(slice(place, span, &name));
            }
            if !track.idle(lane_id).is_empty() {
                let below = (pid, place.1 + 1);
                self.thread(below, &format!("{name} bubbles"));
                for interval in track.idle(lane_id) {
                    self.push(bubble(below, interval));
                }
            }
        }
        for memory in &track.trace.memories {
            let name = clean(&memory.name);
            let pid = match processes.get(&name) {
                Some(pid) => *pid,
                None => self.process(scene, track, &name),
            };
            processes.insert(name.clone(), pid);
            self.add_counters(pid, &name, memory);
        }
        self.add_flows(track, &places);
    }

    fn add_counters(&mut self, pid: usize, name: &str, memory: &MemoryTrack) {
        for sample in &memory.samples {
            self.push(json!({
                "ph": "C", "name": format!("memory of {name}"), "cat": "memory", "pid": pid, "tid": 0, "ts": us(sample.at),
                "args": { "bytes": sample.bytes.get() },
            }));
        }
    }

    /// Adds a flow per arrow. A flow is bound to the slice that is open at its time. A slice is
    /// closed at its end, so the flow starts in its last nanosecond.
    fn add_flows(&mut self, track: &Track, places: &BTreeMap<LaneId, Place>) {
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
            self.push(json!({
                "ph": "s", "id": id, "name": name, "cat": category, "pid": from_pid, "tid": from_tid, "ts": us(leaves),
            }));
            self.push(json!({
                "ph": "f", "bp": "e", "id": id, "name": name, "cat": category, "pid": to_pid, "tid": to_tid,
                "ts": us(to.start),
            }));
        }
    }

    fn add_words(&mut self, scene: &Scene) {
        for note in scene.notes() {
            self.push(json!({ "ph": "i", "s": "g", "name": note, "cat": "note", "pid": 1, "tid": 0, "ts": 0 }));
        }
        for (track, fault) in scene.tracks.iter().filter_map(Track::shortage).zip(scene.faults()) {
            let ts = us(track.at);
            self.push(
                json!({ "ph": "i", "s": "g", "name": fault, "cat": "out-of-memory", "pid": 1, "tid": 0, "ts": ts }),
            );
        }
    }
}

fn slice((pid, tid): Place, span: &Span, lane: &str) -> Value {
    let label = span.label();
    let name = if span.kind.is_compute() { format!("PP:{label}") } else { label };
    let mut args = Map::new();
    args.insert("lane".into(), lane.into());
    args.insert("kind".into(), span.kind.name().into());
    args.extend(span.subject.stage.map(|stage| ("stage".into(), stage.index().into())));
    args.extend(span.subject.microbatch.map(|microbatch| ("microbatch".into(), microbatch.index().into())));
    args.extend(span.subject.layers.map(|layers| ("layers".into(), layers.to_string().into())));
    args.extend(span.bytes.map(|bytes| ("bytes".into(), bytes.get().into())));
    args.extend(span.waited_for.map(|cause| ("waited-for".into(), cause.name().into())));
    json!({
        "ph": "X", "name": name, "cat": category(span.kind), "pid": pid, "tid": tid,
        "ts": us(span.start), "dur": us(span.duration()), "args": args,
    })
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

fn bubble((pid, tid): Place, interval: &Idle) -> Value {
    json!({
        "ph": "X", "name": interval.cause.name(), "cat": "bubble", "pid": pid, "tid": tid,
        "ts": us(interval.start), "dur": us(interval.end.saturating_sub(interval.start)),
        "args": { "cause": cause_meaning(interval.cause) },
    })
}

/// Converts to microseconds, with nanoseconds as decimals.
fn us(time: SimTime) -> f64 {
    time.as_ns() as f64 / 1e3
}
