//! `spipe baseline`: time and memory of a model under tensor and data parallelism, in closed form.

use crate::{
    Failure, args,
    args::{Format, Given},
    idle::Idle,
    input, output, planning,
    tables::dense_table,
};
use serde::Serialize;
use spipe_base::{Bytes, Diagnostic, readable::per_second};
use spipe_cost::{Mode, ParallelCost, ParallelError, Parallelism, Workload};
use spipe_hardware::{Hardware, Runtime};
use spipe_model::{Attention, Model, Recompute};

/// Computes every configuration that was asked for and prints it.
pub fn run(what: &args::Baseline, given: &Given, format: Format) -> Result<(), Failure> {
    match what {
        args::Baseline::TensorData(what) => tensor_data(what, given, format),
    }
}

/// The runtime that trains with tensor parallelism on GPUs.
const FRAMEWORK: &str = "megatron";

/// A configuration with its cost.
struct Priced {
    spread: Parallelism,
    workload: Workload,
    cost: ParallelCost,
}

impl Priced {
    /// Whether it is faster and fits, or if none fits, needs less memory.
    fn better_than(&self, other: &Self) -> bool {
        match (self.cost.fits(), other.cost.fits()) {
            (true, true) => self.cost.iteration < other.cost.iteration,
            (false, false) => self.cost.memory < other.cost.memory,
            (fits, _) => fits,
        }
    }
}

fn tensor_data(what: &args::TensorData, given: &Given, format: Format) -> Result<(), Failure> {
    let model = input::model(&what.model)?;
    let hardware = input::part(input::hardware(&what.hardware)?, &what.devices)?;
    let runtime = match &what.runtime {
        Some(given) => input::runtime(given)?,
        None if input::has_foreign_gpus(&hardware) => input::runtime(FRAMEWORK)?,
        None => Runtime::default(),
    };
    let hardware = hardware.under(runtime);
    Idle::among(given)
        .options_if(what.mode != Mode::Train, &["optimizer", "recompute"], "in inference", "leave it out")
        .options_if(
            !input::attends(&model),
            &["materialised-attention"],
            "to a model without known attention",
            "leave it out",
        )
        .refuse()?;
    let template = Workload {
        mode: input::mode(&model, what.mode)?,
        seq_len: input::seq_len(&model, what.seq_len)?,
        microbatch: 1,
        microbatches: 1,
        precision: what.precision,
        optimizer: what.optimizer,
        attention: if what.materialised_attention { Attention::Materialised } else { Attention::Fused },
        clip_norm: None,
    };
    let workloads = planning::workloads(template, what.global_batch, &what.microbatch)?;
    let (mut priced, mut refused) = (Vec::new(), None);
    for spread in spreads(what, &hardware)? {
        match price(spread, (&model, &hardware), &workloads) {
            Ok(found) => priced.push(found),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let best =
        (0..priced.len()).reduce(|best, other| if priced[other].better_than(&priced[best]) { other } else { best });
    let Some(best) = best else {
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

/// The configurations of the given degrees. Degrees that are not given take every value that uses
/// all GPUs.
fn spreads(what: &args::TensorData, hardware: &Hardware) -> Result<Vec<Parallelism>, Failure> {
    let gpus = hardware.devices().iter().filter(|device| device.is_gpu()).count() as u64;
    let degrees: Vec<(u64, u64)> = match (what.tensor, what.data) {
        (Some(tensor), Some(data)) => vec![(tensor, data)],
        (tensor, data) => {
            let divisors = (1..=gpus).filter(|divisor| gpus.is_multiple_of(*divisor));
            let pairs = divisors.map(|divisor| (divisor, gpus / divisor));
            pairs
                .filter(|pair| tensor.is_none_or(|own| own == pair.0) && data.is_none_or(|own| own == pair.1))
                .collect()
        }
    };
    if gpus == 0 {
        let message = format!("`{}` has no GPU", hardware.name());
        return Err(Failure::argument(message, "name a machine that has some: spipe hardware list"));
    }
    if degrees.is_empty() {
        let given = what.tensor.or(what.data).unwrap_or_default();
        let message = format!("{given} does not divide the {gpus} GPUs of `{}`", hardware.name());
        return Err(Failure::argument(message, "give both degrees to leave GPUs idle"));
    }
    let choices = what.recompute.map_or_else(|| Recompute::ALL.to_vec(), |given| vec![given.into()]);
    let spread =
        |(tensor, data)| choices.iter().map(move |recompute| Parallelism { tensor, data, recompute: *recompute });
    Ok(degrees.into_iter().flat_map(spread).collect())
}

/// A configuration with its best size of microbatches.
fn price(
    spread: Parallelism,
    (model, hardware): (&Model, &Hardware),
    workloads: &[Workload],
) -> Result<Priced, ParallelError> {
    let mut best: Option<Priced> = None;
    let mut refused = ParallelError::Zero;
    for workload in workloads {
        match spread.cost(model, hardware, workload) {
            Ok(cost) => {
                let priced = Priced { spread, workload: *workload, cost };
                if best.as_ref().is_none_or(|best| priced.better_than(best)) {
                    best = Some(priced);
                }
            }
            Err(error) => refused = error,
        }
    }
    best.ok_or(refused)
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Data<'a> {
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

fn data<'a>((model, hardware): (&'a Model, &'a Hardware), priced: &[Priced], best: usize) -> Data<'a> {
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
    Data {
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
        "{rows}\n\nTimes are in ms, without overlap: compute, all-reduces in layers, all-reduce of gradients and optimizer add up. Each \
         GPU has {usable} under the runtime `{runtime}`.\n"
    )
}
