//! Measured runs: the options that they state, read by the parsers of `spipe plan` and `spipe
//! baseline`, and planned as these commands plan.

use super::{
    baseline,
    task::{self, Task},
};
use crate::{
    Failure, args,
    args::{Args, Given},
    idle::Idle,
    input,
    options::OPTIONS,
};
use clap::FromArgMatches;
use spipe_base::Diagnostic;
use spipe_fit::{Command, Field, Refusal, Run, Runs, Stated, TensorData, Work};
use spipe_hardware::{Hardware, Runtime};
use spipe_model::Model;
use spipe_search::{Chosen, Meshes, Request, compare::tensor_data, search, workloads};
use std::time::Duration;

/// The time to search the plan of a run that gives no limit: its pins should leave little to search.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Reads model and machine of a run by name or path.
pub struct Reader<'a> {
    pub model: &'a dyn Fn(&str) -> Result<Model, Failure>,
    pub hardware: &'a dyn Fn(Option<&str>) -> Result<Hardware, Failure>,
    pub runtime: &'a dyn Fn(&str) -> Result<Runtime, Failure>,
}

/// The parts that a run names: model, machine, and runtime if it names one.
type On = (Model, Hardware, Option<Runtime>);

/// The work of a run.
pub fn prepare(run: &Stated, reader: &Reader<'_>) -> Result<Work, Refusal> {
    let model = (reader.model)(&run.model).map_err(|failure| refusal(Field::Model, failure))?;
    let hardware = (reader.hardware)(run.hardware.as_deref()).map_err(|failure| refusal(Field::Hardware, failure))?;
    let runtime = run.runtime.as_deref().map(reader.runtime).transpose();
    let runtime = runtime.map_err(|failure| refusal(Field::Runtime, failure))?;
    let work = match &run.command {
        Command::Plan(options) => planned(options, run, (model, hardware, runtime)),
        Command::TensorData(options) => shared(options, run, (model, hardware, runtime)),
        Command::Unplanned => {
            let reason = run.not_counted.clone().unwrap_or_default();
            return Err(Refusal::CannotHold(reason));
        }
    };
    work.map_err(|failure| refusal(Field::Command, failure))
}

fn refusal(field: Field, failure: Failure) -> Refusal {
    match failure {
        Failure::Input(faults) | Failure::Arguments(faults) => Refusal::Fault(field, faults),
        Failure::Infeasible(diagnostic) | Failure::Check(diagnostic) => Refusal::CannotHold(diagnostic.message),
        other => Refusal::Fault(field, Diagnostic::error(other.to_string()).into()),
    }
}

/// The options of a command, parsed with the model and the machine that the run names.
fn parsed(command: &[&str], options: &[String], run: &Stated) -> Result<(args::Command, Given), Failure> {
    let named = ["--model", &run.model, "--hardware", run.hardware.as_deref().unwrap_or("given")];
    let words = ["spipe"].iter().chain(command).chain(&named).map(ToString::to_string).chain(options.iter().cloned());
    let refused = |error: clap::Error| {
        let text = error.to_string();
        let message = text.lines().next().unwrap_or_default();
        let message = message.strip_prefix("error: ").unwrap_or(message).to_owned();
        Failure::argument(message, format!("`spipe {} --help` prints the options", command.join(" ")))
    };
    let matches = args::command().try_get_matches_from(words).map_err(refused)?;
    let args = Args::from_arg_matches(&matches).map_err(refused)?;
    Ok((args.command, Given::of(&matches)))
}

fn planned(options: &[String], run: &Stated, (model, hardware, runtime): On) -> Result<Work, Failure> {
    let (args::Command::Plan(what), given) = parsed(&["plan"], options, run)? else {
        return Err(Failure::Bug("options of `spipe plan` are parsed as another command".into()));
    };
    Idle::among(&given)
        .options_if(runtime.is_some(), &["runtime"], "beside the run's own", "leave one of them out")
        .options(&["solve-for", "sensitivity", "output", "threads"], "in a measured run", "leave it out")
        .refuse()?;
    let task = Task::on(&what, model, hardware)?;
    let Chosen { pinned, systems, .. } = task::conditions(&what, &task)?;
    let machine = task.unfitted(&what, runtime)?;
    task::idle(&what, &given, (&task, &systems))?;
    let workloads = workloads(task.template, task.global_batch, &pinned.microbatch)?;
    let inputs = (&task.model, machine.hardware().as_ref());
    let Meshes { all: meshes, systems, all_teams } =
        what.mesh.degrees().chosen(inputs, &workloads, (&systems, OPTIONS))?;
    let found = search(&Request {
        systems,
        meshes,
        all_teams,
        planner: what.planner,
        time_limit: if given.has("time-limit") { input::limit(what.time_limit)? } else { TIME_LIMIT },
        gap: input::fraction(&what.gap)?,
        pins: pinned.pins,
        effort: what.effort.map(Into::into),
        spelling: OPTIONS,
        ..Request::new(task.model, machine, workloads)
    })?;
    Ok(Work::Planned(Box::new(found.plan)))
}

/// The options of `spipe baseline` that the closed form of tensor and data parallelism does not know.
const BEYOND: [&str; 8] = [
    "sequence-parallel",
    "pipeline-parallel",
    "context-parallel",
    "expert-parallel",
    "sharding",
    "nodes",
    "network",
    "output",
];

fn shared(options: &[String], run: &Stated, (model, hardware, runtime): On) -> Result<Work, Failure> {
    let (args::Command::Baseline(args::Baseline::TensorData(what)), given) =
        parsed(&["baseline", "tensor-data"], options, run)?
    else {
        return Err(Failure::Bug("options of `spipe baseline` are parsed as another command".into()));
    };
    Idle::among(&given)
        .options_if(runtime.is_some(), &["runtime"], "beside the run's own", "leave one of them out")
        .options(
            &BEYOND,
            "to the closed form of measured runs",
            "give `options` of `spipe plan`, such as `--system 1f1b`",
        )
        .refuse()?;
    let runtime = match runtime {
        Some(runtime) => runtime,
        None => baseline::runtime(&what, &hardware)?,
    };
    let model = what.training.adapt(model, false)?;
    let hardware = input::part(hardware, &args::Devices::names(&what.devices))?.under(runtime);
    let degrees = what.mesh.degrees();
    let degrees =
        tensor_data::Degrees { tensor: degrees.tensor, data: degrees.data, recompute: what.recompute.map(Into::into) };
    let sizes = baseline::sizes(&what, &model)?;
    let (priced, refused) = tensor_data::priced(degrees, (&model, &hardware), &sizes)?;
    let Some(best) = tensor_data::best(&priced) else {
        let reason =
            refused.map_or_else(|| "no two degrees multiply to the number of GPUs".into(), |error| error.to_string());
        return Err(Failure::argument(reason, "give other degrees, or another batch"));
    };
    let best = &priced[best];
    // The run was measured: what its runtime may lose does not count against it.
    let gpus = hardware.devices().iter().filter(|device| device.is_gpu());
    let capacity = gpus.map(|gpu| hardware.memories()[gpu.memory].capacity).min().unwrap_or_default();
    if best.cost.memory > capacity {
        let message = format!("each GPU needs at least {} and has {capacity}", best.cost.memory);
        return Err(Failure::Infeasible(Diagnostic::error(message)));
    }
    let (workload, spread) = (best.workload, best.spread);
    Ok(Work::TensorData(Box::new(TensorData { model, hardware, workload, spread })))
}

/// The name of the runtime of all runs.
pub fn only_runtime(runs: &Runs, ready: &[Run]) -> Result<String, Failure> {
    let name = |run: &Run| run.work.hardware().runtime().name().to_owned();
    let Some(first) = ready.first().map(name) else {
        let diagnostic = Diagnostic::error("no machine can hold its run").hint("use machines with more memory");
        return Err(Failure::input(diagnostic));
    };
    match ready.iter().find(|run| name(run) != first) {
        None => Ok(first),
        Some(other) => {
            let message = format!("its runtime is `{}`, and that of the first run is `{first}`", name(other));
            let fault = Diagnostic::error(message).hint("write a file of runs for each runtime");
            Err(Failure::input(runs.fault(&other.stated, Field::Runtime, &fault)))
        }
    }
}
