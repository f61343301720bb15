//! `spipe baseline`: time and memory of a model under tensor and data parallelism, estimated by a closed form.

use crate::{
    Failure, args,
    args::{Format, Given},
    idle::Idle,
    input, output,
    planning::tensor_data,
    tables::dense_table,
};
use serde::Serialize;
use spipe_base::{Bytes, Diagnostic, readable::per_second};
use spipe_cost::{Mode, ParallelCost};
use spipe_hardware::Hardware;
use spipe_model::{Model, Recompute};
use spipe_search::{
    attends,
    compare::tensor_data::{Priced, best},
};

/// Computes every configuration that was asked for and prints it.
pub fn run(what: &args::Baseline, given: &Given, format: Format) -> Result<(), Failure> {
    match what {
        args::Baseline::TensorData(what) => tensor_data(what, given, format),
    }
}

fn tensor_data(what: &args::TensorData, given: &Given, format: Format) -> Result<(), Failure> {
    let model = what.training.adapt(input::model(&what.model)?, false)?;
    let hardware = input::part(input::hardware(&what.hardware)?, &args::Devices::names(&what.devices))?;
    let hardware = input::under(hardware.clone(), tensor_data::runtime(what, &hardware)?)?;
    Idle::among(given)
        .options_if(what.mode != Mode::Train, &["optimizer", "recompute"], "in inference", "leave it out")
        .options_if(!attends(&model), &["materialised-attention"], "to a model without known attention", "leave it out")
        .refuse()?;
    args::DataOptions::idle(given, (&model, what.mode))?;
    let (priced, refused) = tensor_data::priced(what, (&model, &hardware))?;
    let Some(best) = best(&priced) else {
        let reason =
            refused.map_or_else(|| "no two degrees multiply to the number of GPUs".into(), |error| error.to_string());
        return Err(Failure::Infeasible(Diagnostic::error(reason).hint("give other degrees, or another batch")));
    };
    output::report(
        format,
        &human(hardware.runtime().name(), &priced, best),
        &data((&model, &hardware), &priced, best),
    )?;
    if priced[best].cost.fits() {
        return Ok(());
    }
    let ParallelCost { memory, usable, .. } = priced[best].cost;
    let message = format!("each GPU needs at least {memory} and has {usable}");
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
    data: u64,
    recompute: &'static str,
    microbatch: u64,
    fits: bool,
    iteration_ms: f64,
    compute_ms: f64,
    tensor_reductions_ms: f64,
    data_reduction_ms: f64,
    optimizer_ms: f64,
    tokens_per_second: f64,
    memory_bytes: Bytes,
    usable_bytes: Bytes,
}

const fn name(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full => "full",
    }
}

fn data<'a>((model, hardware): (&'a Model, &'a Hardware), priced: &[Priced], best: usize) -> BaselineOutput<'a> {
    let configuration = |priced: &Priced| {
        let cost = &priced.cost;
        Configuration {
            tensor: priced.spread.tensor,
            data: priced.spread.data,
            recompute: name(priced.spread.recompute),
            microbatch: priced.workload.microbatch,
            fits: cost.fits(),
            iteration_ms: cost.iteration.to_ms(),
            compute_ms: cost.compute.to_ms(),
            tensor_reductions_ms: cost.tensor_reductions.to_ms(),
            data_reduction_ms: cost.data_reduction.to_ms(),
            optimizer_ms: cost.optimizer.to_ms(),
            tokens_per_second: rate(priced),
            memory_bytes: cost.memory,
            usable_bytes: cost.usable,
        }
    };
    BaselineOutput {
        format_version: 1,
        status: if priced[best].cost.fits() { "ok" } else { "out-of-memory" },
        model: model.name(),
        hardware: hardware.name(),
        runtime: hardware.runtime().name(),
        best,
        configurations: priced.iter().map(configuration).collect(),
    }
}

/// Tokens per second.
fn rate(priced: &Priced) -> f64 {
    priced.workload.tokens() as f64 / priced.cost.iteration.get()
}

fn human(runtime: &str, priced: &[Priced], best: usize) -> String {
    let headings = [
        "tensor\n× data",
        "recompute",
        "micro-\nbatch",
        "iteration",
        "compute",
        "layers",
        "gradients",
        "optimizer",
        "tokens/s",
        "GPU memory",
        "fits",
    ];
    let mut rows = dense_table(&headings, &[0, 2, 3, 4, 5, 6, 7, 8, 9]);
    for (index, one) in priced.iter().enumerate() {
        let ms = |time: spipe_base::Seconds| format!("{:.1}", time.to_ms());
        let cost = &one.cost;
        let fits = match (cost.fits(), index == best) {
            (false, _) => "no",
            (true, true) => "best",
            (true, false) => "yes",
        };
        rows.add_row(vec![
            format!("{} × {}", one.spread.tensor, one.spread.data),
            name(one.spread.recompute).into(),
            one.workload.microbatch.to_string(),
            ms(cost.iteration),
            ms(cost.compute),
            ms(cost.tensor_reductions),
            ms(cost.data_reduction),
            ms(cost.optimizer),
            per_second(rate(one)),
            cost.memory.to_string(),
            fits.into(),
        ]);
    }
    let usable = priced[best].cost.usable;
    format!(
        "{rows}\n\nA baseline: estimates of a closed form, without plan, trace or export. Times are in ms, without overlap: compute, all-reduces in layers, all-reduce of gradients and optimizer add up. Each \
         GPU has {usable} under the runtime `{runtime}`.\n"
    )
}
