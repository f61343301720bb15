//! `spipe reproduce planner`: our plans beside those of the baselines, for every shipped model on every shipped machine.

mod page;

use crate::{
    Failure, args,
    args::Format,
    input,
    output::{self, Target},
    planning::{self, Found, Request},
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

/// How long each planner may search at least, and for each GPU.
const TIME: Duration = Duration::from_secs(4);
const TIME_OF_GPU: Duration = Duration::from_millis(300);

/// Tokens per sequence, as far as the model has so many.
const TOKENS: u64 = 2048;

/// Idle time that shrinks by less of itself explains nothing.
const LEAST: f64 = 0.01;

/// Who is compared with.
const BASELINES: [&str; 3] = ["greedy", "dp", "mobius-mip"];

/// One model on one machine.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Row {
    model: String,
    parameters: u64,
    machine: String,
    system: Option<System>,
    iteration_ms: Option<f64>,
    /// Tokens per second; of what reads images, images.
    per_second: Option<f64>,
    images: bool,
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
        text = page::markdown(&rows);
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
    let gpus = gpus(&hardware) as u64;
    let bf16 = hardware.devices().iter().any(|device| device.is_gpu() && device.peak.contains_key(&DataType::Bf16));
    let workload = Workload {
        mode: Mode::Train,
        seq_len: model.seq_len().min(TOKENS),
        microbatch: 1,
        microbatches: (2 * gpus).max(8),
        precision: if bf16 { Precision::Bf16 } else { Precision::Fp16 },
        optimizer: Optimizer::Adamw,
        attention: Attention::Fused,
        clip_norm: None,
    };
    let mut others: Vec<(&'static str, Found)> = Vec::new();
    for name in BASELINES {
        others.extend(plan((&model, &hardware), workload, name)?.map(|found| (name, found)));
    }
    let ours = plan((&model, &hardware), workload, "ilp")?;
    let images = input::reads_images(&model);
    let count = if images { workload.global_batch() } else { workload.tokens() };
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
        parameters: model.parameters(),
        machine: machine.into(),
        system: ours.as_ref().map(|found| found.solution.placement.system),
        iteration_ms: ours.as_ref().map(time),
        per_second: ours.as_ref().map(|found| count as f64 * 1e3 / time(found)),
        images,
        gap: ours.as_ref().map(|found| found.solution.gap),
        gain: ours.as_ref().zip(best).map(|(ours, (_, best))| time(best) / time(ours)),
        baselines: others.iter().map(|(name, found)| (*name, time(found))).collect(),
        why,
    })
}

fn gpus(hardware: &Hardware) -> usize {
    hardware.devices().iter().filter(|device| device.is_gpu()).count()
}

/// The plan of one planner, if it has one.
fn plan((model, hardware): (&Model, &Hardware), workload: Workload, planner: &str) -> Result<Option<Found>, Failure> {
    let found = planning::search(&Request {
        model,
        hardware,
        workloads: vec![workload],
        systems: System::ALL.into_iter().filter(|system| !system.is_stale()).collect(),
        planner,
        time_limit: TIME.max(TIME_OF_GPU * gpus(hardware) as u32),
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
    if ours.solution.placement == theirs.solution.placement {
        return format!("the plan of {name}");
    }
    let (here, there) = (counts(&ours.plan), counts(&theirs.plan));
    let mut parts = Vec::new();
    let (system, other) = (ours.solution.placement.system, theirs.solution.placement.system);
    if system != other {
        parts.push(format!("`{system}` for `{other}` of {name}"));
    }
    for (what, count) in &here {
        let before = there[what];
        if before != *count {
            parts.push(format!("{what} {before} → {count}"));
        }
    }
    let (now, before) = (idle(&ours.plan), idle(&theirs.plan));
    let left = |cause: &String| now.get(cause).copied().unwrap_or_default();
    let shrinks = |cause: &&String| before[*cause].saturating_sub(left(cause));
    let worth = |cause: &&String| shrinks(cause).to_ms() > LEAST * before[*cause].to_ms();
    if let Some(cause) = before.keys().max_by_key(shrinks).filter(worth) {
        let left = if left(cause) == SimTime::ZERO { "none".into() } else { left(cause).to_string() };
        parts.push(format!("idle for `{cause}` {} → {left}", before[cause]));
    }
    if parts.is_empty() { format!("other cuts than {name}") } else { parts.join("; ") }
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
