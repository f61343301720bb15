//! The figures of a system.

use crate::error::SearchError;
use serde::Serialize;
use spipe_base::{Bytes, Diagnostic, Flops};
use spipe_cost::{Mode, Workload};
use spipe_hardware::{Device, Hardware};
use spipe_model::{Model, Op};
use spipe_plan::Plan;
use spipe_schedule::{Outcome, Program};
use spipe_trace::{Metrics, Trace};
use std::collections::BTreeMap;

/// Whether a system has a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It has one.
    Feasible,
    /// It has none.
    Infeasible,
    /// None was found in time, and none was proven impossible.
    Stopped,
}

/// A system with its figures.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Compared {
    /// The name of the system, or of the baseline.
    pub system: &'static str,
    /// Whether it is a baseline, a plan without a search.
    pub baseline: bool,
    /// Whether it has a plan.
    pub status: Status,
    /// Why there is no plan.
    pub reason: Option<String>,
    /// The largest use of each memory.
    pub peak_bytes: BTreeMap<String, Bytes>,
    /// The simulated iteration.
    pub iteration_ms: Option<f64>,
    /// The rate of tokens.
    pub tokens_per_second: Option<f64>,
    /// The share of the devices' time that is idle.
    pub bubble_fraction: Option<f64>,
    /// Bytes per iteration.
    pub link_bytes: BTreeMap<String, Bytes>,
    /// Model FLOPs ÷ (peak of all GPUs × iteration), without the arithmetic of recomputes.
    pub utilisation: Option<f64>,
    /// Sequences per microbatch.
    pub microbatch: Option<u64>,
    /// The runtime whose constants predicted the figures.
    pub runtime: Option<String>,
    /// Whether these were never compared with measured runs of the system.
    pub estimate: bool,
    /// The bytes over links between GPUs and hosts, both ways together.
    #[serde(skip)]
    pub host_traffic: Option<Bytes>,
    #[serde(skip)]
    /// The simulated iteration.
    pub trace: Option<Trace>,
}

impl Compared {
    /// A system without figures.
    pub(super) fn bare(system: &'static str, status: Status, reason: Option<String>) -> Self {
        Self {
            system,
            baseline: false,
            status,
            reason,
            peak_bytes: BTreeMap::new(),
            iteration_ms: None,
            tokens_per_second: None,
            bubble_fraction: None,
            link_bytes: BTreeMap::new(),
            utilisation: None,
            microbatch: None,
            runtime: None,
            estimate: false,
            host_traffic: None,
            trace: None,
        }
    }

    /// A system for which the search failed.
    ///
    /// # Errors
    /// A failure that is no answer, such as a bug.
    pub(super) fn refused(system: &'static str, error: SearchError) -> Result<Self, SearchError> {
        let words = |diagnostic: &Diagnostic| match &diagnostic.hint {
            Some(hint) => format!("{}; {hint}", diagnostic.message),
            None => diagnostic.message.clone(),
        };
        let (status, reason) = match &error {
            SearchError::Infeasible(diagnostic) => (Status::Infeasible, words(diagnostic)),
            SearchError::Stopped(diagnostic) => (Status::Stopped, words(diagnostic)),
            SearchError::Request(faults) => (Status::Infeasible, faults.to_string().replacen("error: ", "", 1)),
            _ => return Err(error),
        };
        Ok(Self::bare(system, status, Some(reason.replace('\n', "; "))))
    }

    /// The figures of a plan.
    pub(super) fn of(system: &'static str, plan: &Plan, program: &Program, trace: Trace) -> Self {
        let context = plan.context();
        let metrics = Metrics::of(&trace);
        let links = link_bytes(program);
        let iteration = metrics.iteration.to_seconds().get();
        Self {
            peak_bytes: metrics.peaks,
            iteration_ms: Some(metrics.iteration.to_ms()),
            tokens_per_second: metrics.tokens_per_second,
            bubble_fraction: Some(metrics.bubble_fraction),
            host_traffic: Some(host_traffic(context.hardware, &links)),
            link_bytes: links,
            utilisation: utilisation((context.model, context.hardware), &context.cost.whole_workload(), iteration),
            microbatch: Some(context.workload().microbatch),
            runtime: Some(context.hardware.runtime().name().into()),
            estimate: plan.is_estimate(),
            trace: Some(trace),
            ..Self::bare(system, Status::Feasible, None)
        }
    }
}

/// The bytes that the actions of an iteration move over each channel. Checks pass, so actions that
/// only run after a failed one do not count.
fn link_bytes(program: &Program) -> BTreeMap<String, Bytes> {
    let mut all = BTreeMap::new();
    let runs = |guard: Option<spipe_schedule::Guard>| guard.is_none_or(|guard| guard.outcome == Outcome::Pass);
    for action in program.actions().iter().filter(|action| runs(action.guard)) {
        for flow in program.flows(action) {
            for link in flow.route.iter() {
                *all.entry(program.channels()[*link].name.clone()).or_insert(Bytes::ZERO) += flow.bytes;
            }
        }
    }
    all
}

/// The bytes over the links that end at a GPU and not at another one.
pub fn host_traffic(hardware: &Hardware, bytes: &BTreeMap<String, Bytes>) -> Bytes {
    let is_gpu = |node: &str| hardware.device(node).is_some_and(|device| hardware.devices()[device].is_gpu());
    let joins = hardware.links().iter().filter(|link| is_gpu(&link.from) != is_gpu(&link.to));
    joins.filter_map(|link| bytes.get(&link.name)).copied().sum()
}

/// Model FLOPs ÷ (peak × iteration), `iteration` in seconds: the forward and, in training, the
/// backward of all microbatches, without recompute (Chowdhery et al. 2022, PaLM, appendix B). The
/// peak is that of all GPUs of the machine in the precision of the workload, or of its sockets if it
/// has no GPU. `None` for models whose operations are not known.
pub fn utilisation((model, hardware): (&Model, &Hardware), workload: &Workload, iteration: f64) -> Option<f64> {
    let gpus: Vec<&Device> = hardware.devices().iter().filter(|device| device.is_gpu()).collect();
    let devices = if gpus.is_empty() { hardware.devices().iter().collect() } else { gpus };
    let peak = |device: &&Device| Some(device.peak.get(&spipe_cost::product_type(device, workload.precision))?.get());
    let peak: f64 = devices.iter().map(peak).sum::<Option<f64>>()?;
    let flops = model_flops(model, workload) * workload.microbatches as f64;
    (flops > 0.0 && peak > 0.0 && iteration > 0.0).then(|| flops / (peak * iteration))
}

/// The arithmetic operations of one microbatch, forward and backward.
fn model_flops(model: &Model, workload: &Workload) -> f64 {
    let flops = |ops: &[Op]| ops.iter().map(Op::flops).sum::<Flops>().get();
    let mut total = 0.0;
    for layer in model.layers().iter() {
        if workload.mode == Mode::Generate {
            total += flops(&layer.generate_work(workload.batch()));
            continue;
        }
        let work = workload.work(layer);
        total += flops(&work.forward);
        if workload.mode == Mode::Train && layer.needs_backward {
            let adapted = layer.adaptation.is_some() && layer.learns() && layer.as_block().is_some();
            let inside = layer.passes_gradient || adapted;
            total += if inside { flops(&work.backward_input) } else { 0.0 };
            total += if layer.learns() { flops(&work.backward_weight) } else { 0.0 };
        }
    }
    total * workload.counted_share()
}
