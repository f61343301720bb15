//! A trace: its iteration, lanes and memories.

use crate::tables::{Named, fold, table};
use spipe_base::{
    LaneRole,
    readable::{per_second, percent},
};
use spipe_trace::{MemoryTrack, Metrics, Status, Trace};
use std::fmt::Write;

/// The number of holders of a memory that are printed.
const HOLDERS: usize = 3;

/// The headline, a row for each lane, and a row for each memory; those of equal devices share a row.
pub fn human(trace: &Trace) -> String {
    let metrics = Metrics::of(trace);
    let mut text = format!("{}\n", trace.name);
    for note in &trace.notes {
        let _ = writeln!(text, "note: {note}");
    }
    let rate = metrics.tokens_per_second.map(|rate| format!(", {} tokens/s", per_second(rate)));
    let _ = match &trace.status {
        Status::Ok => writeln!(
            text,
            "Iteration {:.3}{}{}, bubbles {}\n",
            metrics.iteration,
            trace
                .iteration_without_profiler
                .map_or_else(String::new, |time| format!(" ({time:.3} without the profiler)")),
            rate.unwrap_or_default(),
            percent(metrics.bubble_fraction)
        ),
        Status::OutOfMemory(shortage) => {
            writeln!(text, "Out of memory on `{}` after {}. Until then:\n", shortage.memory, shortage.at)
        }
    };
    let mut lanes = table(&["lane", "busy", "share", "idle, by cause"], &[1, 2]);
    lanes.add_folded(metrics.busy.iter().map(|(lane, busy)| {
        let this = &trace.lanes[lane.index()];
        let share = busy.to_ms() / metrics.iteration.to_ms().max(f64::MIN_POSITIVE);
        let causes = metrics.idle.get(lane).into_iter().flatten();
        let idle: Vec<String> = causes.map(|(cause, time)| format!("{cause} {time}")).collect();
        let idle = if this.role == LaneRole::Compute { idle.join(", ") } else { String::new() };
        Named { name: trace.lane_label(this), cells: vec![format!("{busy:.3}"), percent(share), idle] }
    }));
    let mut memories = table(&["memory", "peak", "capacity", "largest holders at the peak"], &[1, 2]);
    let exact = memory_rows(trace, str::to_owned);
    let exact_of = |name: &str| exact.iter().find(|row| row.name == name).cloned();
    for row in fold(memory_rows(trace, without_stage)) {
        let Named { name, cells } = exact_of(&row.name).unwrap_or(row);
        memories.add_row([vec![name], cells].concat());
    }
    text + &format!("{lanes}\n\n{memories}\n")
}

/// A row for each memory; `words` are those for a holder.
fn memory_rows(trace: &Trace, words: impl Fn(&str) -> String) -> Vec<Named> {
    let row = |memory: &MemoryTrack| {
        let holders = memory.holders.iter().take(HOLDERS);
        let holders: Vec<String> = holders.map(|holder| format!("{} {}", holder.bytes, words(&holder.what))).collect();
        let capacity = memory.capacity.map_or_else(|| "–".into(), |capacity| capacity.to_string());
        Named { name: trace.label_of(&memory.name), cells: vec![memory.peak.to_string(), capacity, holders.join("\n")] }
    };
    trace.memories.iter().map(row).collect()
}

/// A holder without its stage, in which the memories of replicas differ: `workspace of s7 (1 microbatch)`.
fn without_stage(what: &str) -> String {
    let stage = what.split_once(" of s").filter(|(_, rest)| rest.starts_with(|letter: char| letter.is_ascii_digit()));
    stage.map_or_else(
        || what.to_owned(),
        |(what, rest)| what.to_owned() + rest.trim_start_matches(|letter: char| letter.is_ascii_digit()),
    )
}
