//! `spipe plan`.

use crate::{
    Failure, args,
    args::Format,
    input, output,
    output::Target,
    pinning,
    planning::{self, Found, Request},
    sensitivity,
    solving::{self, Largest, Question, Unknown},
    tables::{grouped, percent, table},
};
use serde::Serialize;
use spipe_base::{Bytes, Diagnostic, SimTime};
use spipe_cost::Workload;
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model};
use spipe_plan::{OutcomeStatus, Placement, Plan, Stage, System, Weights, check, footprint};
use spipe_planner::Solution;
use spipe_schedule::lower;
use spipe_sim::{Options, is_ok, simulate};
use std::collections::BTreeSet;

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
    let pinned = pinning::read(&what.pin, (&what.system, &what.microbatch), (&task.model, &task.hardware))?;
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
            output::print(&human(&found, what.output.as_deref()))?;
            let placement = found.plan.placement();
            let on_one = placement.system == System::Superpipeline && placement.devices().len() == 1;
            if on_one { output::print(&grid(&found.plan)) } else { Ok(()) }
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
        let template = Workload {
            mode: input::mode(&model, what.mode)?,
            seq_len: input::seq_len(&model, what.seq_len)?,
            microbatch: 1,
            microbatches: 1,
            precision: what.precision,
            optimizer: what.optimizer,
            attention: if what.materialised_attention { Attention::Materialised } else { Attention::Fused },
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
    let more = if solved.unlimited { "; larger ones were not looked at" } else { "" };
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
        status: OutcomeStatus,
        system: System,
        simulated_iteration_ms: f64,
    }
    output::to_json(&Answer {
        format_version: 1,
        solve_for: unknown,
        value: solved.value,
        unlimited: solved.unlimited,
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
    let system = |name: &str| name.trim().parse::<System>();
    let systems: Result<BTreeSet<System>, String> = given.split(',').map(system).collect();
    let systems = systems.map_err(|message| Failure::argument(message, "or use auto"))?;
    Ok(systems.into_iter().collect())
}

/// How many threads this machine runs at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn human(found: &Found, output: Option<&str>) -> String {
    let solution = &found.solution;
    let status = match solution.status {
        OutcomeStatus::Optimal => format!("proven best within {}", percent(solution.gap.max(0.0))),
        OutcomeStatus::Feasible => format!("not proven best: the bound leaves {}", percent(solution.gap)),
        OutcomeStatus::Stopped => format!("stopped at the limit: the bound leaves {}", percent(solution.gap)),
        OutcomeStatus::Infeasible => "infeasible".into(),
    };
    let gains = found.plan.outcome().map_or(&[][..], |outcome| &outcome.sensitivity);
    let gains = if gains.is_empty() { String::new() } else { format!("\n{}\n", sensitivity::describe(gains)) };
    let least = solution.considered.iter().filter_map(|known| known.bound).min();
    let others = if least.is_some_and(|least| solution.bound < least) { " for another size of microbatch" } else { "" };
    let written = output.map(|path| format!("Plan written to {path}; see it with `spipe simulate {path}`.\n"));
    format!(
        "{}\n{}Iteration {:.3} simulated, {:.3} at least by the bound{others}: {status}; {} candidates simulated.\n{gains}{}",
        describe(&found.plan),
        considered(solution),
        solution.simulated,
        solution.bound,
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
    for known in all {
        let hopeless = known.bound.is_some_and(|bound| bound >= solution.simulated);
        rows.add_row(vec![
            known.system.to_string(),
            known.bound.map_or_else(|| "nothing fits".into(), |bound| format!("{bound:.3}")),
            match (known.simulated, known.bound) {
                (Some(time), _) => format!("{time:.3}"),
                (None, None) => "nothing fits".into(),
                (None, Some(_)) if known.skipped && hopeless => "not tried: the bound is too high".into(),
                (None, Some(_)) if known.skipped => "not tried: would gain less than the gap".into(),
                (None, Some(_)) if known.examined == 0 => "not tried: the time was over".into(),
                (None, Some(_)) => "nothing fits".into(),
            },
            known.examined.to_string(),
        ]);
    }
    format!("{rows}\n\n")
}

/// Every (k, k′) of a Superpipeline on one GPU with the memory that it held and the time of an iteration; those on the Pareto front,
/// which no other beats in both, are marked.
fn grid(plan: &Plan) -> String {
    let context = plan.context();
    let mut tried: Vec<(u64, u64, [String; 2], Bytes, SimTime)> = Vec::new();
    let candidates = spipe_planner::candidates(&context, System::Superpipeline);
    for placement in candidates.into_iter().filter(|placement| placement.devices().len() == 1) {
        let Ok(program) = lower(&context, &placement) else { continue };
        let simulation = simulate(&program, &Options::default());
        if !is_ok(&simulation) || check(&context, &placement).is_err() {
            continue;
        }
        let memory =
            &context.hardware.memories()[context.hardware.devices()[placement.stages.as_slice()[0].device].memory];
        let track = simulation.trace.memories.iter().find(|track| track.name == memory.name);
        let (Some(resident), Some(swap), Some(track)) = (placement.knobs.resident, placement.knobs.swap, track) else {
            continue;
        };
        let layers = |of: &dyn Fn(&Stage) -> usize| match placement.stages.iter().map(of).sum::<usize>() {
            0 => "none".to_owned(),
            all if all == context.model.layers().len() => "all".into(),
            some => some.to_string(),
        };
        let kept = |stage: &Stage| if stage.weights == Weights::Resident { stage.layers.count() } else { 0 };
        let choices = [layers(&kept), layers(&|stage| stage.recomputed)];
        tried.push((resident, swap, choices, track.peak, simulation.trace.iteration));
    }
    tried.dedup();
    let columns = ["k", "k'", "layers kept", "recomputed", "GPU memory", "iteration", "Pareto front"];
    let mut rows = table(&columns, &[0, 1, 2, 3, 4, 5]);
    for (resident, swap, [kept, recomputed], peak, time) in &tried {
        let beaten =
            tried.iter().any(|other| other.3 <= *peak && other.4 <= *time && (other.3 < *peak || other.4 < *time));
        rows.add_row(vec![
            resident.to_string(),
            swap.to_string(),
            kept.clone(),
            recomputed.clone(),
            peak.to_string(),
            format!("{:.1} ms", time.to_ms()),
            if beaten { "" } else { "yes" }.into(),
        ]);
    }
    format!("\nk and k' of Superpipeline, whatever is pinned or improved:\n{rows}\n")
}

/// The plan as a table: stages, and what each memory must hold.
pub fn describe(plan: &Plan) -> String {
    let context = plan.context();
    let placement = plan.placement();
    let workload = context.workload();
    let mut rows = table(
        &["stage", "device", "layers", "recomputed", "parameters", "state", "activations", "other", "memory"],
        &[4, 5, 6, 7, 8],
    );
    let needs = footprint(&context, placement);
    for (id, stage) in placement.stages.enumerate() {
        let device = &context.hardware.devices()[stage.device];
        let need = needs[&device.memory][&id];
        let parameters = stage.layers.iter().map(|layer| context.cost.parameters(layer)).sum();
        rows.add_row(vec![
            id.to_string(),
            if device.emulated { format!("{} (emulated)", device.name) } else { device.name.clone() },
            format!("{} ({})", stage.layers, stage.layers.count()),
            stage.recomputed_layers().map_or_else(|| "none".into(), |layers| layers.to_string()),
            match stage.weights {
                Weights::Resident => grouped(parameters),
                Weights::Streamed(home) => {
                    format!("{} from {}", grouped(parameters), context.hardware.memories()[home].name)
                }
            },
            need.state.to_string(),
            format!("{} × {}", need.in_flight, need.per_microbatch),
            (need.slots + need.transient).to_string(),
            need.total().to_string(),
        ]);
    }
    let mut memories = table(&["memory", "needed", "usable", "filled"], &[1, 2, 3]);
    for (id, needed) in plan.peaks() {
        let memory = &context.hardware.memories()[id];
        let usable = memory.usable();
        let filled = percent(needed.as_f64() / usable.as_f64().max(1.0));
        memories.add_row(vec![memory.name.clone(), needed.to_string(), usable.to_string(), filled]);
    }
    let head_start = match placement.knobs.head_start {
        0 => String::new(),
        more => format!(" with a head start of {more}"),
    };
    let urgent = if placement.knobs.urgent_steps { ", urgent steps first" } else { "" };
    let microbatches = if workload.microbatches == 1 { "microbatch" } else { "microbatches" };
    format!(
        "{} on {}: system {}{head_start}{urgent}, {} {microbatches} of {} × {} tokens, {}\n\n{rows}\n\n{memories}\n",
        context.model.name(),
        context.hardware.name(),
        placement.system,
        workload.microbatches,
        workload.microbatch,
        workload.seq_len,
        workload.precision,
    )
}
