//! A run: outputs, losses, memories, and the measured iteration.

use super::trace;
use crate::{
    running::{outputs, tokenizer::Encoding},
    tables::{Named, table},
};
use spipe_base::{Bytes, readable::percent};
use spipe_exec::Report;
use std::fmt::Write;

/// The outputs, losses, memories and the measured iteration.
pub fn human(report: &Report, encoding: &Encoding) -> String {
    let mut text = String::new();
    let losses: Vec<String> = report.losses.iter().map(|loss| format!("{loss:.4}")).collect();
    text += &outputs::human(report, encoding);
    let _ = writeln!(text, "Loss by step: {}\n", losses.join(" "));
    let mut memories = table(&["memory", "planned", "held", "capacity"], &[1, 2, 3]);
    memories.add_folded(report.memories.iter().map(|memory| {
        let capacity = memory.capacity.map_or_else(|| "–".into(), |capacity| capacity.to_string());
        Named { name: memory.name.clone(), cells: vec![memory.planned.to_string(), memory.held.to_string(), capacity] }
    }));
    let reserved = report.memories.iter().filter_map(|memory| Some((memory, memory.reserved?)));
    let reserved: String =
        reserved.map(|(memory, bytes)| format!("\nThe allocator of {} has reserved {bytes}.", memory.name)).collect();
    let grown = report.resident.map_or_else(String::new, |grown| {
        let (planned, held) = report
            .memories
            .iter()
            .fold(<(Bytes, Bytes)>::default(), |sum, memory| (sum.0 + memory.planned, sum.1 + memory.held));
        format!("\nThe process grew by {grown} at most; its memories were to hold {planned} and held {held}.")
    });
    let devices: Vec<String> = report.devices.iter().map(ToString::to_string).collect();
    let _ = writeln!(
        text,
        "{memories}{reserved}{grown}\n\nRan on {}; lane overhead {}.\n",
        devices.join(", "),
        percent(report.lane_overhead)
    );
    text + &trace::human(&report.trace)
}
