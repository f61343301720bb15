//! `spipe plan`.

use crate::{
    Failure, args,
    args::{Format, Given, Unknown},
    idle::Idle,
    input, interrupt, output,
    output::Target,
    planning::{
        self, Found, Request, pareto, pins, sensitivity,
        solve_for::{self, Largest, Question},
    },
    report,
};
use serde::Serialize;
use spipe_base::Diagnostic;
use spipe_cost::{Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model};
use spipe_plan::{OutcomeStatus, Placement, System};
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
    if what.threads == Some(0) {
        return Err(Failure::argument("`--threads` is zero", "use at least one, or leave it out"));
    }
    let threads = what.threads.map_or_else(planning::cores, |threads| threads.min(planning::cores()));
    let inputs: Vec<&str> = what.model.as_deref().into_iter().chain(what.hardware.as_deref()).collect();
    let target = what.output.as_deref().map(|path| Target::beside(path, &inputs)).transpose()?;
    let task = Task::new(what)?;
    let whose = (&task.model, &task.hardware, task.template.mode);
    let pinned = pins::read(&what.pin, (&what.system, &what.microbatch), whose)?;
    let systems = planning::systems(&pinned.system)?;
    let task = task.under(what, &systems)?;
    idle(what, given, (&task, &systems))?;
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
        stop: &stop,
        pins: pinned.pins.clone(),
        start: task.start.clone(),
        host_help: true,
    };
    let mut found = planning::search(&request)?;
    if what.sensitivity {
        found = sensitivity::with_gains(&request, found)?;
    }
    let (context, placement) = (found.plan.context(), found.plan.placement());
    let remarks = [
        spipe_plan::precision_remark(&context, placement),
        spipe_plan::contrast_remark(&context),
        spipe_plan::prompt_remark(&found.plan),
    ];
    let full = spipe_plan::fullness_remarks(&found.plan);
    for remark in remarks.into_iter().flatten().chain(full) {
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
            let front = front(&found, time_limit);
            output::print(&report::plan::human(&found, &front, what.output.as_deref()))
        }
    }
}

/// Refuses options that do nothing in this mode, for this model, these systems, or this unknown.
fn idle(what: &args::Plan, given: &Given, (task, systems): (&Task, &[System])) -> Result<(), Failure> {
    let planner_has_a_system = match what.planner.as_str() {
        "dp" | "greedy" | "exhaustive" => systems.iter().any(|system| spipe_planner::SYSTEMS.contains(system)),
        "mobius-mip" => systems.contains(&System::Mobius),
        _ => true,
    };
    let solves_for = |unknown| what.solve_for == Some(unknown);
    if solves_for(Unknown::Microbatch) && what.pin.iter().any(|pin| pin.starts_with("microbatch=")) {
        return Err(Failure::argument("a pin of the microbatch does nothing when it is solved for", "drop the pin"));
    }
    let solved = "when it is solved for";
    Idle::among(given)
        .options_if(
            task.template.mode != Mode::Train,
            &["optimizer", "clip-norm", "freeze"],
            "in inference",
            "leave it out, or plan with `--mode train`",
        )
        .options_if(
            !input::attends(&task.model),
            &["materialised-attention"],
            "to a model without known attention",
            "leave it out",
        )
        .options_if(
            !planner_has_a_system,
            &["planner"],
            "to these systems",
            "`dp`, `greedy` and `exhaustive` plan `gpipe`, `1f1b` and `hybrid`, `mobius-mip` plans `mobius`; leave it out",
        )
        .options_if(solves_for(Unknown::Microbatch), &["microbatch"], solved, "leave it out")
        .options_if(solves_for(Unknown::SeqLen), &["seq-len"], solved, "leave it out")
        .options_if(solves_for(Unknown::GlobalBatch), &["global-batch"], solved, "leave it out")
        .refuse()
}

/// The part of the time limit that the Pareto front may take in addition.
const PART_OF_FRONT: u32 = 4;

/// The cost of less memory, of a plan of Superpipeline on one GPU.
fn front(found: &Found, time_limit: Duration) -> String {
    let placement = found.plan.placement();
    if placement.system != System::Superpipeline || placement.devices().len() != 1 {
        return String::new();
    }
    let front = pareto::front(&found.plan, time_limit / PART_OF_FRONT);
    report::pareto::human(front.as_ref(), found.plan.context().model.layers().len())
}

/// The model, machine and workload to plan for.
struct Task {
    model: Model,
    hardware: Hardware,
    template: Workload,
    global_batch: u64,
    /// The plan to start from.
    start: Option<Placement>,
}

impl Task {
    fn new(what: &args::Plan) -> Result<Self, Failure> {
        if let Some(path) = &what.improve {
            let plan = input::plan(path)?;
            let context = plan.context();
            let runtime = what.runtime.as_deref().map(input::runtime).transpose()?;
            let hardware = context.hardware.clone();
            let hardware = runtime.into_iter().fold(hardware, Hardware::under);
            return Ok(Self {
                model: context.model.clone(),
                hardware: roomy(hardware, what)?,
                template: *context.workload(),
                global_batch: context.workload().global_batch(),
                start: Some(plan.placement().clone()),
            });
        }
        let given = |value: &Option<String>| value.clone().unwrap_or_default();
        let model = frozen(input::model(&given(&what.model))?, &what.freeze)?;
        let hardware = input::part(input::hardware(&given(&what.hardware))?, &what.devices)?;
        let mode = input::mode(&model, what.mode)?;
        let global_batch = match (what.global_batch, what.solve_for) {
            (Some(given), _) => given,
            (None, Some(Unknown::GlobalBatch)) => 1,
            (None, _) => {
                let hint = "add `--global-batch`, the sequences per iteration";
                return Err(Failure::argument("the global batch is not given", hint));
            }
        };
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
        Ok(Self { model, hardware, template, global_batch, start: None })
    }

    /// The same task on the machine as its runtime finds it.
    fn under(self, what: &args::Plan, systems: &[System]) -> Result<Self, Failure> {
        if self.start.is_some() {
            return Ok(self);
        }
        let runtime = input::runtime_for(what.runtime.as_deref(), systems, &self.hardware)?;
        Ok(Self { hardware: roomy(self.hardware.under(runtime), what)?, ..self })
    }
}

/// The machine with the head-room that was asked for.
fn roomy(hardware: Hardware, what: &args::Plan) -> Result<Hardware, Failure> {
    let Some(given) = &what.head_room else { return Ok(hardware) };
    let share = input::fraction(given)?;
    if share < 1.0 {
        return Ok(hardware.with_head_room(share));
    }
    Err(Failure::argument("the head-room is all of the memory", "leave less, such as 10%"))
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

/// `model` with these layers frozen too.
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
