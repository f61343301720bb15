//! The table for people: systems with a plan by speed, then those without one.

use crate::tables::dense_table;
use spipe_base::{
    Bytes,
    readable::{per_second, percent},
};
use spipe_search::compare::{Compared, Status};
use std::collections::BTreeMap;

/// The headings behind the system's name.
pub const HEADINGS: [&str; 9] =
    ["iteration", "tokens/s", "bubbles", "GPU memory", "DRAM", "GPU links", "utilisation", "microbatch", "runtime"];

/// The meaning of the mark.
const MARKED: &str = "*: an estimate, since runs of the system were not measured under the runtime.";

/// The meaning of the mark, if a system has it.
pub fn mark(all: &[Compared]) -> Option<&'static str> {
    all.iter().any(|row| row.estimate).then_some(MARKED)
}

/// The systems in the order of the table: by iteration, then the baseline, then those without a plan.
pub fn ordered(all: &[Compared]) -> Vec<&Compared> {
    let mut rows: Vec<&Compared> = all.iter().collect();
    rows.sort_by(|one, other| {
        let key = |row: &Compared| (row.iteration_ms.is_none(), row.baseline);
        let time = |row: &Compared| row.iteration_ms.unwrap_or(f64::INFINITY);
        key(one).cmp(&key(other)).then(time(one).total_cmp(&time(other)))
    });
    rows
}

/// The name of a system; a baseline is called so.
pub fn name(row: &Compared) -> String {
    if row.baseline { format!("{} (baseline)", row.system) } else { row.system.to_owned() }
}

/// The figures of a system behind its name, with the number by which each column is sorted.
pub fn cells(row: &Compared) -> Vec<(String, Option<f64>)> {
    let none = || ("–".to_owned(), None);
    let bytes = |bytes: Option<Bytes>| bytes.map_or_else(none, |bytes| (bytes.to_string(), Some(bytes.as_f64())));
    let Some(iteration) = row.iteration_ms else { return Vec::new() };
    vec![
        (time(iteration), Some(iteration)),
        row.tokens_per_second.map_or_else(none, |rate| (per_second(rate), Some(rate))),
        row.bubble_fraction.map_or_else(none, |share| (percent(share), Some(share))),
        bytes(largest(&row.peak_bytes, "gpu")),
        bytes(largest(&row.peak_bytes, "dram")),
        bytes(row.host_traffic),
        row.utilisation.map_or_else(none, |share| (percent(share), Some(share))),
        row.microbatch.map_or_else(none, |size| (size.to_string(), Some(size as f64))),
        row.runtime.as_ref().map_or_else(none, |name| (runtime(name, row.estimate), None)),
    ]
}

/// A runtime, with a mark where its figures are estimates.
fn runtime(name: &str, estimate: bool) -> String {
    if estimate { format!("{name} *") } else { name.to_owned() }
}

/// Milliseconds below a second, otherwise seconds.
fn time(ms: f64) -> String {
    if ms < 1e3 { format!("{ms:.2} ms") } else { format!("{:.3} s", ms / 1e3) }
}

/// The largest peak among the memories of a kind.
fn largest(peaks: &BTreeMap<String, Bytes>, kind: &str) -> Option<Bytes> {
    peaks.iter().filter(|(name, _)| name.starts_with(kind)).map(|(_, peak)| *peak).max()
}

/// The table and the refused systems.
pub fn human(title: &str, all: &[Compared]) -> String {
    let headings: Vec<&str> = std::iter::once("system")
        .chain([
            "iteration",
            "tokens/s",
            "bubbles",
            "GPU\nmemory",
            "DRAM",
            "GPU\nlinks",
            "utili-\nsation",
            "micro-\nbatch",
            "runtime",
        ])
        .collect();
    let mut rows = dense_table(&headings, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let rows_of = ordered(all);
    for row in rows_of.iter().filter(|row| row.status == Status::Feasible) {
        let cells = cells(row).into_iter().map(|(text, _)| text);
        rows.add_row(std::iter::once(name(row)).chain(cells).collect::<Vec<_>>());
    }
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for row in rows_of.iter().filter(|row| row.status != Status::Feasible) {
        let word = if row.status == Status::Infeasible { "infeasible" } else { "none found in time" };
        let reason = format!("{word}: {}", row.reason.as_deref().unwrap_or("no reason known"));
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, systems)) => systems.push(name(row)),
            None => reasons.push((reason, vec![name(row)])),
        }
    }
    let reasons: Vec<String> =
        reasons.into_iter().map(|(reason, systems)| format!("{}: {reason}.\n", systems.join(", "))).collect();
    let table = if rows.is_empty() { String::new() } else { format!("{rows}\n\n") };
    format!(
        "{title}\n\n{table}{}Memories are the largest peak of a GPU and of a socket's DRAM. GPU links: bytes between GPUs and hosts per iteration, \
         both ways. Utilisation: model FLOPs ÷ (peak of all GPUs × iteration). The baseline is \
         simulated like a plan, without a search: every GPU has the whole model and its share of the batch.{}\n",
        if reasons.is_empty() { String::new() } else { reasons.concat() + "\n" },
        mark(all).map(|mark| format!(" {mark}")).unwrap_or_default(),
    )
}
