//! PipeOffload's runs: model FLOPs utilisation, activation memory, and the runs that were out of
//! memory.
//!
//! The times and bytes of a layer come from the cost model, the ratio k from the paper. Schedules
//! are simulated. One efficiency per row is fitted on the utilisation of one schedule. The
//! utilisation of the others is that efficiency divided by their simulated stretch.

use super::schedules::{Schedule, Shape, Simulated, simulated};
use crate::{
    bench::{Bench, Setting, gib},
    reproduction::{Cell, Reproduction},
    rows::{self, Rows},
    source::{Library, Source},
};
use serde::Deserialize;
use spipe_base::{Bytes, DeviceId, Diagnostic, Faults, LayerId, SimTime, Text};
use spipe_cost::LayerTime;
use spipe_model::LayerKind;
use spipe_schedule::StageTimes;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Measured {
    /// One GPU of the kind is enough in the machine.
    setting: Setting,
    devices: usize,
    /// The ratio k: the time of both copies of an activation over the time to compute its layer.
    ratio: f64,
    /// The schedule whose utilisation the efficiency of the row is fitted on.
    fit: String,
    published: BTreeMap<String, PublishedRun>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PublishedRun {
    /// A share of the peak. A run that was out of memory has neither this nor `activations`.
    #[serde(default)]
    utilisation: Option<f64>,
    #[serde(default)]
    activations: Option<Text<Bytes>>,
}

type Row = rows::Row<Measured>;

/// The costs of a row.
pub struct Costs {
    pub shape: Shape,
    pub times: StageTimes,
    /// Activations saved for one microbatch of one layer.
    layer: Bytes,
    /// Parameters, gradients and optimizer state of one device.
    state: Bytes,
    usable: Bytes,
}

impl Costs {
    /// The peak of activations and state over all devices, in GiB.
    pub fn held(&self, simulated: &Simulated) -> f64 {
        let most = simulated.peaks.iter().copied().fold(0.0, f64::max);
        self.layer.as_f64() * most / Bytes::gib(1).as_f64() + gib(self.state)
    }
}

pub fn make(source: &Source<'_>) -> Result<Reproduction, Faults> {
    let rows = Rows::<Measured>::read(source)?;
    let made = rows.each(|row| cells(row, source.library))?.concat();
    let fits = || made.iter().filter(|cell| cell.column == TOTAL);
    let (agreed, all) = (fits().filter(|cell| cell.note.as_deref().is_some_and(as_published)).count(), fits().count());
    let unit = "Shares of the peak (errors are differences) and GiB (errors are relative). One efficiency per row is fitted, on the \
                schedule marked so; memory is not fitted, and is what the schedule holds at least.";
    let mut made = Reproduction::new(&rows.source, unit, made);
    made.findings.push(format!("Whether a run is out of memory is as published in {agreed} of {all} cases."));
    Ok(made)
}

/// The column of the memory that a device needs in all.
const TOTAL: &str = "activations and state, GiB";

fn as_published(note: &str) -> bool {
    !note.ends_with("not as published")
}

fn cells(row: &Row, library: Library<'_>) -> Result<Vec<Cell>, Faults> {
    let costs = costs(&row.setting, row.devices, library)?;
    let mut stretches = BTreeMap::new();
    let mut peaks = BTreeMap::new();
    for name in row.published.keys() {
        let found = simulated(schedule(name, &costs.shape, row.ratio)?, costs.shape, &costs.times)?;
        stretches.insert(name, found.stretch);
        peaks.insert(name, found.peaks.into_iter().fold(0.0, f64::max));
    }
    let fitted = row.published.get(&row.fit).and_then(|published| published.utilisation);
    let Some(efficiency) = fitted.zip(stretches.get(&row.fit)).map(|(own, stretch)| own * stretch) else {
        let message = format!("no utilisation of `{}` is published to fit on", row.fit);
        return Err(Diagnostic::error(message).hint("name a schedule that ran").into());
    };
    let workload = &row.setting;
    let title = format!("{}, {} GPUs, {} tokens", workload.model, row.devices, workload.seq_len.unwrap_or_default());
    let mut cells = Vec::new();
    for (name, published) in &row.published {
        let row_name = format!("{title}, {name}");
        let activations = costs.layer.as_f64() * peaks[name] / Bytes::gib(1).as_f64();
        let needed = activations + gib(costs.state);
        if let Some(utilisation) = published.utilisation {
            let note = (*name == row.fit).then(|| format!("efficiency {:.1} % of the peak", 100.0 * efficiency));
            let ours = efficiency / stretches[name];
            let cell = Cell::difference(&row_name, "utilisation", utilisation, ours);
            cells.push(cell.fitted(note).at("", name, None));
        }
        if let Some(bytes) = published.activations {
            let cell = Cell::relative(&row_name, "activations, GiB", gib(bytes.0), activations);
            cells.push(cell.at("", name, None));
        }
        let ran_out = published.utilisation.is_none() && published.activations.is_none();
        let out = needed > gib(costs.usable);
        let verdict = if out { "out of memory" } else { "fits" };
        let agrees = if out == ran_out { "as published" } else { "but not as published" };
        let note = format!("of {:.1}: {verdict}, {agrees}", gib(costs.usable));
        cells.push(Cell::alone(&row_name, TOTAL, needed).note(Some(note)));
    }
    Ok(cells)
}

/// The times and bytes of chunks of one layer each. The embedding and the head count as layers: the
/// first and the last stage have one block fewer to make room for them.
pub fn costs(setting: &Setting, devices: usize, library: Library<'_>) -> Result<Costs, Faults> {
    let bench = Bench::new(setting, library)?;
    let context = bench.context();
    let layers = context.model.layers().len();
    if devices == 0 || !layers.is_multiple_of(devices) {
        let message =
            format!("{layers} layers, embedding and head among them, cannot be dealt out to {devices} devices");
        return Err(Diagnostic::error(message).hint("use a number of devices that divides them").into());
    }
    let (block, gpu) = block(&bench)?;
    let time = block_times(&bench)?;
    let state: Bytes = context.cost.layers().map(|layer| context.cost.memory(layer, gpu).state()).sum();
    let microbatches = context.workload().microbatches as usize;
    Ok(Costs {
        shape: Shape { devices, chunks: layers / devices, microbatches },
        times: StageTimes {
            forward: SimTime::from_seconds(time.forward),
            backward_input: SimTime::from_seconds(time.backward_input),
            backward_weight: SimTime::from_seconds(time.backward_weight),
            latency: SimTime::ZERO,
            weight_gradient_memory: StageTimes::UNIT.get(),
        },
        layer: context.cost.memory(block, gpu).saved_selective,
        state: Bytes::new(state.get() / devices as u64),
        usable: context.hardware.memories()[context.hardware.devices()[gpu].memory].usable(),
    })
}

/// The first block of the model and the first GPU of the machine.
fn block(bench: &Bench) -> Result<(LayerId, DeviceId), Faults> {
    let context = bench.context();
    let gpu = context.hardware.devices().enumerate().find(|(_, device)| device.is_gpu());
    let block = context.model.layers().enumerate().find(|(_, layer)| matches!(layer.kind, LayerKind::Block(_)));
    match (block, gpu) {
        (Some((block, _)), Some((gpu, _))) => Ok((block, gpu)),
        _ => {
            let fault = Diagnostic::error("there is no GPU, or no block");
            Err(fault.hint("use a transformer and a machine with a GPU").into())
        }
    }
}

/// The times of the first block of the model on the first GPU of the machine.
pub fn block_times(bench: &Bench) -> Result<LayerTime, Faults> {
    let (block, gpu) = block(bench)?;
    let time = bench.context().cost.time(block, gpu).copied();
    time.ok_or_else(|| Diagnostic::error("a block has no time on the GPU").into())
}

fn schedule(name: &str, shape: &Shape, ratio: f64) -> Result<Schedule, Diagnostic> {
    Ok(match name {
        "1f1b" => Schedule::OneForwardOneBackward,
        "interleaved-1f1b" => Schedule::Interleaved,
        "gis" => Schedule::Gis(shape.devices),
        "gis-h" => Schedule::Gis(shape.devices.div_ceil(2)),
        "po-h" => Schedule::Offloaded(shape.chunks.div_ceil(2), ratio),
        "po-f" => Schedule::Offloaded(shape.chunks, ratio),
        other => {
            let fault = Diagnostic::error(format!("no schedule of this table is called `{other}`"));
            return Err(fault.hint("use 1f1b, interleaved-1f1b, gis, gis-h, po-h or po-f"));
        }
    })
}
