//! The engines that run a plan: this program's executor, and those that plans are exported to.
//!
//! Whether an engine runs a plan is decided by its own checks, never by the name of a system.

use spipe_export::{Engine, Modules};
use spipe_plan::{EngineCommand, Plan, uses_drives};
use spipe_schedule::Program;

/// The executor of `spipe run` among the engines.
pub const RUN: &str = "run";

/// The names of the engines that run a plan, whose program was lowered from it.
pub fn names(plan: &Plan, program: &Program) -> Vec<String> {
    let executed = spipe_exec::check_plan(plan, program).is_ok().then(|| RUN.to_owned());
    executed.into_iter().chain(exports(plan).map(|(engine, _)| engine.name().to_owned())).collect()
}

/// The engines that run a plan, with the commands for its file.
pub fn commands(plan: &Plan, path: &str) -> Vec<EngineCommand> {
    let program = spipe_search::program(plan).ok();
    let drives = uses_drives(&plan.context(), plan.placement());
    let executed = program.is_some_and(|program| spipe_exec::check_plan(plan, &program).is_ok());
    let run = executed.then(|| EngineCommand {
        engine: RUN.into(),
        command: format!("spipe run {path} --data TEXT --steps 10{}", if drives { " --drive NAME=FOLDER" } else { "" }),
        // Its systems were measured on one: reports/gpu.
        tested_on_gpu: true,
    });
    let exported = exports(plan).map(|(engine, modules)| EngineCommand {
        engine: engine.name().into(),
        command: format!(
            "spipe export {} {path} -o FOLDER{}{}",
            engine.name(),
            if modules == Modules::Transformers { " --modules transformers --config CONFIG" } else { "" },
            if drives && engine == Engine::Deepspeed { " --nvme PATH" } else { "" }
        ),
        tested_on_gpu: engine.tested_on_gpu(),
    });
    run.into_iter().chain(exported).collect()
}

/// The engines to which a plan can be exported, with the shortest classes of layers that do.
fn exports(plan: &Plan) -> impl Iterator<Item = (Engine, Modules)> {
    let modules = |engine: Engine| {
        let takes = |modules: &Modules| engine.check(plan, *modules).is_ok();
        [Modules::Own, Modules::Transformers].into_iter().find(takes)
    };
    Engine::ALL.into_iter().filter_map(move |engine| Some((engine, modules(engine)?)))
}

/// The engines of a plan in a sentence, and the runtime whose constants predicted it; marked where these are an
/// estimate.
pub fn sentence(plan: &Plan, path: &str) -> String {
    let context = plan.context();
    let on_gpus = context.hardware.devices().iter().any(|device| device.is_gpu() && !device.emulated);
    let commands = commands(plan, path);
    let word = |found: &EngineCommand| {
        let untested = if on_gpus && !found.tested_on_gpu { " (untested on a GPU)" } else { "" };
        format!("`{}`{untested}", found.command)
    };
    let engines = match commands.as_slice() {
        [] => "No engine runs this plan: it is planned and simulated only.".to_owned(),
        found => format!("Run by {}.", found.iter().map(word).collect::<Vec<_>>().join(", ")),
    };
    let (runtime, system) = (context.hardware.runtime().name(), plan.placement().system);
    let estimate = if plan.is_estimate() {
        format!(", an estimate: runs of `{system}` were not measured under it")
    } else {
        String::new()
    };
    format!("{engines} Predicted with the constants of the runtime `{runtime}`{estimate}.\n")
}
