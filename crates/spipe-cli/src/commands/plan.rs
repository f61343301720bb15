//! `spipe plan`.

use crate::{
    Failure, args,
    args::{Format, Given, Unknown},
    engines, input, interrupt,
    options::OPTIONS,
    output,
    output::Target,
    planning::{
        bar::Bar,
        task::{self, Task},
    },
    report,
};
use serde::Serialize;
use spipe_base::Diagnostic;
use spipe_hardware::Hardware;
use spipe_plan::{Knob, Mesh, OutcomeStatus, Placement, Plan, System};
use spipe_search::{
    Chosen, DriveFor, Found, Meshes, PLANNER, Request, SearchError, Watch, cores,
    questions::{self, Largest, Question},
    search, workloads,
};
use std::{sync::Arc, time::Duration};

/// Finds a plan, prints and writes it, or reports why there is none.
pub fn run(what: &args::Plan, given: &Given, format: Format) -> Result<(), Failure> {
    let done = plan(what, given, format);
    if let (Err(Failure::Infeasible(diagnostic)), Format::Json) = (&done, format) {
        output::print(&output::to_json(&Refused {
            format_version: 1,
            status: OutcomeStatus::Infeasible,
            reason: &diagnostic.message,
            hint: diagnostic.hint.as_deref(),
        })?)?;
    }
    done
}

fn plan(what: &args::Plan, given: &Given, format: Format) -> Result<(), Failure> {
    let (time_limit, stop) = (input::limit(what.time_limit)?, interrupt::flag());
    let threads = threads(what)?;
    let inputs: Vec<&str> = what.model.as_deref().into_iter().chain(what.hardware.as_deref()).collect();
    let target = what.output.as_deref().map(|path| Target::beside(path, &inputs)).transpose()?;
    let plot = what.plot.as_deref().map(report::fill::Plot::open).transpose()?;
    let task = Task::new(what)?;
    let Chosen { pinned, systems, .. } = task::conditions(what, &task)?;
    let machine = task.machine(what)?;
    task::idle(what, given, (&task, &systems))?;
    let question = Question {
        model: Arc::new(task.model),
        machine,
        template: task.template,
        global_batch: task.global_batch,
        microbatch: pinned.microbatch,
        systems,
        pins: pinned.pins,
        time_limit,
        spelling: OPTIONS,
    };
    let solved = what.solve_for.map(|unknown| solved(&question, unknown)).transpose()?;
    let bar = Bar::start(what.effort.is_none().then_some(time_limit));
    let watch = Arc::new(Watch::start(Some(Box::new(bar.clone()))));
    let request = Request {
        watch: Some(Arc::clone(&watch)),
        threads,
        stop,
        ..request(what, (question, solved.as_ref()), task.start)?
    };
    let found = search(&request);
    bar.end();
    let mut found = found.map_err(|error| with_group(error, &request))?;
    // The least memory is sought without teams.
    let on_mesh = !found.plan.context().mesh().is_single();
    let least = if on_mesh { Vec::new() } else { questions::least(&request, &found, watch.elapsed()) };
    if what.sensitivity {
        found = questions::with_gains(&request, found)?;
    }
    talk_about(&found.plan);
    if let Some(plot) = plot {
        plot.write(&found.plan)?;
    }
    let json = found.plan.to_json();
    let to_stdout = matches!(target, Some(Target::Stdout));
    if let Some(target) = target {
        target.write(json.as_bytes())?;
    }
    match (format, what.solve_for.zip(solved.as_ref())) {
        _ if to_stdout => Ok(()),
        (Format::Json, Some((unknown, solved))) => output::print(&answer(unknown, solved, &found)?),
        (Format::Json, None) => {
            let path = what.output.as_deref().unwrap_or(report::plan::UNWRITTEN);
            let engines = engines::commands(&found.plan, path);
            output::print(&questions::recorded(&found, &watch, (&least, engines)).to_json())
        }
        (Format::Human, solved) => {
            if let Some((unknown, solved)) = solved {
                output::print(&sentence(unknown, solved))?;
            }
            let front = front(&found, time_limit);
            output::print(&questions::sentence(&request, &found.plan))?;
            output::print(&report::plan::human(&found, (&front, &least), what.output.as_deref()))
        }
    }
}

/// The search for a plan of a question, or of its answer.
fn request(
    what: &args::Plan,
    (question, solved): (Question, Option<&Largest>),
    start: Option<Placement>,
) -> Result<Request, Failure> {
    let Question { model, machine, template, global_batch, microbatch, systems, pins, time_limit, spelling } = question;
    let (model, template, global_batch, microbatch) = match solved {
        Some(found) => (Arc::clone(&found.model), found.template, found.global_batch, found.microbatch.clone()),
        None => (model, template, global_batch, microbatch),
    };
    let workloads = match &start {
        Some(_) if microbatch == "auto" => vec![template],
        _ => workloads(template, global_batch, &microbatch)?,
    };
    let inputs = (model.as_ref(), machine.hardware().as_ref());
    let drive_for = drives(what, machine.hardware())?;
    // Conditions are those of devices without teams, and so is the plan that is the largest.
    let is_open = solved.is_none() && pins.is_empty() && drive_for.is_none() && what.planner == PLANNER;
    let degrees = what.mesh.degrees();
    if let (Some(group), Some(devices)) = (pins.knob(Knob::Group), degrees.pipeline)
        && group < devices
    {
        return Err(Failure::Arguments(small_group(group, devices).into()));
    }
    let chosen = match &start {
        Some(start) if degrees.is_none() => Meshes { all: vec![start.mesh_of_teams()], ..Meshes::single(systems) },
        None if degrees.is_none() && is_open => Meshes::open(inputs, &workloads, systems),
        _ => degrees.chosen(inputs, &workloads, (&systems, spelling))?,
    };
    chosen.check_drives(drive_for, spelling)?;
    let Meshes { all: meshes, systems, all_teams } = chosen;
    Ok(Request {
        systems,
        meshes,
        all_teams,
        planner: what.planner.clone(),
        time_limit,
        effort: what.effort.map(Into::into),
        gap: input::fraction(&what.gap)?,
        pins,
        start,
        hint: !what.no_hint,
        drive_for,
        drives: true,
        spelling,
        ..Request::new(model, machine, workloads)
    })
}

/// The fault of groups with fewer microbatches than a pipeline has devices.
fn small_group(group: u64, devices: u64) -> Diagnostic {
    let fault = Diagnostic::error(format!("groups of {group} microbatches leave some of {devices} GPUs without one"));
    fault.hint(format!("use `--group {devices}` or more, or `--pipeline-parallel {group}`"))
}

/// The refusal of a search whose groups are smaller than the number of GPUs: pipelines of all GPUs are no plans.
fn with_group(error: SearchError, request: &Request) -> SearchError {
    let longest = |mesh: &Mesh| mesh.leads().count() as u64;
    let gpus = request.machine.hardware().gpus().count() as u64;
    let devices = request.meshes.iter().map(|mesh| if mesh.is_single() { gpus } else { longest(mesh) }).max();
    match (error, request.pins.knob(Knob::Group).zip(devices)) {
        (SearchError::Infeasible(_), Some((group, devices))) if group < devices => {
            SearchError::Infeasible(small_group(group, devices))
        }
        (error, _) => error,
    }
}

/// The drives that options name.
fn drives(what: &args::Plan, hardware: &Hardware) -> Result<DriveFor, Failure> {
    let named = |name: &Option<String>| name.as_deref().map(|name| DriveFor::named(hardware, name)).transpose();
    Ok(DriveFor {
        parameters: named(&what.parameters_on)?,
        state: named(&what.state_on)?,
        activations: named(&what.activations_on)?,
    })
}

/// The number of threads: at most one for each core.
fn threads(what: &args::Plan) -> Result<usize, Failure> {
    if what.threads == Some(0) {
        return Err(Failure::argument("`--threads` is zero", "use at least one, or leave it out"));
    }
    Ok(what.threads.map_or_else(cores, |threads| threads.min(cores())))
}

/// Says on stderr what a reader of a plan should know.
fn talk_about(plan: &Plan) {
    let context = plan.context();
    let remarks = [
        spipe_plan::precision_remark(&context, plan.placement()),
        spipe_plan::contrast_remark(&context),
        spipe_plan::estimate_remark(&context),
        spipe_plan::prompt_remark(plan),
    ];
    let full = spipe_plan::fullness_remarks(plan);
    output::warn(remarks.iter().flatten().chain(&full));
}

/// The part of the time limit that the Pareto front may take in addition.
const PART_OF_FRONT: u32 = 4;

/// The cost of less memory, of a plan of Superpipeline on one GPU that uses no drive.
fn front(found: &Found, time_limit: Duration) -> String {
    if !questions::trades_memory(&found.plan) {
        return String::new();
    }
    let front = questions::front(&found.plan, time_limit / PART_OF_FRONT);
    report::pareto::human(front.as_ref(), found.plan.context().model.layers().len())
}

/// The largest value that fits, or the refusal if none does.
fn solved(question: &Question, unknown: Unknown) -> Result<Largest, Failure> {
    let found = questions::largest(question, unknown.into())?;
    if found.value.is_some() {
        return Ok(found);
    }
    let diagnostic = Diagnostic::error(format!("no plan fits, whatever the {}", word(unknown)));
    Err(Failure::Infeasible(diagnostic.hint("use a smaller model, or a machine with more memory")))
}

const fn word(unknown: Unknown) -> &'static str {
    match unknown {
        Unknown::Microbatch => "microbatch",
        Unknown::SeqLen => "sequence length",
        Unknown::Layers => "number of layers",
        Unknown::GlobalBatch => "global batch",
        Unknown::Rank => "rank",
    }
}

fn sentence(unknown: Unknown, solved: &Largest) -> String {
    let value = solved.value.unwrap_or_default();
    let more = match (solved.unlimited, solved.proven) {
        (true, _) => "; larger values were not tried",
        (false, true) => "",
        (false, false) => "; no plan was found for the next value, and it is not proven that there is none",
    };
    format!("The largest {} for which a plan fits: {value}{more}.\n\n", word(unknown))
}

fn answer(unknown: Unknown, solved: &Largest, found: &Found) -> Result<String, Failure> {
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Answer {
        format_version: u32,
        solve_for: Unknown,
        value: Option<u64>,
        unlimited: bool,
        proven: bool,
        status: OutcomeStatus,
        system: System,
        simulated_iteration_ms: f64,
    }
    output::to_json(&Answer {
        format_version: 1,
        solve_for: unknown,
        value: solved.value,
        unlimited: solved.unlimited,
        proven: solved.proven,
        status: found.solution.status,
        system: found.solution.placement.system,
        simulated_iteration_ms: found.solution.simulated.to_ms(),
    })
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Refused<'a> {
    format_version: u32,
    status: OutcomeStatus,
    reason: &'a str,
    hint: Option<&'a str>,
}
