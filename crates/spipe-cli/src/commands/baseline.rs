//! `spipe baseline`: time and memory of a model on meshes with equal stages, simulated like plans without a search.

use crate::{
    Failure, args,
    args::{Format, Given},
    idle::Idle,
    input,
    options::OPTIONS,
    output,
    output::Target,
    planning::baseline as options,
    tables::dense_table,
};
use serde::Serialize;
use spipe_base::{
    Bytes, Diagnostic,
    readable::{per_second, percent},
};
use spipe_cost::Mode;
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_search::{
    attends,
    compare::equal_stages::{Asked, Baseline, baselines, best},
};
use std::sync::Arc;

/// Simulates every configuration that was asked for and prints it.
pub fn run(what: &args::Baseline, given: &Given, format: Format) -> Result<(), Failure> {
    match what {
        args::Baseline::TensorData(what) => tensor_data(what, given, format),
    }
}

fn tensor_data(what: &args::TensorData, given: &Given, format: Format) -> Result<(), Failure> {
    let target = what.output.as_deref().map(|path| Target::beside(path, &[&what.model, &what.hardware])).transpose()?;
    let model = Arc::new(what.training.adapt(input::model(&what.model)?, false)?);
    let hardware = what.mesh.computers(input::hardware(&what.hardware)?)?;
    let hardware = input::part(hardware, &args::Devices::names(&what.devices))?;
    let hardware = Arc::new(input::under(hardware.clone(), options::runtime(what, &hardware)?)?);
    Idle::among(given)
        .options_if(what.mode != Mode::Train, &["optimizer", "recompute"], "in inference", "leave it out")
        .options_if(!attends(&model), &["materialised-attention"], "to a model without known attention", "leave it out")
        .refuse()?;
    args::DataOptions::idle(given, (&model, what.mode))?;
    let asked = Asked { degrees: what.mesh.degrees(), recompute: what.recompute.map(Into::into) };
    let sizes = options::sizes(what, &model)?;
    let all = baselines(&asked, (&model, &hardware), (&sizes, OPTIONS))?;
    let Some(best) = best(&all) else {
        let hint = "give other degrees, or another batch";
        return Err(Failure::Infeasible(Diagnostic::error("no size of microbatches divides the batch").hint(hint)));
    };
    let fits = all[best].fits();
    if let Some(target) = target.filter(|_| fits) {
        target.write(all[best].plan((&model, &hardware))?.to_json().as_bytes())?;
    }
    if what.output.as_deref() != Some("-") {
        output::report(format, &human(hardware.runtime().name(), &all, best), &data((&model, &hardware), &all, best))?;
    }
    let Err(fault) = &all[best].times else { return Ok(()) };
    let small = all[best].memory <= all[best].usable;
    let message = format!("each GPU needs at least {} and has {}", all[best].memory, all[best].usable);
    let message = if small { fault.message.clone() } else { message };
    Err(Failure::Check(
        Diagnostic::error(message).hint("plan a pipeline, or one that streams: spipe plan --system auto"),
    ))
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct BaselineOutput<'a> {
    format_version: u32,
    status: &'static str,
    model: &'a str,
    hardware: &'a str,
    runtime: &'a str,
    /// The index of the best configuration.
    best: usize,
    configurations: Vec<Configuration>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Configuration {
    tensor: u64,
    pipeline: u64,
    data: u64,
    context: u64,
    expert: u64,
    sequence_parallel: bool,
    sharding: &'static str,
    recompute: &'static str,
    microbatch: u64,
    fits: bool,
    /// Figures of the simulated iteration; none if it does not fit.
    iteration_ms: Option<f64>,
    bubble_fraction: Option<f64>,
    collectives_ms: Option<f64>,
    optimizer_ms: Option<f64>,
    tokens_per_second: Option<f64>,
    memory_bytes: Bytes,
    usable_bytes: Bytes,
}

fn data<'a>((model, hardware): (&'a Model, &'a Hardware), all: &[Baseline], best: usize) -> BaselineOutput<'a> {
    let configuration = |one: &Baseline| Configuration {
        tensor: one.mesh.tensor(),
        pipeline: one.mesh.leads().count() as u64,
        data: one.mesh.data(),
        context: one.mesh.context,
        expert: one.mesh.expert,
        sequence_parallel: one.mesh.sequence,
        sharding: one.mesh.sharding.name(),
        recompute: one.recompute.name(),
        microbatch: one.workload.microbatch,
        fits: one.fits(),
        iteration_ms: one.times.as_ref().ok().map(|times| times.iteration.to_ms()),
        bubble_fraction: one.times.as_ref().ok().map(|times| times.bubbles),
        collectives_ms: one.times.as_ref().ok().map(|times| times.collectives.to_ms()),
        optimizer_ms: one.times.as_ref().ok().map(|times| times.optimizer.to_ms()),
        tokens_per_second: one.tokens_per_second(),
        memory_bytes: one.memory,
        usable_bytes: one.usable,
    };
    BaselineOutput {
        format_version: 1,
        status: if all[best].fits() { "ok" } else { "out-of-memory" },
        model: model.name(),
        hardware: hardware.name(),
        runtime: hardware.runtime().name(),
        best,
        configurations: all.iter().map(configuration).collect(),
    }
}

fn human(runtime: &str, all: &[Baseline], best: usize) -> String {
    let headings = [
        "mesh",
        "recompute",
        "micro-\nbatch",
        "iteration",
        "bubbles",
        "collec-\ntives",
        "optimizer",
        "tokens/s",
        "GPU\nmemory",
        "fits",
    ];
    let mut rows = dense_table(&headings, &[2, 3, 4, 5, 6, 7, 8]);
    for (index, one) in all.iter().enumerate() {
        let ms = |time: spipe_base::SimTime| format!("{:.1}", time.to_ms());
        let figure = |text: Option<String>| text.unwrap_or_else(|| "–".into());
        let fits = match (one.fits(), index == best) {
            (false, _) => "no",
            (true, true) => "best",
            (true, false) => "yes",
        };
        rows.add_row(vec![
            one.mesh.to_string(),
            one.recompute.name().into(),
            one.workload.microbatch.to_string(),
            figure(one.times.as_ref().ok().map(|times| ms(times.iteration))),
            figure(one.times.as_ref().ok().map(|times| percent(times.bubbles))),
            figure(one.times.as_ref().ok().map(|times| ms(times.collectives))),
            figure(one.times.as_ref().ok().map(|times| ms(times.optimizer))),
            figure(one.tokens_per_second().map(per_second)),
            one.memory.to_string(),
            fits.into(),
        ]);
    }
    let usable = all[best].usable;
    format!(
        "{rows}\n\nA baseline: equal stages in 1F1B with everything on GPUs, checked and simulated like a plan, without a search \
         but for the size of microbatches. Times are in ms; collectives are those of replicas, sums within a team are part \
         of passes. Each GPU has {usable} under the runtime `{runtime}`.\n"
    )
}
