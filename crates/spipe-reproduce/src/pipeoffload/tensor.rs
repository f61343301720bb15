//! PipeOffload beside interleaved 1F1B with tensor parallelism on the same number of GPUs, from
//! shapes and the rates of a machine.
//!
//! PipeOffload is simulated with the times of whole layers and all activations offloaded, 1F1B on a
//! mesh of teams that share each layer.

use super::{
    runs::costs,
    schedules::{Schedule, simulated},
};
use crate::{
    bench::{Bench, Setting},
    reproduction::{Cell, Reproduction},
    rows::{Rows, above_zero},
    source::{Library, Source},
};
use serde::Deserialize;
use spipe_base::{DeviceId, Diagnostic, Faults, LayerRange, SimTime};
use spipe_plan::{Placement, Stage, System};
use spipe_schedule::lower;
use spipe_sim::iteration_time;

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
    /// The network between computers, such as `4x200Gb`.
    network: String,
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
    let (fast, slow) = (offloading.span / 1e3, on_mesh(row, groups, library)?.to_ms() / 1e3);
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

/// The time of an iteration of interleaved 1F1B on a mesh: `groups` teams of GPUs that share each layer, a layer for each
/// chunk.
fn on_mesh(row: &Pair, groups: usize, library: Library<'_>) -> Result<SimTime, Faults> {
    let bench = Bench::on_teams(&row.setting, (row.tensor, groups), &row.network, library)?;
    let context = bench.context();
    let leads: Vec<DeviceId> = context.mesh().leads().collect();
    let layers = context.model.layers().len();
    if layers != groups * row.chunks {
        let message = format!("{layers} layers are not {} chunks on each of {groups} teams", row.chunks);
        return Err(Diagnostic::error(message)
            .hint("use as many chunks as layers, embedding and head among them")
            .into());
    }
    let stage = |layer: usize| Some(Stage::new(leads[layer % groups], LayerRange::new(layer.into(), layer.into())?));
    let stages = (0..layers).filter_map(stage);
    let placement = Placement { mesh: context.mesh().clone(), ..Placement::new(System::Interleaved, stages) };
    let program = lower(&context, &placement)?;
    iteration_time(&program).ok_or_else(|| {
        let message = format!("interleaved 1f1b on {groups} teams of {} GPUs is out of memory", row.tensor);
        Diagnostic::error(message).hint("use more GPUs, or shorter sequences").into()
    })
}
