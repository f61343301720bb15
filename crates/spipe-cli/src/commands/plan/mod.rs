//! `spipe plan`.

mod pareto;
mod stages;

pub use stages::describe;

use crate::{
    Failure, args,
    args::Format,
    input, output,
    output::Target,
    pinning,
    planning::{self, Found, Request},
    sensitivity,
    solving::{self, Largest, Question, Unknown},
    tables::{per_second, percent, table},
};
use serde::Serialize;
use spipe_base::{Diagnostic, SimTime};
use spipe_cost::{Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model};
use spipe_plan::{OutcomeStatus, Placement, System};
use spipe_planner::{LARGEST_HEAD_START, Solution};
use std::{collections::BTreeSet, time::Duration};

/// Searches, prints, and writes the plan, or prints why there is none.
pub fn run(what: &args::Plan, format: Format) -> Result<(), Failure> {
    let done = plan(what, format);
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

fn plan(what: &args::Plan, format: Format) -> Result<(), Failure> {
    let time_limit = input::limit(what.time_limit)?;
    if what.threads == Some(0) {
        return Err(Failure::argument("there are no threads to search with", "use at least one, or leave it out"));
    }
    let threads = what.threads.map_or_else(cores, |threads| threads.min(cores()));
    let inputs: Vec<&str> = what.model.as_deref().into_iter().chain(what.hardware.as_deref()).collect();
    let target = what.output.as_deref().map(|path| Target::beside(path, &inputs)).transpose()?;
    let task = Task::new(what)?;
    let whose = (&task.model, &task.hardware, task.template.mode);
    let pinned = pinning::read(&what.pin, (&what.system, &what.microbatch), whose)?;
    let systems = systems(&pinned.system)?;
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
        gap: input::fraction(&what.gap)?,
        threads,
        pins: pinned.pins.clone(),
        start: task.start.clone(),
        host_help: true,
    };
    let mut found = planning::search(&request)?;
    if what.sensitivity {
        found = sensitivity::with_gains(&request, found)?;
    }
    let (context, placement) = (found.plan.context(), found.plan.placement());
    let remarks =
        [spipe_plan::widened(&context, placement), spipe_plan::divided(&context), spipe_plan::unread(&found.plan)];
    for remark in remarks.into_iter().flatten() {
        output::talk(&remark.to_string());
    }
    let json = found.plan.to_json();
    let to_stdout = matches!(target, Some(Target::Stdout));
    if let Some(target) = target {
        target.write(json.as_bytes())?;
    }
    match (format, what.solve_for.zip(solved.as_ref())) {
        _ if to_stdout => Ok(()),
        (Format::Json, Some((unknown, solved))) => output::print(&answer(unknown, solved, &found)?),
        (Format::Json, None) => output::print(&json),
        (Format::Human, solved) => {
            if let Some((unknown, solved)) = solved {
                output::print(&sentence(unknown, solved))?;
            }
            output::print(&human(&found, what.output.as_deref(), time_limit))
        }
    }
}

/// What is to be planned.
struct Task {
    model: Model,
    hardware: Hardware,
    template: Workload,
    global_batch: u64,
    /// The plan to improve.
    start: Option<Placement>,
}

impl Task {
    fn new(what: &args::Plan) -> Result<Self, Failure> {
        if let Some(path) = &what.improve {
            let plan = input::plan(path)?;
            let context = plan.context();
            return Ok(Self {
                model: context.model.clone(),
                hardware: context.hardware.clone(),
                template: *context.workload(),
                global_batch: context.workload().global_batch(),
                start: Some(plan.placement().clone()),
            });
        }
        let given = |value: &Option<String>| value.clone().unwrap_or_default();
        let model = frozen(input::model(&given(&what.model))?, &what.freeze)?;
        let hardware = input::hardware(&given(&what.hardware))?;
        let mode = input::mode(&model, what.mode)?;
        if what.clip_norm.is_some() && mode != Mode::Train {
            return Err(Failure::argument("`--clip-norm` is about gradients, and nothing is trained", "leave it out"));
        }
        let template = Workload {
            mode,
            seq_len: input::seq_len(&model, what.seq_len)?,
            microbatch: 1,
            microbatches: 1,
            precision: what.precision,
            optimizer: what.optimizer,
            attention: if what.materialised_attention { Attention::Materialised } else { Attention::Fused },
            clip_norm: what.clip_norm,
        };
        Ok(Self { model, hardware, template, global_batch: what.global_batch.unwrap_or(0), start: None })
    }
}

/// The largest value that fits, or that none does.
fn solved(question: &Question<'_>, unknown: Unknown) -> Result<Largest, Failure> {
    let found = solving::largest(question, unknown)?;
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
    }
}

fn sentence(unknown: Unknown, solved: &Largest) -> String {
    let value = solved.value.unwrap_or_default();
    let more = match (solved.unlimited, solved.proven) {
        (true, _) => "; larger ones were not looked at",
        (false, true) => "",
        (false, false) => "; none was found for the next, which is no proof that there is none",
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

/// `model` with more layers frozen.
fn frozen(model: Model, more: &[String]) -> Result<Model, Failure> {
    if more.is_empty() {
        return Ok(model);
    }
    let mut ranges = model.frozen();
    for text in more {
        let range = model.layer_range(text).ok_or_else(|| {
            let last = model.layers().len().saturating_sub(1);
            Failure::argument(
                format!("`{text}` names no layers of `{}`", model.name()),
                format!("write 0..{last}, or names such as `spipe model show` prints"),
            )
        })?;
        ranges.push(range);
    }
    Ok(model.with_frozen(&ranges)?)
}

/// The systems that `--system` allows.
pub fn systems(given: &str) -> Result<Vec<System>, Failure> {
    if given == "auto" {
        return Ok(System::ALL.into_iter().filter(|system| !system.is_stale()).collect());
    }
    if given.split(',').any(|name| name.trim() == "auto") {
        return Err(Failure::argument(
            format!("`{given}` names systems beside `auto`"),
            "`auto` is all of them; leave out the others",
        ));
    }
    let system = |name: &str| name.trim().parse::<System>();
    let systems: Result<BTreeSet<System>, String> = given.split(',').map(system).collect();
    let systems = systems.map_err(|message| Failure::argument(message, "or use auto"))?;
    Ok(systems.into_iter().collect())
}

/// How many threads this machine runs at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Which part of the time limit it may take more to show what less memory costs.
const PART_OF_FRONT: u32 = 4;

fn human(found: &Found, output: Option<&str>, time_limit: Duration) -> String {
    let (solution, placement) = (&found.solution, found.plan.placement());
    let how = match solution.status {
        OutcomeStatus::Optimal => "proven best within that",
        OutcomeStatus::Feasible => "not proven best",
        OutcomeStatus::Stopped => "stopped at the limit",
        OutcomeStatus::Infeasible => "infeasible",
    };
    let on_one = placement.system == System::Superpipeline && placement.devices().len() == 1;
    let front = if on_one { pareto::front(&found.plan, time_limit / PART_OF_FRONT) } else { String::new() };
    let gains = found.plan.outcome().map_or(&[][..], |outcome| &outcome.sensitivity);
    let gains = if gains.is_empty() { String::new() } else { format!("\n{}\n", sensitivity::describe(gains)) };
    let least = solution.considered.iter().filter_map(|known| known.bound).min();
    let others = if least.is_some_and(|least| SimTime::ZERO < solution.bound && solution.bound < least) {
        ", for another size of microbatch"
    } else {
        ""
    };
    let covered =
        if solution.bound > SimTime::ZERO { "" } else { " Nothing is proven of plans such as the given one." };
    let may_be_hybrid = solution.considered.iter().any(|known| known.system == System::Hybrid && known.bound.is_some());
    let hybrids = if may_be_hybrid || placement.system == System::Hybrid {
        format!(" A hybrid's head start is {LARGEST_HEAD_START} at most.")
    } else {
        String::new()
    };
    // Only the integer program with what it calls looks at all placements.
    let none = match found.plan.outcome().map(|outcome| outcome.planner.as_str()) {
        Some("ilp" | "generated") | None => "none",
        Some("mobius-mip") => "none of system `mobius`",
        Some(_) => "none with one stage on each device",
    };
    let written = output.map(|path| format!("Plan written to {path}; see it with `spipe simulate {path}`.\n"));
    let rate =
        found.plan.context().workload().tokens() as f64 * 1e3 / solution.simulated.to_ms().max(f64::MIN_POSITIVE);
    format!(
        "{}\n{}{front}Iteration {:.3} simulated, {} tokens/s. Proven: {none} takes less than {:.3}{others}, so that at most {} could be \
         gained ({how}; {} candidates simulated).{covered}{hybrids}\n{gains}{}",
        describe(&found.plan),
        considered(solution),
        solution.simulated,
        per_second(rate),
        solution.bound,
        percent(solution.gap.max(0.0)),
        solution.examined,
        written.unwrap_or_default()
    )
}

/// What is known of each system, where several were considered.
fn considered(solution: &Solution) -> String {
    if solution.considered.len() < 2 {
        return String::new();
    }
    let mut rows = table(&["system", "bound", "best simulated", "candidates"], &[1, 2, 3]);
    let mut all: Vec<_> = solution.considered.iter().collect();
    all.sort_by_key(|known| (known.simulated.unwrap_or(SimTime::MAX), known.bound.unwrap_or(SimTime::MAX)));
    let (some, none): (Vec<_>, Vec<_>) = all.into_iter().partition(|known| known.bound.is_some());
    for known in some {
        let bound = known.bound.unwrap_or_default();
        rows.add_row(vec![
            known.system.to_string(),
            format!("{bound:.3}"),
            match known.simulated {
                Some(time) => format!("{time:.3}"),
                None if known.skipped && bound >= solution.simulated => "not tried: the bound is too high".into(),
                None if known.skipped => "not tried: would gain less than the gap".into(),
                None if known.examined == 0 => "not tried: the time was over".into(),
                None if solution.status == OutcomeStatus::Stopped => "none found in time".into(),
                None => "none found that fits".into(),
            },
            known.examined.to_string(),
        ]);
    }
    let none: Vec<String> = none.iter().map(|known| known.system.to_string()).collect();
    let none = if none.is_empty() { String::new() } else { format!("Nothing fits: {}.\n", none.join(", ")) };
    format!("{rows}\n\n{none}\n")
}
