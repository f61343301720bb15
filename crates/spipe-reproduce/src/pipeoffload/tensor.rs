//! PipeOffload beside interleaved 1F1B with tensor parallelism on the same number of GPUs, from
//! shapes and the rates of a machine.
//!
//! PipeOffload is simulated with the times of whole layers and all activations offloaded. 1F1B is
//! simulated with the times of layers that a group of GPUs shares; the all-reduces, by the closed
//! form of tensor parallelism, are spread evenly over its chunks.

use super::{
    runs::{block_times, costs},
    schedules::{Schedule, Shape, simulated},
};
use crate::{
    bench::{Bench, Setting},
    reproduction::{Cell, Reproduction},
    rows::{Rows, above_zero},
    source::{Library, Source},
};
use serde::Deserialize;
use spipe_base::{Diagnostic, Faults, Seconds, SimTime};
use spipe_cost::Parallelism;
use spipe_model::Recompute;
use spipe_schedule::StageTimes;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Pair {
    /// The machine has at least the GPUs of one tensor-parallel group.
    setting: Setting,
    devices: usize,
    /// The ratio k: the time of both copies of an activation over the time to compute its layer.
    ratio: f64,
    /// GPUs that share each layer.
    tensor: usize,
    /// Chunks of each such group.
    chunks: usize,
    /// The least and the largest speedup of offloading, as published.
    published: [f64; 2],
}

pub fn make(source: &Source<'_>) -> Result<Reproduction, Faults> {
    let rows = Rows::<Pair>::read(source)?;
    let cells = rows.each(|row| cells(row, source.library))?.concat();
    let unit = "Ratios, seconds and GiB; the error of a ratio is that to the nearer end of the stated range. Nothing is fitted.";
    Ok(Reproduction::new(&rows.source, unit, cells))
}

fn cells(row: &Pair, library: Library<'_>) -> Result<Vec<Cell>, Faults> {
    let [least, most] = row.published;
    above_zero("ratio", least)?;
    if row.tensor == 0 || !row.devices.is_multiple_of(row.tensor) || most < least {
        let message = format!(
            "{} GPUs cannot be dealt out in groups of {}, or the range is upside down",
            row.devices, row.tensor
        );
        return Err(Diagnostic::error(message)
            .hint("use a size of groups that divides the GPUs, and the lesser figure first")
            .into());
    }
    let costs = costs(&row.setting, row.devices, library)?;
    let offloading = simulated(Schedule::Offloaded(costs.shape.chunks, row.ratio), costs.shape, &costs.times)?;
    let groups = row.devices / row.tensor;
    let shape = Shape { devices: groups, chunks: row.chunks, microbatches: costs.shape.microbatches };
    let sharing = simulated(Schedule::Interleaved, shape, &shared(row, groups * row.chunks, library)?)?;
    let (fast, slow) = (offloading.span / 1e3, sharing.span / 1e3);
    let name =
        format!("{}, {} tokens, {} GPUs", row.setting.model, row.setting.seq_len.unwrap_or_default(), row.devices);
    let ratio = slow / fast;
    let nearer = ratio.clamp(least, most);
    let other = format!("interleaved 1f1b, tensor {} × pipeline {groups}", row.tensor);
    let stated = format!("as published {:.0} to {:.0} %", 100.0 * (least - 1.0), 100.0 * (most - 1.0));
    Ok(vec![
        Cell::alone(&name, "po-f, s per iteration", fast),
        Cell::alone(&name, format!("{other}, s per iteration"), slow),
        Cell::relative(&name, "times as fast", nearer, ratio).note(Some(stated)),
        Cell::alone(&name, "po-f, activations and state, GiB", costs.held(&offloading)),
    ])
}

/// The times of one of `chunks` chunks whose layers a group of GPUs shares, all-reduces included.
fn shared(row: &Pair, chunks: usize, library: Library<'_>) -> Result<StageTimes, Faults> {
    let bench = Bench::new(&row.setting, library)?;
    let context = bench.context();
    let spread = Parallelism { tensor: row.tensor as u64, data: 1, recompute: Recompute::None };
    let cost = spread.cost(context.model, context.hardware, context.workload()).map_err(|error| {
        Diagnostic::error(error.to_string()).hint("use a machine with enough GPUs, and sizes that divide")
    })?;
    let microbatches = context.workload().microbatches as f64;
    let whole = (cost.compute + cost.tensor_reductions).get() / microbatches / chunks as f64;
    let block = block_times(&bench)?;
    let parts = [block.forward, block.backward_input, block.backward_weight].map(Seconds::get);
    let sum: f64 = parts.iter().sum();
    let time = |part: f64| SimTime::ns((whole * part / sum * 1e9).round() as u64);
    Ok(StageTimes {
        forward: time(parts[0]),
        backward_input: time(parts[1]),
        backward_weight: time(parts[2]),
        latency: SimTime::ZERO,
        weight_gradient_memory: StageTimes::UNIT.get(),
    })
}
