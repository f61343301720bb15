//! `spipe plan`.

use crate::{
    Failure, args,
    args::Format,
    input, output,
    output::Target,
    planning::{self, Found, Request},
    tables::{grouped, percent, table},
};
use serde::Serialize;
use spipe_base::Bytes;
use spipe_cost::Workload;
use spipe_model::Attention;
use spipe_plan::{OutcomeStatus, Plan, StageFootprint, System, footprint};
use std::time::Duration;

/// Searches, prints, and writes the plan.
pub fn run(what: &args::Plan, format: Format) -> Result<(), Failure> {
    let target = what.output.as_deref().map(Target::open).transpose()?;
    let model = input::model(&what.model)?;
    let hardware = input::hardware(&what.hardware)?;
    let template = Workload {
        mode: what.mode,
        seq_len: what.seq_len.unwrap_or_else(|| model.seq_len()),
        microbatch: 1,
        microbatches: 1,
        precision: what.precision,
        optimizer: what.optimizer,
        attention: if what.materialised_attention { Attention::Materialised } else { Attention::Fused },
    };
    let request = Request {
        model: &model,
        hardware: &hardware,
        workloads: planning::workloads(template, what.global_batch, &what.microbatch)?,
        systems: systems(&what.system)?,
        planner: &what.planner,
        time_limit: Duration::from_secs_f64(what.time_limit.get()),
        gap: input::fraction(&what.gap)?,
        threads: what.threads.unwrap_or_else(cores).max(1),
    };
    let found = planning::search(&request);
    if let (Err(Failure::Infeasible(diagnostic)), Format::Json) = (&found, format) {
        output::print(&output::to_json(&Refused {
            format_version: 1,
            status: OutcomeStatus::Infeasible,
            reason: &diagnostic.message,
            hint: diagnostic.hint.as_deref(),
        })?)?;
    }
    let found = found?;
    let json = found.plan.to_json();
    let to_stdout = matches!(target, Some(Target::Stdout));
    if let Some(target) = target {
        target.write(json.as_bytes())?;
    }
    match format {
        _ if to_stdout => Ok(()),
        Format::Json => output::print(&json),
        Format::Human => output::print(&human(&found, what.output.as_deref())),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Refused<'a> {
    format_version: u32,
    status: OutcomeStatus,
    reason: &'a str,
    hint: Option<&'a str>,
}

/// The systems that `--system` allows.
pub fn systems(given: &str) -> Result<Vec<System>, Failure> {
    if given == "auto" {
        return Ok(spipe_planner::SYSTEMS.to_vec());
    }
    given.parse().map(|system| vec![system]).map_err(|message: String| Failure::argument(message, "or use auto"))
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
    let written = output.map(|path| format!("Plan written to {path}; see it with `spipe simulate {path}`.\n"));
    format!(
        "{}\nIteration {:.3} simulated, {:.3} at least by the bound: {status}; {} candidates simulated.\n{}",
        describe(&found.plan),
        solution.simulated,
        solution.bound,
        solution.examined,
        written.unwrap_or_default()
    )
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
            grouped(parameters),
            need.state.to_string(),
            format!("{} × {}", need.in_flight, need.per_microbatch),
            (need.slots + need.transient).to_string(),
            need.total().to_string(),
        ]);
    }
    let mut memories = table(&["memory", "needed", "usable", "filled"], &[1, 2, 3]);
    for (id, stages) in &needs {
        let memory = &context.hardware.memories()[*id];
        let usable = memory.capacity.saturating_sub(memory.reserved);
        let needed: Bytes = stages.values().map(StageFootprint::total).sum();
        let filled = percent(needed.as_f64() / usable.as_f64().max(1.0));
        memories.add_row(vec![memory.name.clone(), needed.to_string(), usable.to_string(), filled]);
    }
    let head_start = match placement.knobs.head_start {
        0 => String::new(),
        more => format!(" with a head start of {more}"),
    };
    format!(
        "{} on {}: system {}{head_start}, {} microbatches of {} × {} tokens, {}\n\n{rows}\n\n{memories}\n",
        context.model.name(),
        context.hardware.name(),
        placement.system,
        workload.microbatches,
        workload.microbatch,
        workload.seq_len,
        workload.precision,
    )
}
