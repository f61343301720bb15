//! Zero Bubble: bubble rates from profiled stage times.

use crate::{
    reproduction::{Cell, Reproduction},
    rows::Rows,
    source::Source,
};
use serde::Deserialize;
use spipe_base::{Diagnostic, Faults, Seconds, SimTime, Text};
use spipe_schedule::{Order, StageTimes, automatic, bare, interleaved, one_forward_one_backward, zb_h1, zb_h2};
use spipe_sim::{Iterations, Options, simulate};
use spipe_trace::Span;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Profile {
    model: String,
    devices: usize,
    microbatches: usize,
    /// Chunks per device of the interleaved schedule.
    chunks: usize,
    hidden: u64,
    heads: u64,
    seq_len: u64,
    forward: Text<Seconds>,
    backward_input: Text<Seconds>,
    backward_weight: Text<Seconds>,
    latency: Text<Seconds>,
    published: BTreeMap<String, f64>,
}

pub fn make(source: &Source<'_>) -> Result<Reproduction, Faults> {
    let rows = Rows::<Profile>::read(source)?;
    let cells = rows.each(|row| {
        let name = format!("{}, {} devices, {} microbatches", row.model, row.devices, row.microbatches);
        let cell = |(system, published): (&String, &f64)| {
            let cell = Cell::difference(&name, system, *published, rate(row, system)?);
            Ok(cell.at(&row.model, system, Some(row.microbatches as f64)))
        };
        row.published.iter().map(cell).collect::<Result<Vec<_>, Faults>>()
    })?;
    let unit =
        "Bubble rates; errors are differences of rates. Nothing is fitted: stage times are the paper's own profile.";
    Ok(Reproduction::new(&rows.source, unit, cells.concat()))
}

/// The bubble rate 1 − m·(F + B + W) ÷ cost, where the cost is the longest time of any device from
/// its first start to its last end.
fn rate(row: &Profile, system: &str) -> Result<f64, Faults> {
    let (devices, microbatches) = (row.devices, row.microbatches);
    // Between backward-input and backward-weight, 32·sbh of the sb(34h + 5as) bytes of a layer are
    // kept.
    let (hidden, heads, seq_len) = (row.hidden as f64, row.heads as f64, row.seq_len as f64);
    let share = 32.0 * hidden / (34.0 * hidden + 5.0 * heads * seq_len);
    let chunks = if system == "interleaved-1f1b" { row.chunks.max(1) } else { 1 };
    let time = |time: Seconds| SimTime::ns((time.get() * 1e9 / chunks as f64).round() as u64);
    let times = StageTimes {
        forward: time(row.forward.0),
        backward_input: time(row.backward_input.0),
        backward_weight: time(row.backward_weight.0),
        latency: SimTime::from_seconds(row.latency.0),
        weight_gradient_memory: (share * StageTimes::UNIT.as_f64()).round() as u64,
    };
    let limited =
        |activations: usize| automatic(&vec![times; devices], microbatches, StageTimes::UNIT * activations as u64);
    let order: Result<Order, Faults> = match system {
        "1f1b" => Ok(one_forward_one_backward(devices, microbatches, &[])),
        "interleaved-1f1b" => interleaved(devices, chunks, microbatches, None),
        "zb-h1" => zb_h1(devices, microbatches),
        "zb-h2" => zb_h2(devices, microbatches),
        "zb-1p" => limited(devices),
        "zb-2p" => limited(2 * devices),
        _ => Err(Diagnostic::error(format!("no column of this table is called `{system}`"))
            .hint("use 1f1b, interleaved-1f1b, zb-h1, zb-h2, zb-1p or zb-2p")
            .into()),
    };
    let options = Options { iterations: Iterations::One, ..Options::default() };
    let trace = simulate(&bare(system, &order?, &times)?, &options).trace;
    let reach = |spans: &[Span]| spans[spans.len() - 1].end - spans[0].start;
    let cost = trace.spans.chunk_by(|one, next| one.lane == next.lane).map(reach).max().unwrap_or_default();
    let work = row.forward.0.get() + row.backward_input.0.get() + row.backward_weight.0.get();
    Ok(1.0 - microbatches as f64 * work * 1e3 / cost.to_ms())
}
