//! Files of PyTorch's profiler as traces.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use spipe_base::{ActionKind, IdleCause, LaneRole};
use spipe_export::{ImportError, ProfilerFile, import};

/// A slice of the thread `tid`, with times in µs.
fn slice(cat: &str, name: &str, tid: u32, (ts, dur): (f64, f64)) -> Value {
    json!({ "ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": {} })
}

/// A file of a rank whose clock is `late` µs behind.
fn file(rank: u32, late: f64, events: &[Value]) -> String {
    let moved = events.iter().map(|event| {
        let mut event = event.clone();
        event["ts"] = json!(event["ts"].as_f64().unwrap() + late);
        event
    });
    json!({
        "schemaVersion": 1,
        "baseTimeNanoseconds": 1_000_000_000u64,
        "traceEvents": moved.collect::<Vec<_>>(),
        "spipe": { "rank": rank, "device": format!("gpu{rank}"), "plan": "0badcafe", "iterations-ms": [9.0, 8.5] },
    })
    .to_string()
}

fn first() -> Vec<Value> {
    vec![
        slice("user_annotation", "spipe:step", 1, (0.0, 12_000.0)),
        slice("user_annotation", "PP:0F0", 1, (100.0, 2_900.0)),
        slice("cpu_op", "aten::mm", 1, (100.0, 2_800.0)),
        slice("user_annotation", "PP:0SEND_F0", 1, (3_000.0, 10.0)),
        slice("user_annotation", "PP:0B0", 1, (4_000.0, 6_000.0)),
        slice("cpu_op", "c10d::recv_", 1, (4_100.0, 1.0)),
        slice("cpu_op", "aten::mm", 1, (7_000.0, 2_000.0)),
        slice("user_annotation", "Optimizer.step#AdamW.step", 1, (9_500.0, 500.0)),
        json!({ "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 7, "tid": 1, "ts": 200.0,
                "args": { "Device Id": -1, "Device Type": 0, "Total Allocated": 4096, "Bytes": 4096 } }),
    ]
}

fn second() -> Vec<Value> {
    vec![
        slice("user_annotation", "spipe:step", 3, (50.0, 11_950.0)),
        slice("user_annotation", "PP:1F0", 3, (60.0, 4_000.0)),
        slice("cpu_op", "aten::mm", 3, (3_100.0, 900.0)),
        slice("user_annotation", "PP:1I0", 3, (4_060.0, 1_000.0)),
        slice("cpu_op", "aten::mm", 3, (4_060.0, 900.0)),
        slice("user_annotation", "PP:1W0", 3, (5_060.0, 1_000.0)),
        slice("cpu_op", "aten::mm", 3, (5_060.0, 900.0)),
    ]
}

#[test]
fn spans_begin_with_their_first_operation_and_gaps_have_causes() {
    let (here, there) = (file(0, 0.0, &first()), file(1, 0.0, &second()));
    // The order of the files does not matter.
    let files = [ProfilerFile { name: "b", text: &there }, ProfilerFile { name: "a", text: &here }];
    let imported = import(&files).unwrap();
    let trace = &imported.trace;
    assert_eq!(imported.plan.as_deref(), Some("0badcafe"));
    assert_eq!(trace.iteration.as_ns(), 12_000_000);
    assert_eq!(trace.iterations.len(), 2);
    let lanes: Vec<&str> = trace.lanes.iter().map(|lane| lane.name.as_str()).collect();
    assert_eq!(lanes, ["gpu0.compute", "gpu1.compute"]);
    let said: Vec<(String, u64, u64)> =
        trace.spans.iter().map(|span| (span.label(), span.start.as_ns() / 1000, span.end.as_ns() / 1000)).collect();
    let wanted = [
        ("0F0", 100, 3_000),
        // From its first operation to the optimizer step within it.
        ("0B0", 7_000, 9_500),
        ("optimizer-step", 9_500, 10_000),
        ("1F0", 3_100, 4_060),
        ("1I0", 4_060, 5_060),
        ("1W0", 5_060, 6_060),
    ];
    assert_eq!(said, wanted.map(|(label, start, end)| (label.to_owned(), start, end)));
    let causes: Vec<(u64, IdleCause)> =
        trace.idle.iter().map(|idle| ((idle.end - idle.start).as_ns() / 1000, idle.cause)).collect();
    let wanted = [
        (100, IdleCause::WarmUp),
        (4_000, IdleCause::Gradient),
        (2_000, IdleCause::Drain),
        (3_100, IdleCause::WarmUp),
        (5_940, IdleCause::Drain),
    ];
    assert_eq!(causes, wanted);
    assert_eq!(trace.memories[0].peak.get(), 4096);
    assert!(trace.notes.iter().any(|note| note.contains("memories are those of the step alone")), "{:?}", trace.notes);
    // The first step warms up.
    assert_eq!(trace.iteration_without_profiler.unwrap().as_ns(), 8_500_000);
    assert!(spipe_trace::from_json(&spipe_trace::to_json(trace)).is_ok());
}

#[test]
fn memory_is_that_of_the_whole_process() {
    let change = |ts: f64, place: i32, total: i64, by: i64| {
        json!({ "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 7, "tid": 1, "ts": ts,
                "args": { "Device Id": place, "Total Allocated": total, "Bytes": by } })
    };
    let tracks = |events: &[Value]| {
        let mut document: Value = serde_json::from_str(&file(0, 0.0, &[first(), events.to_vec()].concat())).unwrap();
        document["spipe"]["held-bytes"] = json!({ "host": 1_000_000, "device": 7_000 });
        let text = document.to_string();
        let trace = import(&[ProfilerFile { name: "a", text: &text }]).unwrap().trace;
        assert!(!trace.notes.iter().any(|note| note.contains("step alone")), "{:?}", trace.notes);
        let bytes = |memory: &spipe_trace::MemoryTrack| {
            (memory.name.clone(), memory.samples.iter().map(|sample| sample.bytes.get()).collect::<Vec<_>>())
        };
        trace.memories.iter().map(bytes).collect::<Vec<_>>()
    };
    // On cores the profiler counts from its own beginning, at 0 bytes here; the first change is of `first`.
    let found = tracks(&[change(300.0, -1, 6_096, 2_000), change(400.0, -1, -94, -6_190)]);
    assert_eq!(found, [("gpu0".to_owned(), vec![1_000_000, 1_004_096, 1_006_096, 999_906])]);
    // A GPU's allocator counts everything; its process also holds memory on the host.
    let found = tracks(&[change(250.0, 0, 9_000, 2_000), change(300.0, 0, 8_000, -1_000)]);
    let host = ("gpu0-host".to_owned(), vec![1_000_000, 1_004_096]);
    assert_eq!(found, [host, ("gpu0".to_owned(), vec![7_000, 9_000, 8_000])]);
}

#[test]
fn clocks_that_differ_are_aligned_at_the_start_of_the_step() {
    let (here, there) = (file(0, 0.0, &first()), file(1, 5e6, &second()));
    let files = [ProfilerFile { name: "a", text: &here }, ProfilerFile { name: "b", text: &there }];
    let trace = import(&files).unwrap().trace;
    assert_eq!(trace.iteration.as_ns(), 12_000_000);
    assert!(trace.notes.iter().any(|note| note.contains("clocks")), "{:?}", trace.notes);
}

#[test]
fn kernels_of_a_gpu_are_preferred_and_copies_have_lanes() {
    let copy = |name: &str, ts: f64| {
        json!({ "ph": "X", "cat": "gpu_memcpy", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 50.0,
                "args": { "bytes": 1_000_000 } })
    };
    let events = [
        slice("user_annotation", "PP:0F0", 1, (0.0, 10.0)),
        slice("gpu_user_annotation", "PP:0F0", 20, (500.0, 2_000.0)),
        copy("Memcpy HtoD (Pinned -> Device)", 100.0),
        copy("Memcpy DtoH (Device -> Pinned)", 2_600.0),
        slice("kernel", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 22, (2_500.0, 30.0)),
    ];
    let text = file(0, 0.0, &events);
    let trace = import(&[ProfilerFile { name: "a", text: &text }]).unwrap().trace;
    let roles: Vec<LaneRole> = trace.lanes.iter().map(|lane| lane.role).collect();
    assert_eq!(roles, [LaneRole::Compute, LaneRole::H2d, LaneRole::D2h, LaneRole::Channel]);
    assert_eq!(trace.spans[0].duration().as_ns(), 2_000_000);
    assert_eq!(trace.spans[1].bytes.unwrap().get(), 1_000_000);
    assert_eq!(trace.spans[0].kind, ActionKind::Forward);
}

#[test]
fn other_files_are_refused_by_name() {
    let say = |files: &[(&str, &str)]| {
        let files: Vec<ProfilerFile<'_>> = files.iter().map(|(name, text)| ProfilerFile { name, text }).collect();
        import(&files).unwrap_err()
    };
    let ImportError::Json { line, column, .. } = say(&[("x.json", "{\n  \"traceEvents\": [}\n")]) else {
        panic!("broken JSON is refused")
    };
    assert_eq!((line, column), (2, 19));
    let nothing = ImportError::NoActions { file: "x.json".into() };
    assert_eq!(say(&[("x.json", r#"{"traceEvents": []}"#)]), nothing);
    let one = file(0, 0.0, &first());
    assert_eq!(say(&[("a", &one), ("b", &one)]).to_string(), "`b` is a second trace of `gpu0`");
    let other = file(1, 0.0, &second()).replace("0badcafe", "00000000");
    assert_eq!(say(&[("a", &one), ("b", &other)]).to_string(), "`b` is of another plan than the file before");
}
