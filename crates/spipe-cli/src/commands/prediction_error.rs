//! `spipe prediction-error`: iterations of several systems, predicted and measured, on this machine.
//!
//! For each set of devices: measure them, then for each system a placement of the model that is given here (what is asked is
//! how well a plan is predicted, not which plan is best), lowered once, simulated and run.

use super::{calibrate, demo};
use crate::{
    Failure, args,
    args::Format,
    input,
    measuring::{self, Request},
    output,
    output::Target,
    tables::{percent, signed_percent, table},
    training,
};
use serde::Serialize;
use spipe_base::{Bytes, LayerRange};
use spipe_cost::{Mode, Optimizer, Workload};
use spipe_exec::{AdamW, Backend, Data, Executor, Options, Tokens};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model, Precision};
use spipe_plan::{Knobs, Placement, Plan, Stage, System};
use std::{ops::ControlFlow, time::Duration};

const MICROBATCHES: u64 = 8;
const LEARNING_RATE: f64 = 1e-3;
/// Steps that are not counted: caches and the allocator's pools fill.
const WARM_UP: usize = 3;

/// A system and how the model lies on the devices. A stage is `DEVICE FROM TO` in tenths of the model's layers, and any of
/// `recompute`, `offload`, `socket`, `streamed`.
struct Case {
    title: &'static str,
    mode: Mode,
    system: System,
    knobs: Knobs,
    stages: &'static [&'static str],
    backward: &'static [&'static str],
}

/// Devices that are measured and used together.
struct Group {
    accelerators: u32,
    cases: Vec<Case>,
}

fn groups() -> Vec<Group> {
    let none = Knobs::default();
    let case = |title, system, stages| Case { title, mode: Mode::Train, system, knobs: none, stages, backward: &[] };
    let tokens = |title, stages| Case { mode: Mode::Generate, ..case(title, System::Gpipe, stages) };
    let single = vec![
        case("single device", System::Gpipe, &["cpu0 0 10"]),
        tokens("single device, token by token", &["cpu0 0 10"]),
    ];
    let one = vec![
        case("1F1B on two devices", System::OneForwardOneBackward, &["gpu0 0 5", "cpu0 5 10"]),
        tokens("two devices, token by token", &["gpu0 0 5", "cpu0 5 10"]),
        Case {
            knobs: Knobs { head_start: 1, ..none },
            ..case("hybrid, head start 1", System::Hybrid, &["cpu0 0 4", "gpu0 4 10"])
        },
        Case {
            knobs: Knobs { resident: Some(3), swap: Some(2), ..none },
            ..case(
                "Superpipeline, k = 3, k′ = 2",
                System::Superpipeline,
                &[
                    "gpu0 0 2 streamed",
                    "gpu0 2 4 streamed",
                    "gpu0 4 6 streamed",
                    "gpu0 6 8 streamed",
                    "gpu0 8 10 streamed",
                ],
            )
        },
        case("ZeRO-Offload", System::ZeroOffload, &["gpu0 0 10 socket"]),
    ];
    let two = vec![
        case(
            "PipeOffload, PO-H",
            System::PoH,
            &["gpu0 0 3 offload", "gpu1 3 5 offload", "gpu0 5 7 offload", "gpu1 7 10 offload"],
        ),
        Case {
            backward: &[
                "gpu0 0 3 streamed recompute",
                "gpu1 3 5 streamed recompute",
                "gpu0 5 7 streamed recompute",
                "gpu1 7 10 streamed recompute",
            ],
            ..case("SPipe on two accelerators", System::Spipe, &["gpu0 0 5 streamed", "gpu1 5 10 streamed"])
        },
    ];
    [(0, single), (1, one), (2, two)].map(|(accelerators, cases)| Group { accelerators, cases }).into()
}

/// What one case came to.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Row {
    title: String,
    devices: String,
    predicted_ms: f64,
    measured_ms: f64,
    /// Half the distance of the 10th and the 90th percentile of the measured iterations over their median.
    spread: f64,
    iteration_error: f64,
    /// Of the time that compute lanes are busy.
    compute_error: f64,
    /// The share of the measured iteration for which its busiest lane is busy: 1 if copies and compute hide each other wholly.
    busiest_lane: f64,
    tokens_per_second: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    format_version: u32,
    backend: String,
    rows: Vec<Row>,
    failed: Vec<String>,
}

/// Runs all of it.
pub fn run(what: &args::PredictionError, format: Format) -> Result<(), Failure> {
    let target = Target::open(&what.output)?;
    let backend = calibrate::backend(&what.backend)?;
    let model = input::model(&what.model)?;
    let text = demo::training_text(what.data.as_deref())?;
    let data: Data = Tokens::bytes(&text, model.seq_len()).map_err(|error| training::refuse(error.into()))?.into();
    let mut report = Report { format_version: 1, backend: backend.to_string(), rows: Vec::new(), failed: Vec::new() };
    for group in groups() {
        let executors = executors(group.accelerators, backend);
        let named = executors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        output::talk(&format!("measuring {named}"));
        let hardware = machine(what, &model, &executors)?;
        for case in &group.cases {
            output::talk(&format!("{}: {} steps on {named}", case.title, what.steps));
            match measure(what, case, (&model, &hardware), (&data, &executors)) {
                Ok(row) => report.rows.push(Row { devices: named.clone(), ..row }),
                Err(failure) => report.failed.push(format!("{}: {failure}", case.title)),
            }
        }
    }
    let to_stdout = matches!(target, Target::Stdout);
    target.write(markdown(what, &report).as_bytes())?;
    if !to_stdout {
        output::report(format, &human(&report), &report)?;
    }
    match report.failed.first() {
        Some(first) => Err(Failure::Check(spipe_base::Diagnostic::error(first.clone()))),
        None => Ok(()),
    }
}

/// Cores are shared out evenly among all of them; one core is shared where there are too few.
fn executors(accelerators: u32, backend: Backend) -> Vec<Executor> {
    let emulated = (0..accelerators).map(|index| Executor::Emulated { index, backend, cores: Vec::new() });
    let mut executors: Vec<Executor> =
        emulated.chain([Executor::Cpu { index: 0, backend, cores: Vec::new() }]).collect();
    spipe_exec::assign_cores(&mut executors, &[]);
    executors
}

fn workload(model: &Model, mode: Mode) -> Workload {
    Workload {
        mode,
        seq_len: model.seq_len(),
        microbatch: 1,
        microbatches: MICROBATCHES,
        precision: Precision::Fp32,
        optimizer: Optimizer::Adamw,
        attention: Attention::Materialised,
    }
}

fn machine(what: &args::PredictionError, model: &Model, executors: &[Executor]) -> Result<Hardware, Failure> {
    let (file, _) = measuring::measure(&Request {
        name: "this-machine",
        executors: executors.to_vec(),
        layers: Some((model, workload(model, Mode::Train).batch())),
        tokens: &[1],
        budget: Duration::from_secs_f64(what.time_limit.get()),
        // More than the model needs: caps are for planners, and no planner is asked here.
        memory: Bytes::new(model.parameters() * 64),
        link: what.emulated_link,
        command: "spipe prediction-error",
    })?;
    measuring::machine(&file)
}

fn measure(
    what: &args::PredictionError,
    case: &Case,
    (model, hardware): (&Model, &Hardware),
    (data, executors): (&Data, &[Executor]),
) -> Result<Row, Failure> {
    let placed = |texts: &[&str]| texts.iter().map(|text| stage(text, model, hardware)).collect::<Result<Vec<_>, _>>();
    let placement =
        Placement::new(case.system, placed(case.stages)?).with_knobs(case.knobs).with_backward(placed(case.backward)?);
    let plan =
        Plan::new(model.clone(), hardware.clone(), workload(model, case.mode), placement).map_err(Failure::Input)?;
    let program = spipe_schedule::lower(&plan.context(), plan.placement()).map_err(Failure::Input)?;
    let predicted = spipe_sim::simulate(&program, &spipe_sim::Options::default()).trace;
    let mut bindings = training::bindings(&plan, &[], Backend::default())?;
    for (binding, executor) in bindings.iter_mut().filter_map(|binding| {
        let device = hardware.device(&binding.device)?;
        let sockets_last = hardware.devices().iter().filter(|device| device.emulated).count();
        let index = if hardware.devices()[device].emulated { accelerator(&binding.device)? } else { sockets_last };
        Some((binding, executors.get(index)?))
    }) {
        binding.executor = executor.clone();
    }
    let options = Options {
        steps: what.steps + WARM_UP as u32,
        seed: what.seed,
        optimizer: AdamW { lr: LEARNING_RATE, ..AdamW::default() },
        ..Options::new(bindings)
    };
    let mut times = Vec::new();
    let report = spipe_exec::run(&plan, &program, data, &options, &mut |step| {
        times.push(step.duration);
        ControlFlow::Continue(())
    })
    .map_err(training::refuse)?;
    let mut times = times.split_off(WARM_UP);
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize].as_secs_f64() * 1e3;
    let comparison = spipe_trace::compare(&predicted, &report.trace);
    let compute = comparison.by_lane.iter().filter(|(lane, _)| lane.ends_with(".compute"));
    let busy = compute.fold((0.0, 0.0), |(predicted, measured), (_, lane)| {
        (predicted + lane.predicted.to_ms(), measured + lane.measured.to_ms())
    });
    let (predicted_ms, measured_ms) = (predicted.iteration.to_ms(), at(0.5));
    Ok(Row {
        title: case.title.into(),
        devices: String::new(),
        predicted_ms,
        measured_ms,
        spread: (at(0.9) - at(0.1)) / 2.0 / measured_ms,
        iteration_error: predicted_ms / measured_ms - 1.0,
        compute_error: busy.0 / busy.1 - 1.0,
        busiest_lane: busiest(&comparison),
        tokens_per_second: workload(model, case.mode).tokens() as f64 / (measured_ms * 1e-3),
    })
}

fn busiest(comparison: &spipe_trace::Comparison) -> f64 {
    let busy = comparison.by_lane.values().map(|lane| lane.measured.to_ms());
    busy.fold(0.0, f64::max) / comparison.iteration.measured.to_ms()
}

/// The number in `gpu1`.
fn accelerator(name: &str) -> Option<usize> {
    name.strip_prefix("gpu")?.parse().ok()
}

/// A stage as [`Case`] writes it.
fn stage(text: &str, model: &Model, hardware: &Hardware) -> Result<Stage, Failure> {
    let bug = || Failure::Bug(format!("`{text}` is no stage of this machine"));
    let words: Vec<&str> = text.split(' ').collect();
    let [device, from, to, choices @ ..] = &words[..] else { return Err(bug()) };
    let layers = model.layers().len();
    let layer = |tenths: &str| tenths.parse::<usize>().map(|tenths| tenths * layers / 10).map_err(|_| bug());
    let range: LayerRange = format!("{}..{}", layer(from)?, layer(to)? - 1).parse().map_err(|_| bug())?;
    let device_named = |name: &str| hardware.device(name).ok_or_else(bug);
    let (socket, dram) = (device_named("cpu0")?, hardware.memory("dram0").ok_or_else(bug)?);
    choices.iter().try_fold(Stage::new(device_named(device)?, range), |stage, choice| {
        Ok(match *choice {
            "offload" => stage.with_activations_in(dram),
            "socket" => stage.with_optimizer_on(socket),
            "streamed" => stage.with_weights_in(dram),
            "recompute" => stage.with_everything_recomputed(),
            _ => return Err(bug()),
        })
    })
}

fn human(report: &Report) -> String {
    let mut rows = table(
        &["system", "predicted", "measured", "spread", "error", "error of compute lanes", "busiest lane", "tokens/s"],
        &[1, 2, 3, 4, 5, 6, 7],
    );
    for row in &report.rows {
        rows.add_row(cells(row));
    }
    let failed: String = report.failed.iter().map(|failure| format!("\nfailed: {failure}")).collect();
    format!("{rows}{failed}\n")
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.title.clone(),
        format!("{:.1} ms", row.predicted_ms),
        format!("{:.1} ms", row.measured_ms),
        percent(row.spread),
        signed_percent(row.iteration_error),
        signed_percent(row.compute_error),
        percent(row.busiest_lane),
        format!("{:.0}", row.tokens_per_second),
    ]
}

fn markdown(what: &args::PredictionError, report: &Report) -> String {
    let mut text = format!(
        "# Predicted and measured iterations\n\n`spipe prediction-error --model {} --backend {} --steps {}`, {}, {} cores. \
         Accelerators are emulated: CPU cores with a memory cap and a paced link of {}. Each set of devices was measured for {} \
         with all at work that share no core, then each system ran: the median of {} steps after {WARM_UP} to warm up; the spread is half \
         the distance of the 10th and the 90th percentile over the median. Compute lanes are summed; paced links match by \
         construction. Token by token, an iteration finds one for each of {MICROBATCHES} sequences, by their caches. The share of the \
         busiest lane says how near a run is to the longer of compute and copies: what a pipeline \
         misses is its bubbles.\n\n| system | devices | predicted | measured | spread | error | error of compute lanes | \
         busiest lane | tokens/s |\n|---|---|---|---|---|---|---|---|---|\n",
        what.model,
        report.backend,
        what.steps,
        time::OffsetDateTime::now_utc().date(),
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        what.emulated_link,
        what.time_limit,
        what.steps,
    );
    for row in &report.rows {
        let mut cells = cells(row);
        cells.insert(1, row.devices.clone());
        text += &format!("| {} |\n", cells.join(" | "));
    }
    for failure in &report.failed {
        text += &format!("\nFailed: {failure}\n");
    }
    text
}
