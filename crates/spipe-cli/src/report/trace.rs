//! A trace: its iteration, lanes and memories.

use crate::tables::table;
use spipe_base::{
    LaneRole,
    readable::{per_second, percent},
};
use spipe_trace::{Metrics, Status, Trace};
use std::fmt::Write;

/// The number of holders of a memory that are printed.
const HOLDERS: usize = 3;

/// The headline, a row for each lane, and a row for each memory.
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
            "Iteration {:.3}{}, bubbles {}\n",
            metrics.iteration,
            rate.unwrap_or_default(),
            percent(metrics.bubble_fraction)
        ),
        Status::OutOfMemory(shortage) => {
            writeln!(text, "Out of memory on `{}` after {}. Until then:\n", shortage.memory, shortage.at)
        }
    };
    let mut lanes = table(&["lane", "busy", "share", "idle, by cause"], &[1, 2]);
    for (lane, busy) in &metrics.busy {
        let this = &trace.lanes[lane.index()];
        let share = busy.to_ms() / metrics.iteration.to_ms().max(f64::MIN_POSITIVE);
        let causes = metrics.idle.get(lane).into_iter().flatten();
        let idle: Vec<String> = causes.map(|(cause, time)| format!("{cause} {time}")).collect();
        let idle = if this.role == LaneRole::Compute { idle.join(", ") } else { String::new() };
        lanes.add_row(vec![this.name.clone(), format!("{busy:.3}"), percent(share), idle]);
    }
    let mut memories = table(&["memory", "peak", "capacity", "largest holders at the peak"], &[1, 2]);
    for memory in &trace.memories {
        let holders: Vec<String> =
            memory.holders.iter().take(HOLDERS).map(|holder| format!("{} {}", holder.bytes, holder.what)).collect();
        let capacity = memory.capacity.map_or_else(|| "–".into(), |capacity| capacity.to_string());
        memories.add_row(vec![memory.name.clone(), memory.peak.to_string(), capacity, holders.join("\n")]);
    }
    text + &format!("{lanes}\n\n{memories}\n")
}
