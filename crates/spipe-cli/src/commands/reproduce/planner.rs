//! `spipe reproduce planner`: our plans beside those of the baselines, for every shipped model on every shipped machine.

use crate::{
    Failure, args,
    args::Format,
    input,
    output::{self, Target},
    planning::{self, Found, Request},
    tables::percent,
};
use rayon::prelude::*;
use serde::Serialize;
use spipe_base::{Diagnostic, SimTime};
use spipe_cost::{Mode, Optimizer, Workload};
use spipe_hardware::{DataType, Hardware};
use spipe_model::{Attention, Model, Precision};
use spipe_plan::{Plan, System, Weights};
use spipe_planner::Pins;
use std::{collections::BTreeMap, path::Path, time::Duration};

/// How long each planner may search.
const TIME: Duration = Duration::from_secs(4);

/// Tokens per sequence, as far as the model has so many.
const TOKENS: u64 = 2048;

/// Who is compared with.
const BASELINES: [&str; 3] = ["greedy", "dp", "mobius-mip"];

/// One model on one machine.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Row {
    model: String,
    machine: String,
    system: Option<System>,
    iteration_ms: Option<f64>,
    gap: Option<f64>,
    /// The iteration of each baseline that has a plan.
    baselines: BTreeMap<&'static str, f64>,
    /// The best baseline's iteration ÷ ours.
    gain: Option<f64>,
    why: String,
}

/// Plans everything and writes the table.
pub(super) fn run(what: &args::Reproduce, format: Format) -> Result<(), Failure> {
    let folder = Path::new(&what.output);
    let (mut rows, mut text) = (Vec::new(), String::new());
    // Written anew after every machine, so that an end before the last one leaves a table of those before it.
    for (machine, _) in spipe_hardware::shipped() {
        let models = spipe_model::shipped().par_iter();
        let more: Result<Vec<Row>, Failure> = models.map(|(model, _)| row(model, machine)).collect();
        rows.extend(more?);
        text = markdown(&rows);
        Target::in_folder(folder, "planner.json")?.write((output::to_json(&rows)? + "\n").as_bytes())?;
        Target::in_folder(folder, "planner.md")?.write(text.as_bytes())?;
        output::talk(&format!("{machine}: done"));
    }
    output::report(format, &text, &rows)?;
    match rows.iter().find(|row| row.gain.is_some_and(|gain| gain < 1.0 - 1e-9)) {
        None => Ok(()),
        Some(row) => {
            let message = format!("a baseline beats the plan of `{}` on `{}`", row.model, row.machine);
            Err(Failure::Check(Diagnostic::error(message)))
        }
    }
}

fn row(model: &str, machine: &str) -> Result<Row, Failure> {
    let (model, hardware) = (input::model(model)?, input::hardware(machine)?);
    let gpus = hardware.devices().iter().filter(|device| device.is_gpu()).count() as u64;
    let bf16 = hardware.devices().iter().any(|device| device.is_gpu() && device.peak.contains_key(&DataType::Bf16));
    let workload = Workload {
        mode: Mode::Train,
        seq_len: model.seq_len().min(TOKENS),
        microbatch: 1,
        microbatches: (2 * gpus).max(8),
        precision: if bf16 { Precision::Bf16 } else { Precision::Fp16 },
        optimizer: Optimizer::Adamw,
        attention: Attention::Fused,
    };
    let mut others: Vec<(&'static str, Found)> = Vec::new();
    for name in BASELINES {
        others.extend(plan((&model, &hardware), workload, name)?.map(|found| (name, found)));
    }
    let ours = plan((&model, &hardware), workload, "ilp")?;
    let best = others.iter().min_by_key(|(_, found)| found.solution.simulated);
    let why = match (&ours, best) {
        (None, None) => "nothing fits".into(),
        (None, Some(_)) => "no plan was found in the time".into(),
        (Some(_), None) => "no baseline has a plan".into(),
        (Some(ours), Some((name, best))) => why(ours, name, best),
    };
    let time = |found: &Found| found.solution.simulated.to_ms();
    Ok(Row {
        model: model.name().into(),
        machine: machine.into(),
        system: ours.as_ref().map(|found| found.solution.placement.system),
        iteration_ms: ours.as_ref().map(time),
        gap: ours.as_ref().map(|found| found.solution.gap),
        gain: ours.as_ref().zip(best).map(|(ours, (_, best))| time(best) / time(ours)),
        baselines: others.iter().map(|(name, found)| (*name, time(found))).collect(),
        why,
    })
}

/// The plan of one planner, if it has one.
fn plan((model, hardware): (&Model, &Hardware), workload: Workload, planner: &str) -> Result<Option<Found>, Failure> {
    let found = planning::search(&Request {
        model,
        hardware,
        workloads: vec![workload],
        systems: System::ALL.into_iter().filter(|system| !system.is_stale()).collect(),
        planner,
        time_limit: TIME,
        gap: 0.01,
        threads: 1,
        pins: Pins::default(),
        start: None,
        host_help: true,
    });
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Failure::Infeasible(_) | Failure::Stopped(_) | Failure::Arguments(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// What our plan has elsewhere than that of a baseline, and which cause of idle time shrank most.
fn why(ours: &Found, name: &str, theirs: &Found) -> String {
    let (here, there) = (counts(&ours.plan), counts(&theirs.plan));
    let mut parts = Vec::new();
    let (system, other) = (ours.solution.placement.system, theirs.solution.placement.system);
    if system != other {
        parts.push(format!("`{system}` for `{other}` of {name}"));
    } else {
        parts.push(format!("against {name}"));
    }
    for (what, count) in &here {
        let before = there[what];
        if before != *count {
            parts.push(format!("{what} {before} → {count}"));
        }
    }
    let (now, before) = (idle(&ours.plan), idle(&theirs.plan));
    let shrinks = |cause: &String| before[cause].saturating_sub(now.get(cause).copied().unwrap_or_default());
    if let Some(cause) = before.keys().max_by_key(|cause| shrinks(cause)).filter(|cause| shrinks(cause) > SimTime::ZERO)
    {
        let left = now.get(cause).copied().unwrap_or_default();
        parts.push(format!("idle for `{cause}` {:.3} → {left:.3}", before[cause]));
    }
    parts.join("; ")
}

/// How many layers are where, and on how many devices.
fn counts(plan: &Plan) -> BTreeMap<&'static str, usize> {
    let (context, placement) = (plan.context(), plan.placement());
    let stages = || placement.backward_stages().iter();
    let layers = |wanted: &dyn Fn(&spipe_plan::Stage) -> bool| {
        stages().filter(|stage| wanted(stage)).map(|stage| stage.layers.count()).sum::<usize>()
    };
    let participants = placement.participants(context.hardware).len();
    let shared = placement.system.family() == spipe_plan::Family::Sharded;
    BTreeMap::from([
        ("devices", if shared { participants } else { placement.devices().len() }),
        ("layers on CPUs", layers(&|stage| context.is_cpu(stage.device))),
        ("layers recomputed", stages().map(|stage| stage.recomputed).sum()),
        ("layers streamed", layers(&|stage| matches!(stage.weights, Weights::Streamed(_)))),
        ("layers stepped on CPUs", layers(&|stage| stage.optimizer.is_some())),
        ("layers offloading activations", layers(&|stage| stage.offload.is_some())),
    ])
}

/// The idle time of an iteration by cause, over all compute lanes.
fn idle(plan: &Plan) -> BTreeMap<String, SimTime> {
    let mut by_cause: BTreeMap<String, SimTime> = BTreeMap::new();
    let Ok(program) = spipe_schedule::lower(&plan.context(), plan.placement()) else { return by_cause };
    for gap in spipe_sim::simulate(&program, &spipe_sim::Options::default()).trace.idle {
        *by_cause.entry(gap.cause.to_string()).or_default() += gap.end - gap.start;
    }
    by_cause
}

fn markdown(rows: &[Row]) -> String {
    let planned: Vec<&Row> = rows.iter().filter(|row| row.iteration_ms.is_some()).collect();
    let gains: Vec<f64> = planned.iter().filter_map(|row| row.gain).collect();
    let mean = (gains.iter().map(|gain| gain.ln()).sum::<f64>() / gains.len().max(1) as f64).exp();
    let worse = gains.iter().filter(|gain| **gain < 1.0 - 1e-9).count();
    let mut machines: Vec<&str> = rows.iter().map(|row| row.machine.as_str()).collect();
    machines.dedup();
    let mut text = format!(
        "# The planner beside its baselines\n\n\
         `spipe reproduce planner -o reports` plans every shipped model on the shipped machines ({}): training, microbatches of one \
         sequence of at most {TOKENS} tokens, two microbatches per GPU and at least 8, bf16 where the GPUs have it, otherwise fp16, \
         {} s for each planner on one thread. Simulated iterations in ms. greedy and dp place stages of GPipe, 1F1B and the hybrid, \
         mobius-mip is the partition MIP of Mobius. The gain is over the best of the three. The gap is that to what is proven of all \
         placements, with any number of stages on a device.\n\n\
         {} pairs: {} have a plan, {} of them one of a baseline too; worse than a baseline: {worse}. Geometric mean of the gains: \
         {mean:.2}×.\n\n\
         | model | machine | system | ours | gap | greedy | dp | mobius-mip | gain | why |\n|---|---|---|---|---|---|---|---|---|---|\n",
        machines.join(", "),
        TIME.as_secs(),
        rows.len(),
        planned.len(),
        gains.len(),
    );
    for row in planned {
        let baseline = |name: &str| row.baselines.get(name).map_or_else(|| "–".into(), |time| format!("{time:.1}"));
        text += &format!(
            "| {} | {} | {} | {:.1} | {} | {} | {} | {} | {} | {} |\n",
            row.model,
            row.machine,
            row.system.map(|system| system.to_string()).unwrap_or_default(),
            row.iteration_ms.unwrap_or_default(),
            row.gap.map(percent).unwrap_or_default(),
            baseline("greedy"),
            baseline("dp"),
            baseline("mobius-mip"),
            row.gain.map_or_else(|| "–".into(), |gain| format!("{gain:.2}×")),
            row.why
        );
    }
    let none: Vec<String> = rows
        .iter()
        .filter(|row| row.iteration_ms.is_none())
        .map(|row| format!("{} on {} ({})", row.model, row.machine, row.why))
        .collect();
    if !none.is_empty() {
        text += &format!("\nWithout a plan: {}.\n", none.join("; "));
    }
    text
}
