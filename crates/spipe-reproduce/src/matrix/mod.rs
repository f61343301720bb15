//! The planner's plans beside the baselines', for every shipped model on every shipped machine.

mod page;

pub use page::markdown;

use serde::Serialize;
use spipe_base::SimTime;
use spipe_cost::{Mode, Workload};
use spipe_hardware::{DataType, Hardware};
use spipe_model::{Architecture, Model, Precision};
use spipe_plan::{Plan, System, Weights};
use std::{collections::BTreeMap, time::Duration};

/// The least time limit of a planner, and the time limit per GPU.
const TIME: Duration = Duration::from_secs(4);
const TIME_OF_GPU: Duration = Duration::from_millis(300);

/// The gap at which a search may end.
const GAP: f64 = 0.01;

/// The most tokens of a sequence.
const TOKENS: u64 = 2048;

/// The least share by which an idle cause must shrink to be named as a reason.
const LEAST: f64 = 0.01;

/// The planners that ours is compared with.
const BASELINES: [&str; 3] = ["greedy", "dp", "mobius-mip"];

/// A search for one plan.
pub struct Question<'a> {
    /// The model.
    pub model: &'a Model,
    /// The machine.
    pub hardware: &'a Hardware,
    /// The workload, with its size of microbatches.
    pub workload: Workload,
    /// The systems to choose from.
    pub systems: Vec<System>,
    /// The name of the planner.
    pub planner: &'a str,
    /// The time limit of the search.
    pub time_limit: Duration,
    /// The gap at which the search may end.
    pub gap: f64,
}

/// The plan that a search has found.
pub struct Answer {
    /// The plan.
    pub plan: Plan,
    /// Its simulated iteration.
    pub simulated: SimTime,
    /// (iteration − lower bound) ÷ iteration.
    pub gap: f64,
}

impl Answer {
    fn system(&self) -> System {
        self.plan.placement().system
    }
}

/// One model on one machine.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MatrixRow {
    model: String,
    parameters: u64,
    machine: String,
    system: Option<System>,
    iteration_ms: Option<f64>,
    /// Tokens per second; images per second of a model that reads images.
    per_second: Option<f64>,
    images: bool,
    gap: Option<f64>,
    /// The iteration of each baseline that has a plan.
    baselines: BTreeMap<&'static str, f64>,
    /// The best baseline's iteration ÷ ours.
    gain: Option<f64>,
    why: String,
}

impl MatrixRow {
    /// The model and the machine, if a baseline has a faster plan for them.
    pub fn beaten(&self) -> Option<(&str, &str)> {
        self.gain.filter(|gain| *gain < 1.0 - 1e-9).map(|_| (self.model.as_str(), self.machine.as_str()))
    }
}

/// The row of `model` on the machine called `machine`, with plans that `plan` finds.
///
/// # Errors
/// The errors of `plan`.
pub fn row<E>(
    model: &Model,
    (machine, hardware): (&str, &Hardware),
    plan: impl Fn(&Question<'_>) -> Result<Option<Answer>, E>,
) -> Result<MatrixRow, E> {
    let workload = workload(model, hardware);
    let question = |planner| Question {
        model,
        hardware,
        workload,
        systems: System::ALL.into_iter().filter(|system| !system.is_stale()).collect(),
        planner,
        time_limit: TIME.max(TIME_OF_GPU * gpus(hardware) as u32),
        gap: GAP,
    };
    let mut others: Vec<(&'static str, Answer)> = Vec::new();
    for name in BASELINES {
        others.extend(plan(&question(name))?.map(|found| (name, found)));
    }
    let ours = plan(&question("ilp"))?;
    let images = matches!(model.architecture(), Architecture::Vision(_) | Architecture::Unet(_));
    let count = if images { workload.global_batch() } else { workload.tokens() };
    let best = others.iter().min_by_key(|(_, found)| found.simulated);
    let why = match (&ours, best) {
        (None, None) => "nothing fits".into(),
        (None, Some(_)) => "no plan was found in the time".into(),
        (Some(_), None) => "no baseline has a plan".into(),
        (Some(ours), Some((name, best))) => why(ours, name, best),
    };
    let time = |found: &Answer| found.simulated.to_ms();
    Ok(MatrixRow {
        model: model.name().into(),
        parameters: model.parameters(),
        machine: machine.into(),
        system: ours.as_ref().map(Answer::system),
        iteration_ms: ours.as_ref().map(time),
        per_second: ours.as_ref().map(|found| count as f64 * 1e3 / time(found)),
        images,
        gap: ours.as_ref().map(|found| found.gap),
        gain: ours.as_ref().zip(best).map(|(ours, (_, best))| time(best) / time(ours)),
        baselines: others.iter().map(|(name, found)| (*name, time(found))).collect(),
        why,
    })
}

/// Training, two microbatches per GPU and at least 8, in bf16 where the GPUs have it.
fn workload(model: &Model, hardware: &Hardware) -> Workload {
    let bf16 = hardware.devices().iter().any(|device| device.is_gpu() && device.peak.contains_key(&DataType::Bf16));
    Workload {
        mode: Mode::Train,
        seq_len: model.seq_len().min(TOKENS),
        microbatch: 1,
        microbatches: (2 * gpus(hardware) as u64).max(8),
        precision: if bf16 { Precision::Bf16 } else { Precision::Fp16 },
        ..Workload::PLAIN
    }
}

fn gpus(hardware: &Hardware) -> usize {
    hardware.gpus().count()
}

/// The difference of our plan from that of a baseline: its numbers of layers by choice, and the
/// cause of idle time that shrank most.
fn why(ours: &Answer, name: &str, theirs: &Answer) -> String {
    if ours.plan.placement() == theirs.plan.placement() {
        return format!("the plan of {name}");
    }
    let (here, there) = (counts(&ours.plan), counts(&theirs.plan));
    let mut parts = Vec::new();
    let (system, other) = (ours.system(), theirs.system());
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

/// The number of devices, and of layers by the choice made for them.
fn counts(plan: &Plan) -> BTreeMap<&'static str, usize> {
    let (context, placement) = (plan.context(), plan.placement());
    let stages = || placement.backward_stages().iter();
    let layers = |wanted: &dyn Fn(&spipe_plan::Stage) -> bool| {
        stages().filter(|stage| wanted(stage)).map(|stage| stage.layers.count()).sum::<usize>()
    };
    BTreeMap::from([
        ("devices", placement.computing().len()),
        ("layers on CPUs", layers(&|stage| context.is_cpu(stage.lead()))),
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
