//! GPU memory in training, with Superpipeline and with everything on the GPU: by the memory count
//! of plans, and by a line through measured rows over that count.

use crate::{
    bench::{Bench, Need, Setting},
    fit::line,
    reproduction::{Cell, Reproduction},
    rows::{self, Rows, Usage, above_zero},
    source::Source,
};
use serde::Deserialize;
use spipe_base::{Bytes, Diagnostic, Faults, LayerRange, Text};
use spipe_plan::{Knob, Placement, Stage, System};
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Measured {
    setting: Setting,
    /// Superpipeline's k; without it, everything is on the GPU.
    #[serde(default)]
    resident: Option<u64>,
    /// Superpipeline's k'.
    #[serde(default)]
    swap: Option<u64>,
    /// Whether the backward recomputes the activations inside a layer.
    checkpointing: bool,
    #[serde(rename = "use")]
    usage: Usage,
    /// The memory used on the GPU; none where the run was out of memory.
    #[serde(default)]
    published: Option<Text<Bytes>>,
}

type Row = rows::Row<Measured>;

/// The key of rows that differ in the batch alone: model, machine, checkpointing, k, k'.
type Group<'a> = (&'a str, &'a str, bool, Option<u64>, Option<u64>);

impl Measured {
    fn name(&self) -> String {
        let how = match (self.resident, self.swap) {
            (Some(resident), Some(swap)) => format!("k {resident}, k' {swap}"),
            _ => "standard".into(),
        };
        let checkpointing = if self.checkpointing { "checkpointing" } else { "no checkpointing" };
        let Setting { model, hardware, microbatch, .. } = &self.setting;
        format!("{model} on {hardware}, {checkpointing}, batch {microbatch}, {how}")
    }

    /// A cell with its place among batches.
    fn placed(&self, cell: Cell) -> Cell {
        let how = if self.resident.is_some() { "k, k'" } else { "standard" };
        let checkpointing = if self.checkpointing { "checkpointing" } else { "no checkpointing" };
        cell.at(&self.setting.model, format!("{how}, {checkpointing}"), Some(self.setting.microbatch as f64))
    }

    fn placement(&self, bench: &Bench) -> Result<Placement, Faults> {
        let (system, options) = match (self.resident, self.swap) {
            (None, None) if self.checkpointing => (System::Checkpointing, Vec::new()),
            (None, None) => (System::GpuOnly, Vec::new()),
            (Some(resident), Some(swap)) if (1..=resident).contains(&swap) => {
                (System::Superpipeline, vec![(Knob::Resident, resident), (Knob::Swap, swap)])
            }
            _ => {
                let fault = Diagnostic::error("k and k' are not 1 ≤ k' ≤ k");
                return Err(fault.hint("set both `resident` and `swap`, or leave both out").into());
            }
        };
        let context = bench.context();
        let gpu = context.hardware.devices().enumerate().find(|(_, device)| device.is_gpu());
        let (gpu, _) = gpu.ok_or_else(|| Diagnostic::error("the machine has no GPU"))?;
        let host = context.hardware.host_memory(gpu);
        let socket = context.hardware.devices().enumerate().find(|(_, device)| Some(device.memory) == host);
        let (Some(host), Some((socket, _))) = (host, socket) else {
            return Err(Diagnostic::error("the machine's GPU has no host").hint("use another machine").into());
        };
        let streams = system == System::Superpipeline;
        let stage = |layer| {
            let stage = Stage::new(gpu, LayerRange::new(layer, layer)?);
            let stage = if self.checkpointing { stage.with_everything_recomputed() } else { stage };
            Some(if streams { stage.with_weights_in(host).with_optimizer_on(socket) } else { stage })
        };
        let stages: Vec<Stage> = context.cost.layers().filter_map(stage).collect();
        Ok(Placement::new(system, stages).with_options(&options))
    }
}

pub fn make(source: &Source<'_>) -> Result<Reproduction, Faults> {
    let rows = Rows::<Measured>::read(source)?;
    let counts = rows.each(|row| {
        if let Some(published) = row.published {
            above_zero("memory", published.0.as_f64())?;
        }
        let bench = Bench::new(&row.setting, source.library)?;
        let judged = bench.judge(row.placement(&bench)?);
        let gpu = judged.needs.into_iter().find(|need| need.on_gpu);
        gpu.ok_or_else(|| Diagnostic::error("nothing is on the GPU").into())
    })?;
    let mut groups: BTreeMap<Group, Vec<(&Row, &Need)>> = BTreeMap::new();
    for (row, count) in rows.rows.iter().zip(&counts) {
        let Setting { model, hardware, .. } = &row.setting;
        groups.entry((model, hardware, row.checkpointing, row.resident, row.swap)).or_default().push((row, count));
    }
    let cells = groups.values().flat_map(|rows| cells(rows)).collect();
    let unit = "10⁹ bytes on the GPU; errors are relative. `by shapes` is the memory count of plans, nothing fitted; `memory` is the line \
                through what was measured over that count, by model, machine and settings.";
    Ok(Reproduction::new(&rows.source, unit, cells))
}

fn cells(rows: &[(&Row, &Need)]) -> Vec<Cell> {
    let fits = |row: &Row| row.usage == Usage::Fit;
    let measured = |row: &Row| row.published.map(|bytes| bytes.0.as_f64() / 1e9);
    let points = rows.iter().filter(|(row, _)| fits(row));
    let points: Vec<(f64, f64)> =
        points.filter_map(|(row, need)| Some((need.needed.as_f64() / 1e9, measured(row)?))).collect();
    let scale = match line(&points) {
        found if found.0.is_finite() => Some(found),
        // A single row fixes the memory beside the count.
        _ => points.first().map(|(count, measured)| (1.0, measured - count)),
    };
    let mut cells = Vec::new();
    for (row, need) in rows {
        let (needed, usable) = (need.needed.as_f64() / 1e9, need.usable.as_f64() / 1e9);
        let out = (needed > usable).then(|| format!("out of memory here: {usable:.1} GB are usable"));
        let Some(published) = measured(row) else {
            let said = if out.is_some() { "as published" } else { "published as out of memory, but fits here" };
            let note = out.map_or_else(|| said.into(), |out| format!("{out}, {said}"));
            cells.push(row.placed(Cell::alone(row.name(), "by shapes, GB", needed).note(Some(note))));
            continue;
        };
        cells.push(row.placed(Cell::relative(row.name(), "by shapes, GB", published, needed).note(out)));
        if let Some((slope, beside)) = scale {
            let fitted = fits(row).then(|| format!("{beside:.1} GB and {slope:.2} of the count"));
            cells.push(Cell::relative(row.name(), "memory, GB", published, beside + slope * needed).fitted(fitted));
        }
    }
    cells
}
