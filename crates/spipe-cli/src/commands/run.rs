//! `spipe run`.

use crate::{
    Failure, args,
    args::{Format, Given},
    engines, executors,
    idle::Idle,
    input, output,
    output::Target,
    report,
    report::lateness::{Verdict, verdict},
    running::{Run, checkpoints::Persistence, data, execute, tokenizer::Encoding},
};
use spipe_cost::Mode;
use spipe_exec::{Binding, Executor, Schedule, StepSettings};
use spipe_hardware::Runtime;
use spipe_trace::Trace;

/// The options of training.
const OF_TRAINING: [&str; 11] = [
    "learning-rate",
    "warmup-steps",
    "decay",
    "weight-decay",
    "checkpoint-dir",
    "checkpoint-every",
    "resume",
    "save-weights",
    "drive",
    "adapter",
    "save-adapter",
];

/// Runs the plan, prints the losses, writes the measured trace.
pub fn run(what: &args::Run, given: &Given, format: Format) -> Result<(), Failure> {
    let read = [Some(&what.plan), Some(&what.data), what.tokenizer.as_ref(), what.weights.as_ref()];
    let read: Vec<&str> = read.into_iter().flatten().map(String::as_str).collect();
    let open = |path: &str| Target::beside(path, &read);
    let target = what.output.as_deref().map(open).transpose()?;
    let found = what.save_outputs.as_deref().map(open).transpose()?;
    if target.is_some() && what.output == what.save_outputs {
        return Err(Failure::argument(
            "`--output` and `--save-outputs` are one file",
            "name another file for one of them",
        ));
    }
    let backend = executors::backend(&what.backend)?;
    let plan = input::plan(&what.plan)?;
    let trains = plan.context().workload().mode == Mode::Train;
    Idle::among(given)
        .options_if(!trains, &OF_TRAINING, "in inference", "leave it out, or plan with `--mode train`")
        .options_if(trains, &["save-outputs"], "in training", "leave it out, or plan with `--mode infer`")
        .refuse()?;
    let encoding = Encoding::new(what.tokenizer.as_deref())?;
    let data = data::read(&what.data, &encoding, plan.context().model, &plan.context().cost.whole_workload())?;
    let program = spipe_search::whole_program(&plan)?;
    let run = Run {
        plan: &plan,
        program: &program,
        data: &data,
        encoding: &encoding,
        bindings: executors::bindings(&plan, &what.bindings, backend)?,
        steps: what.steps,
        seed: what.seed,
        optimizer: StepSettings { lr: what.learning_rate, weight_decay: what.weight_decay },
        schedule: Schedule { warmup_steps: what.warmup_steps, decay: what.decay.into() },
        persistence: Persistence::new(what)?,
    };
    if run.is_done() {
        return run.conclude(format);
    }
    let report = execute(&run, format)?;
    // The losses are printed first, in case a file cannot be written.
    if format == Format::Human {
        output::print(&report::run::human(&report, &encoding))?;
    }
    if trains && run.bindings.iter().any(|binding| is_gpu(&run, binding)) {
        tell_lateness(&run, &report.trace, &what.plan);
    }
    if let Some((target, outputs)) = found.zip(report.outputs.as_ref()) {
        let bytes = outputs.to_safetensors().map_err(|error| Failure::Bug(error.to_string()))?;
        target.write(&bytes)?;
    }
    if let Some(target) = target {
        target.write(spipe_trace::to_json(&report.trace).as_bytes())?;
        tracing::info!("the trace is written");
    }
    Ok(())
}

/// Whether a device that computes is a real GPU.
fn is_gpu(run: &Run<'_>, binding: &Binding) -> bool {
    let device = run.plan.context().hardware.device(&binding.device);
    let computes = run.plan.placement().stages.iter().any(|stage| Some(stage.lead()) == device);
    computes && matches!(binding.executor, Executor::Cuda { .. } | Executor::Wgpu { .. })
}

/// Says how far a run was from what the constants of its own runtime predict, and where it was late. The plan may
/// have been predicted with those of another engine.
fn tell_lateness(run: &Run<'_>, measured: &Trace, path: &str) {
    let own = run.plan.under(Runtime::default()).ok();
    let program = own.and_then(|plan| spipe_search::whole_program(&plan).ok());
    let program = program.as_ref().unwrap_or(run.program);
    let predicted = spipe_sim::simulate(program, &spipe_sim::Options::default()).trace;
    let commands = engines::commands(run.plan, path);
    let export = commands.iter().find(|found| found.engine != engines::RUN);
    match verdict(&predicted, measured, export.map(|found| found.command.as_str())) {
        Some(Verdict::Near(said)) => output::talk(&said),
        Some(Verdict::Late(warning)) => output::warn(&[warning]),
        None => {}
    }
}
