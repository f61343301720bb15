//! `spipe demo`: measures this machine, plans (with the ILP, and greedily for comparison),
//! simulates, trains, and compares. All files go to one folder.

mod files;

use crate::{
    Failure, args,
    args::Format,
    calibration::{self, Request},
    executors, input,
    options::OPTIONS,
    output, report,
    running::{Run, checkpoints::Persistence, data, execute, tokenizer::Encoding},
    tables::table,
};
use files::Files;
use spipe_base::{
    Bytes, BytesPerSecond, Diagnostic,
    readable::{grouped, percent},
};
use spipe_cost::{Mode, Workload};
use spipe_exec::{Backend, Calibration, Data, Executor, Report, Schedule, StepSettings, available};
use spipe_hardware::{Hardware, HardwareFile};
use spipe_model::{Attention, Model, Precision};
use spipe_plan::Plan;
use spipe_planner::Solution;
use spipe_search::{Found, SearchError, cores};
use spipe_sim::Options;
use spipe_timeline::Picture;
use spipe_trace::Trace;
use std::{path::Path, time::Duration};

/// The microbatches of an iteration, of one sequence each: a step of the demo's model takes a
/// second or two on two cores.
const MICROBATCHES: u64 = 8;
/// The memory of the accelerator, as a share of the model's training state: below 1, so that the
/// model does not fit.
const CAP: f64 = 0.6;
/// The bandwidth of an emulated accelerator's link in GB/s, each way.
const LINK_GB: f64 = 2.0;
const CALIBRATION: Duration = Duration::from_secs(18);
const PLANNING: Duration = Duration::from_secs(15);
const LEARNING_RATE: f64 = 1e-3;

/// Runs the demo.
pub fn run(what: &args::Demo, format: Format) -> Result<(), Failure> {
    let folder = Path::new(&what.output);
    let files = Files::open(folder)?;
    let backend = executors::backend(&what.backend)?;
    let model = input::model(&what.model)?;
    let text = data::training_text(what.data.as_deref())?;
    let workload = workload(&model);
    let data = data::byte_tokens(&text, workload.seq_len)?;

    step("1. Measuring this machine");
    let executors = executors(backend);
    let (machine, measured) = measure(what, &model, &workload, &executors)?;
    let hardware = calibration::machine(&machine)?;
    talk(&report::calibration::human(&measured, &ToString::to_string));

    step(&format!(
        "2. {}: {} parameters; training text of {}",
        model.name(),
        grouped(model.parameters()),
        Bytes::new(text.len() as u64)
    ));
    step("3. A machine in which it does not fit on the accelerator");
    talk(&does_not_fit(&model, &hardware));

    step("4. Planning");
    let found = search(&model, &hardware, workload, "ilp")?;
    let greedy = search(&model, &hardware, workload, "greedy");
    let planned = planned(&found, greedy.as_ref());
    talk(&planned);

    step("5. Simulating");
    let program = spipe_search::program(&found.plan)
        .map_err(|failure| Failure::Bug(format!("the plan's program is not well-formed: {failure}")))?;
    let predicted = spipe_sim::simulate(&program, &Options::default()).trace;
    talk(&report::trace::human(&predicted));

    step(&format!("6. Training for {} steps on {}", what.steps, named(&executors)));
    let report = train(what, &found.plan, &program, (&data, &executors))?;
    talk(&losses(&report));

    step("7. Predicted beside measured");
    let comparison = spipe_trace::compare(&predicted, &report.trace);
    talk(&report::comparison::human(&comparison));
    let summary = Summary { found: &found, planned: &planned, predicted: &predicted, report: &report };
    files.write(&hardware, &summary)?;
    step(&format!("Everything is in {}: open {}/timeline.html", what.output, what.output));
    finish(format, &summary)
}

/// The results of the demo, for its files.
struct Summary<'a> {
    found: &'a Found,
    planned: &'a str,
    predicted: &'a Trace,
    report: &'a Report,
}

impl Summary<'_> {
    /// The prediction above the measurement.
    fn picture(&self) -> Picture<'_> {
        Picture { trace: self.predicted, second: Some(&self.report.trace), title: None }
    }
}

fn step(what: &str) {
    output::talk(&format!("\n{what}"));
}

fn talk(what: &str) {
    output::talk(what.trim_end());
}

fn workload(model: &Model) -> Workload {
    Workload {
        mode: Mode::Train,
        seq_len: model.seq_len(),
        microbatch: 1,
        microbatches: MICROBATCHES,
        precision: Precision::Fp32,
        // Burn's attention under autodiff writes its scores to memory.
        attention: Attention::Materialised,
        ..Workload::PLAIN
    }
}

/// The CPU, and a CUDA device if there is one, otherwise an emulated accelerator.
fn executors(backend: Backend) -> Vec<Executor> {
    let cuda = available().into_iter().find(|executor| matches!(executor, Executor::Cuda { .. }));
    let accelerator = cuda.unwrap_or(Executor::Emulated { index: 0, backend, cores: Vec::new() });
    let mut executors = vec![accelerator, Executor::Cpu { index: 0, backend, cores: Vec::new() }];
    spipe_exec::assign_cores(&mut executors, &[]);
    executors
}

fn named(executors: &[Executor]) -> String {
    executors.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

fn measure(
    what: &args::Demo,
    model: &Model,
    workload: &Workload,
    executors: &[Executor],
) -> Result<(HardwareFile, Calibration), Failure> {
    let state: Bytes = Bytes::new(model.parameters() * 16);
    let cap = Bytes::mib((state.as_f64() * CAP / Bytes::mib(1).as_f64()).ceil() as u64);
    calibration::measure(&Request {
        name: "this-machine",
        executors: executors.to_vec(),
        layers: Some((model, workload.batch())),
        tokens: &[],
        budget: CALIBRATION,
        memory: cap,
        link: BytesPerSecond::gb(LINK_GB),
        command: &format!("spipe demo --backend {}", what.backend),
    })
}

fn does_not_fit(model: &Model, hardware: &Hardware) -> String {
    let state = Bytes::new(model.parameters() * 16);
    let accelerator = &hardware.devices().as_slice()[0];
    let capacity = hardware.memories()[accelerator.memory].capacity;
    let kind = if accelerator.emulated {
        "an emulated accelerator: CPU cores with a memory cap and a paced link"
    } else {
        "a GPU with a memory cap"
    };
    format!(
        "Parameters, gradients and optimizer state need {state} before any activation; `{}` has {capacity} ({kind}).",
        accelerator.name
    )
}

fn search(model: &Model, hardware: &Hardware, workload: Workload, planner: &str) -> Result<Found, SearchError> {
    spipe_search::search(&spipe_search::Request {
        systems: spipe_planner::SYSTEMS.to_vec(),
        planner: planner.into(),
        time_limit: PLANNING,
        threads: cores(),
        // Keeps the demo simple: all of a stage is on its device.
        host_help: false,
        drives: true,
        spelling: OPTIONS,
        ..spipe_search::Request::new(model.clone(), hardware.clone(), vec![workload])
    })
}

/// The plan, beside the one of the greedy planner.
fn planned(found: &Found, greedy: Result<&Found, &SearchError>) -> String {
    let mut rows = table(&["planner", "stages", "system", "iteration"], &[3]);
    let mut add = |name: &str, found: &Found| {
        let solution = &found.solution;
        rows.add_row(vec![
            name.to_owned(),
            stages(&found.plan),
            solution.placement.system.to_string(),
            format!("{:.3}", solution.simulated),
        ]);
    };
    add("ilp", found);
    let other = match greedy {
        Ok(greedy) => {
            add("greedy VRAM fill", greedy);
            let more = greedy.solution.simulated.to_ms() / found.solution.simulated.to_ms() - 1.0;
            format!("Greedy VRAM fill takes {} longer.", percent(more))
        }
        Err(failure) => format!("Greedy VRAM fill has no plan: {failure}"),
    };
    let Solution { bound, gap, .. } = &found.solution;
    let proven =
        format!("Lower bound of any plan of these systems: {bound:.3}, {} below the ilp's plan.", percent(*gap));
    format!("{}\n{rows}\n\n{other} {proven}\n", report::stages::human(&found.plan, &[]))
}

fn stages(plan: &Plan) -> String {
    let context = plan.context();
    let named =
        |stage: &spipe_plan::Stage| format!("{} {}", context.hardware.devices()[stage.lead()].name, stage.layers);
    plan.placement().stages.iter().map(named).collect::<Vec<_>>().join(", ")
}

fn train(
    what: &args::Demo,
    plan: &Plan,
    program: &spipe_schedule::Program,
    (data, executors): (&Data, &[Executor]),
) -> Result<Report, Failure> {
    let mut bindings = executors::bindings(plan, &[], Backend::default())?;
    for binding in &mut bindings {
        let device = plan.context().hardware.device(&binding.device);
        if let Some(executor) = device.and_then(|id| executors.get(id.index())) {
            binding.executor = executor.clone();
        }
    }
    let run = Run {
        plan,
        program,
        data,
        encoding: &Encoding::Bytes,
        bindings,
        steps: what.steps,
        seed: what.seed,
        optimizer: StepSettings { lr: LEARNING_RATE, ..StepSettings::default() },
        schedule: Schedule::default(),
        persistence: Persistence::default(),
    };
    let report = execute(&run, Format::Human)?;
    let (first, last) = (report.losses.first(), report.losses.last());
    match (first, last) {
        (Some(first), Some(last)) if report.losses.len() >= 20 && last >= first => Err(Failure::Check(
            Diagnostic::error(format!("the loss did not fall: {first:.4} at first, {last:.4} at last")),
        )),
        _ => Ok(report),
    }
}

fn losses(report: &Report) -> String {
    let losses: Vec<String> = report.losses.iter().map(|loss| format!("{loss:.3}")).collect();
    format!("Loss by step: {}\nLane overhead: {}", losses.join(" "), percent(report.lane_overhead))
}

/// Prints the comparison for programs.
fn finish(format: Format, summary: &Summary<'_>) -> Result<(), Failure> {
    match format {
        Format::Human => Ok(()),
        Format::Json => {
            let comparison = spipe_trace::compare(summary.predicted, &summary.report.trace);
            output::print(&output::to_json(&report::comparison::data(&comparison))?)
        }
    }
}
