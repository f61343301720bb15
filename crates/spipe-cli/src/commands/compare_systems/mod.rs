//! `spipe compare-systems`: every system on one model and machine, side by side.

mod pictures;
mod table;

use crate::{
    Failure, args,
    args::{Format, Given},
    idle::Idle,
    input, interrupt,
    options::OPTIONS,
    output,
    output::Target,
    planning::training,
};
use serde::Serialize;
use spipe_cost::{DataShape, Mode, Workload};
use spipe_model::{Attention, Model, Operations};
use spipe_plan::System;
use spipe_planner::Pins;
use spipe_search::{
    Conditions, Machine, Request, Words, attends,
    compare::{Compared, DATA_PARALLEL, baseline, compared},
    cores, workloads,
};
use std::{
    collections::BTreeSet,
    str::FromStr,
    sync::{Arc, atomic::Ordering},
};

/// Plans and simulates each system, and prints and draws their figures.
pub fn run(what: &args::CompareSystems, given: &Given, format: Format) -> Result<(), Failure> {
    let (limit, stop) = (input::limit(what.time_limit)?, interrupt::flag());
    let inputs = [what.model.as_str(), what.hardware.as_str()];
    let page = what.output.as_deref().map(|path| pictures::page_target(path, &inputs)).transpose()?;
    let plot = what.plot.as_deref().map(|path| pictures::plot_target(path, &inputs)).transpose()?;
    let case = Case::new(what, given)?;
    let threads = what.threads.map_or_else(cores, |threads| threads.clamp(1, cores()));
    let request = Request {
        time_limit: limit,
        threads,
        stop: Arc::clone(&stop),
        drives: true,
        pins: case.pins.clone(),
        spelling: OPTIONS,
        ..Request::new(Arc::clone(&case.model), case.machine.clone(), case.workloads.clone())
    };
    let mut all = Vec::new();
    for system in &case.systems {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        output::progress(&format!("{system} …"));
        all.push(compared(*system, &request, &what.mesh.degrees())?);
    }
    if case.baseline {
        all.push(baseline(&case.model, case.machine.of(System::GpuOnly), &case.workloads)?);
    }
    output::progress("");
    if let Some(target) = page {
        target.write(pictures::page(&case.title(), &all).as_bytes())?;
    }
    if let Some((target, kind)) = plot {
        target.write(&pictures::plot(kind, &case.title(), &all)?)?;
    }
    let data = SystemsOutput {
        format_version: 1,
        model: case.model.name(),
        hardware: case.machine.hardware().name(),
        systems: &all,
    };
    if matches!(what.output.as_deref(), Some("-")) {
        return Ok(());
    }
    output::report(format, &table::human(&case.title(), &all), &data)
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct SystemsOutput<'a> {
    format_version: u32,
    model: &'a str,
    hardware: &'a str,
    systems: &'a [Compared],
}

/// The model, machine, workloads and systems to compare.
struct Case {
    model: Arc<Model>,
    machine: Machine,
    template: Workload,
    workloads: Vec<Workload>,
    systems: Vec<System>,
    baseline: bool,
    pins: Pins,
}

impl Case {
    fn new(what: &args::CompareSystems, given: &Given) -> Result<Self, Failure> {
        let model = what.training.adapt(input::model(&what.model)?, false)?;
        let hardware = what.mesh.computers(input::hardware(&what.hardware)?)?;
        let hardware = input::part(hardware, &args::Devices::names(&what.devices))?;
        let mode = input::mode(&model, what.mode)?;
        let runtime = what.runtime.as_deref().map(input::runtime).transpose()?;
        let machine = Machine::new(&hardware, runtime.as_ref(), mode)?;
        Idle::among(given)
            .options_if(mode != Mode::Train, &["optimizer", "clip-norm"], "in inference", "leave it out")
            .options_if(
                !attends(&model),
                &["materialised-attention"],
                "to a model without known attention",
                "leave it out",
            )
            .refuse()?;
        args::DataOptions::idle(given, (&model, mode))?;
        let template = Workload {
            mode,
            seq_len: input::seq_len(&model, what.seq_len)?,
            microbatch: 1,
            microbatches: 1,
            precision: what.precision,
            optimizer: what.optimizer,
            attention: if what.materialised_attention { Attention::Materialised } else { Attention::Fused },
            clip_norm: what.clip_norm,
            formats: what.training.formats(),
            data: DataShape::PLAIN,
            recompute_ops: Operations::NONE,
            loss: None,
        };
        let template = what.shape.shape(template)?;
        training::check(&model, &template)?;
        let workloads = workloads(template, what.global_batch, &what.microbatch)?;
        let (systems, baseline) = systems(&what.system)?;
        let words = Words { pins: &what.mesh.pins(&model)?, system: "auto", microbatch: "auto" };
        let asked = Conditions { layout: None, words, devices: &[] };
        let pins = spipe_search::conditions(&asked, (&model, machine.hardware()), &template, OPTIONS)?.pinned.pins;
        Ok(Self { model: Arc::new(model), machine, template, workloads, systems, baseline, pins })
    }

    fn title(&self) -> String {
        let (batch, verb) = (self.workloads.first().map_or(0, Workload::global_batch), self.template.mode);
        format!(
            "{} on {}, {verb}, {batch} × {} tokens",
            self.model.name(),
            self.machine.hardware().name(),
            self.template.seq_len
        )
    }
}

/// The systems with these names, in the order of `System::ALL`, and whether the baseline is among them; all if there are
/// no names.
fn systems(names: &[String]) -> Result<(Vec<System>, bool), Failure> {
    if names.is_empty() || names.iter().any(|name| name.trim() == "auto") {
        return Ok((System::ALL.to_vec(), true));
    }
    let (mut chosen, mut baseline) = (BTreeSet::new(), false);
    for name in names.iter().map(|name| name.trim()) {
        if name == DATA_PARALLEL {
            baseline = true;
            continue;
        }
        let hint = format!("or the baseline {DATA_PARALLEL}; leave `--system` out to compare all");
        chosen.insert(System::from_str(name).map_err(|message| Failure::argument(message, hint))?);
    }
    Ok((System::ALL.into_iter().filter(|system| chosen.contains(system)).collect(), baseline))
}
