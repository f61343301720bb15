//! Sharded plans: the settings that FSDP2's and DeepSpeed's scripts read.

use crate::{
    batch::Batch,
    fingerprint::fingerprint,
    network::Network,
    ranks::{Rank, by_node, ranks},
};
use serde::Serialize;
use spipe_base::{Diagnostic, Faults};
use spipe_cost::Mode;
use spipe_model::Precision;
use spipe_plan::{Plan, Stage, Weights};

/// The settings that the scripts take from a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Sharded {
    format_version: u32,
    system: String,
    fingerprint: String,
    model: Network,
    /// The processes of the plan.
    pub ranks: Vec<Rank>,
    stages: Vec<Group>,
    batch: Batch,
    precision: &'static str,
    clip_norm: Option<f64>,
    /// Whether shards and their optimizer are in host memory.
    pub offloads: bool,
    /// Groups that are gathered ahead of the one in computation.
    pub prefetch: u64,
    /// The processes of a group that has one copy of everything.
    pub shard_group: usize,
    /// Whether these groups sum their gradients once, after the last microbatch.
    sums_once: bool,
    /// Whether groups that were gathered stay so until the step.
    pub gathers_once: bool,
}

/// Layers that are gathered together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Group {
    first_layer: usize,
    last_layer: usize,
    recomputed: usize,
    offloads: bool,
    frozen: Vec<usize>,
}

impl Sharded {
    /// The settings of a plan whose layers all devices share.
    pub fn new(plan: &Plan, network: &Network) -> Self {
        let (context, placement) = (plan.context(), plan.placement());
        let workload = context.workload();
        let gpus = placement.replicas();
        let devices = if gpus.is_empty() { placement.devices() } else { gpus };
        let group = |stage: &Stage| Group {
            first_layer: stage.layers.first().index(),
            last_layer: stage.layers.last().index(),
            recomputed: stage.recomputed,
            offloads: stage.offload.is_some(),
            frozen: stage
                .layers
                .iter()
                .filter(|layer| !context.model.layers()[*layer].learns())
                .map(|id| id.index())
                .collect(),
        };
        let devices = by_node(context.hardware, devices);
        let offloads = placement.stages.iter().any(|stage| context.steps(stage) != stage.lead())
            || placement.stages.iter().any(|stage| matches!(stage.weights, Weights::Streamed(_)));
        let steps_on = |device| {
            let host = context.hardware.host_memory(device).filter(|_| offloads);
            host.and_then(|host| context.hardware.memories()[host].device).unwrap_or(device)
        };
        Self {
            format_version: 1,
            system: placement.name().into(),
            fingerprint: fingerprint(plan),
            model: network.clone(),
            ranks: ranks(plan, &devices, steps_on),
            stages: placement.stages.iter().map(group).collect(),
            batch: Batch::of(&context),
            precision: workload.precision.name(),
            clip_norm: workload.clip_norm.map(f64::from),
            offloads,
            prefetch: placement.resident_stages().min(placement.stages.len()).saturating_sub(1) as u64,
            shard_group: placement.shard_groups().size(),
            sums_once: !offloads,
            gathers_once: placement.gathers_once(),
        }
    }

    /// The settings as a file.
    pub fn to_json(&self) -> Result<String, Diagnostic> {
        let json = serde_json::to_string_pretty(self).map_err(|error| Diagnostic::error(error.to_string()))?;
        Ok(json + "\n")
    }

    /// Ranks and groups as a table of Markdown.
    pub fn table(&self) -> String {
        let mut table = String::from("| group | layers | recomputed |\n|---|---|---|\n");
        for (index, group) in self.stages.iter().enumerate() {
            table += &format!("| {index} | {}..{} | {} |\n", group.first_layer, group.last_layer, group.recomputed);
        }
        table
    }
}

/// Faults that hold for every script that trains.
pub fn check_training(plan: &Plan, engine: &str) -> Faults {
    let mut faults = Faults::new();
    let workload = *plan.context().workload();
    if workload.mode != Mode::Train {
        let message = format!("the plan is for inference, and the script of {engine} trains");
        faults.push(Diagnostic::error(message).hint("plan with `option mode train`"));
    }
    if workload.precision == Precision::Fp16 && engine == "FSDP" {
        let message = "fp16 needs scaled losses, which the script of FSDP does not have";
        faults.push(Diagnostic::error(message).hint("nearest: `option precision bf16`"));
    }
    faults
}
