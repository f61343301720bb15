//! `spipe plan`.

use crate::{
    Failure, args,
    args::{Format, Given, Unknown},
    input, interrupt, output,
    output::Target,
    planning::{
        self, DriveFor, Found, Least, Request, Watch, pareto, sensitivity,
        solve_for::{self, Largest, Question},
        task::Task,
    },
    report,
};
use serde::Serialize;
use spipe_base::{Diagnostic, MemoryId};
use spipe_hardware::{Hardware, MemoryKind};
use spipe_plan::{OutcomeStatus, Plan, System, uses_drives};
use std::time::Duration;

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
    let (pinned, systems) = planning::layout::conditions(what, &task)?;
    let task = task.under(what, &systems)?;
    planning::task::idle(what, given, (&task, &systems))?;
    let question = Question {
        model: &task.model,
        hardware: &task.hardware,
        template: task.template,
        global_batch: task.global_batch,
        microbatch: &pinned.microbatch,
        systems: &systems,
        pins: &pinned.pins,
        time_limit,
    };
    let solved = what.solve_for.map(|unknown| solved(&question, unknown)).transpose()?;
    let (model, template, global_batch, microbatch) = match &solved {
        Some(found) => (&found.model, found.template, found.global_batch, found.microbatch.as_str()),
        None => (&task.model, task.template, task.global_batch, pinned.microbatch.as_str()),
    };
    let watch = Watch::start(what.effort.is_none().then_some(time_limit));
    let request = Request {
        model,
        hardware: &task.hardware,
        workloads: match &task.start {
            Some(_) if microbatch == "auto" => vec![template],
            _ => planning::workloads(template, global_batch, microbatch)?,
        },
        systems: systems.clone(),
        planner: &what.planner,
        time_limit,
        effort: what.effort.map(Into::into),
        watch: Some(&watch),
        gap: input::fraction(&what.gap)?,
        threads,
        stop: &stop,
        pins: pinned.pins.clone(),
        start: task.start.clone(),
        host_help: true,
        hint: !what.no_hint,
        drive_for: drives(what, &task.hardware)?,
        drives: true,
        on_drives: None,
    };
    let found = planning::search(&request);
    watch.end();
    let mut found = found?;
    let least = least(&request, &found, &watch);
    if what.sensitivity {
        found = sensitivity::with_gains(&request, found)?;
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
        (Format::Json, None) => output::print(&found.recorded(&watch, &least).to_json()),
        (Format::Human, solved) => {
            if let Some((unknown, solved)) = solved {
                output::print(&sentence(unknown, solved))?;
            }
            let front = front(&found, time_limit);
            output::print(&planning::offload::sentence(&request, &found.plan))?;
            output::print(&report::plan::human(&found, (&front, &least), what.output.as_deref()))
        }
    }
}

/// The drives that options name.
fn drives(what: &args::Plan, hardware: &Hardware) -> Result<DriveFor, Failure> {
    let named = |name: &Option<String>| name.as_deref().map(|name| drive(hardware, name)).transpose();
    Ok(DriveFor {
        parameters: named(&what.parameters_on)?,
        state: named(&what.state_on)?,
        activations: named(&what.activations_on)?,
    })
}

/// The drive of this name.
fn drive(hardware: &Hardware, name: &str) -> Result<MemoryId, Failure> {
    let is_drive = |id: &MemoryId| hardware.memories()[*id].kind == MemoryKind::Nvme;
    hardware.memory(name).filter(is_drive).ok_or_else(|| {
        let all = hardware.memories().iter().filter(|memory| memory.kind == MemoryKind::Nvme);
        let names: Vec<&str> = all.map(|memory| memory.name.as_str()).collect();
        let hint = match names.as_slice() {
            [] => "it has none: add `[[nvme]]` and its link to the hardware file".to_owned(),
            names => format!("its drives are {}", names.join(", ")),
        };
        Failure::argument(format!("`{}` has no drive `{name}`", hardware.name()), hint)
    })
}

/// The number of threads: at most one for each core.
fn threads(what: &args::Plan) -> Result<usize, Failure> {
    if what.threads == Some(0) {
        return Err(Failure::argument("`--threads` is zero", "use at least one, or leave it out"));
    }
    Ok(what.threads.map_or_else(planning::cores, |threads| threads.min(planning::cores())))
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
    for remark in remarks.into_iter().flatten().chain(spipe_plan::fullness_remarks(plan)) {
        output::talk(&remark.to_string());
    }
}

/// The least memory for some plan, in the time that the search has left, or a tenth of a second
/// where it counts steps. It is not sought for given stages, and unknown where drives help out.
fn least(request: &Request<'_>, found: &Found, watch: &Watch) -> Vec<Least> {
    if request.pins.given_stages().is_some() {
        return Vec::new();
    }
    let left = request.time_limit.saturating_sub(watch.elapsed());
    let limit = if request.effort.is_some() { LEAST_BY_STEPS } else { left.min(MOST_FOR_LEAST) };
    let memories: Vec<_> = found.plan.peaks().into_iter().collect();
    if uses_drives(&found.plan.context(), found.plan.placement()) {
        let unknown = |(memory, _)| Least { memory, capacity: None, iteration: None };
        return memories.into_iter().map(unknown).collect();
    }
    planning::least(request, &memories, limit)
}

/// The most time for the least memory: where it is not known by then, proofs that nothing fits take
/// long.
const MOST_FOR_LEAST: Duration = Duration::from_secs(1);

/// The same where the search counts steps and is to end at once.
const LEAST_BY_STEPS: Duration = Duration::from_millis(100);

/// The part of the time limit that the Pareto front may take in addition.
const PART_OF_FRONT: u32 = 4;

/// The cost of less memory, of a plan of Superpipeline on one GPU that uses no drive.
fn front(found: &Found, time_limit: Duration) -> String {
    let placement = found.plan.placement();
    let applies = placement.system == System::Superpipeline && placement.devices().len() == 1;
    if !applies || uses_drives(&found.plan.context(), placement) {
        return String::new();
    }
    let front = pareto::front(&found.plan, time_limit / PART_OF_FRONT);
    report::pareto::human(front.as_ref(), found.plan.context().model.layers().len())
}

/// The largest value that fits, or the refusal if none does.
fn solved(question: &Question<'_>, unknown: Unknown) -> Result<Largest, Failure> {
    let found = solve_for::largest(question, unknown)?;
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
