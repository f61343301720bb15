//! The values that the module of a plan reads: `plan.json`.

use super::{
    parts::{Parts, Schedule},
    refusal,
};
use crate::{Modules, network::Network, ranks::by_node, torch::Exported};
use serde::Serialize;
use spipe_base::{DeviceId, Diagnostic, Faults, LayerId};
use spipe_model::{LayerKind, Precision};
use spipe_plan::{Context, Placement, Plan, Sharding};
use spipe_schedule::{Order, order_of};
use std::collections::BTreeMap;

/// The settings of a plan.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
    format_version: u32,
    torchtitan: &'static str,
    model: Network,
    world_size: u64,
    degrees: Degrees,
    sequence_parallel: bool,
    /// The modules of each stage, if there are several processes along the pipeline.
    stages: Option<Vec<Vec<String>>>,
    schedule: Schedule,
    /// The blocks that are computed again in the backward.
    recomputed: Vec<usize>,
    batch: Sizes,
    /// The type of the parameters in products; masters and states have 32 bits.
    parameters: &'static str,
    clip_norm: Option<f64>,
    /// The device of each rank.
    ranks: Vec<String>,
    #[serde(skip)]
    order: Order,
    #[serde(skip)]
    nodes: Vec<usize>,
}

/// The degrees of torchtitan's axes.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Degrees {
    pipeline: u64,
    /// Replicas that step alike.
    replicate: u64,
    /// Replicas that divide the optimizer.
    shard: u64,
    tensor: u64,
}

/// The sizes of a batch, in sequences.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Sizes {
    microbatch: u64,
    /// The sequences of a replica that go through the pipeline at once; without one, those of a microbatch.
    local: u64,
    global: u64,
    /// Tokens.
    seq_len: u64,
}

impl Settings {
    /// The settings of `plan`.
    ///
    /// # Errors
    /// An answer that torchtitan cannot express.
    pub fn new(plan: &Plan, warnings: &mut Faults) -> Result<Self, Faults> {
        refusal::check(plan)?;
        let (context, placement) = (plan.context(), plan.placement());
        let (workload, mesh) = (context.workload(), context.mesh());
        let exported = Exported::new(plan, &order_of(&context, placement)?, warnings)?;
        let (parts, schedule) = Parts::of(placement, &exported)?;
        let pipeline = parts.rows.len();
        let (ranks, nodes) = ranks(&context, &parts.rows)?;
        let divides = mesh.sharding == Sharding::Optimizer;
        let whole = context.cost.whole_workload();
        let stages =
            parts.layers.iter().map(|layers| layers.iter().flat_map(|layer| modules(&context, *layer)).collect());
        Ok(Self {
            format_version: 1,
            torchtitan: super::VERSION,
            model: Network::of(context.model, Modules::Own)?,
            world_size: ranks.len() as u64,
            degrees: Degrees {
                pipeline: pipeline as u64,
                replicate: if divides { 1 } else { mesh.data() },
                shard: if divides { mesh.data() } else { 1 },
                tensor: mesh.tensor(),
            },
            sequence_parallel: mesh.sequence,
            stages: (pipeline > 1).then(|| stages.collect()),
            schedule,
            recomputed: recomputed(&context, placement),
            batch: Sizes {
                microbatch: workload.microbatch,
                local: if pipeline > 1 { workload.global_batch() } else { workload.microbatch },
                global: whole.global_batch(),
                seq_len: workload.seq_len,
            },
            parameters: if workload.precision == Precision::Bf16 { "bfloat16" } else { "float32" },
            clip_norm: workload.clip_norm.map(f64::from),
            ranks,
            order: parts.order,
            nodes,
        })
    }

    /// The order, where a file has it.
    pub fn order(&self) -> Option<&Order> {
        self.schedule.csv.then_some(&self.order)
    }

    /// The words of the page.
    pub fn words(&self, plan: &Plan) -> Vec<(&'static str, String)> {
        let context = plan.context();
        let Degrees { pipeline, replicate, shard, tensor } = self.degrees;
        let divided = if shard > 1 { " with a divided optimizer" } else { "" };
        let sequence = if self.sequence_parallel && tensor > 1 { " with sequences divided" } else { "" };
        let csv = if self.schedule.csv { " in the order of `schedule.csv`" } else { "" };
        let blocks: Vec<String> = self.recomputed.iter().map(usize::to_string).collect();
        let recompute = if blocks.is_empty() { "none".into() } else { format!("blocks {}", blocks.join(", ")) };
        let mut stages = String::new();
        if let Some(all) = &self.stages {
            stages += "| stage | modules |\n|---|---|\n";
            let row = |(index, names): (usize, &Vec<String>)| {
                let ends = [names.first(), names.last()].map(|name| name.map_or("", String::as_str));
                format!("| {index} | `{}` to `{}` |\n", ends[0], ends[1])
            };
            stages.extend(all.iter().enumerate().map(row));
        }
        let ranks = self.ranks.iter().enumerate().map(|(rank, device)| format!("{rank} {device}"));
        vec![
            ("model", context.model.name().into()),
            ("machine", context.hardware.name().into()),
            ("gpus", self.world_size.to_string()),
            ("pipeline", pipeline.to_string()),
            ("data", format!("{}{divided}", replicate * shard)),
            ("tensor", format!("{tensor}{sequence}")),
            ("schedule", if pipeline > 1 { format!("`{}`{csv}", self.schedule.name) } else { "none".into() }),
            ("recompute", recompute),
            ("batch", self.batch.global.to_string()),
            ("length", self.batch.seq_len.to_string()),
            ("microbatch", self.batch.microbatch.to_string()),
            ("nodes", self.nodes.len().to_string()),
            ("each", self.nodes.first().map_or(String::new(), usize::to_string)),
            ("stages", stages),
            ("ranks", ranks.collect::<Vec<_>>().join(", ")),
        ]
    }
}

/// The device of each rank, counted by tensor, then data, then pipeline, and the ranks of each computer.
fn ranks(context: &Context<'_>, rows: &[DeviceId]) -> Result<(Vec<String>, Vec<usize>), Diagnostic> {
    let devices: Vec<DeviceId> = rows.iter().flat_map(|row| context.runners(*row)).collect();
    let mut counts = BTreeMap::new();
    for device in &devices {
        *counts.entry(context.hardware.devices()[*device].node).or_insert(0) += 1;
    }
    let counts: Vec<usize> = counts.into_values().collect();
    let equal = counts.windows(2).all(|pair| pair[0] == pair[1]);
    if !equal || by_node(context.hardware, devices.clone()) != devices {
        let message = "torchtitan counts ranks by tensor, data and pipeline, and the plan puts them on computers in another order";
        return Err(
            Diagnostic::error(message).hint("nearest: as many GPUs of each computer, with whole stages on each")
        );
    }
    let name = |device: &DeviceId| context.hardware.devices()[*device].name.clone();
    Ok((devices.iter().map(name).collect(), counts))
}

/// The names of a layer's modules.
fn modules(context: &Context<'_>, layer: LayerId) -> Vec<String> {
    match context.model.layers()[layer].kind {
        LayerKind::Embedding(_) => vec!["tok_embeddings".into()],
        LayerKind::Head(_) => vec!["norm".into(), "lm_head".into()],
        // The embedding is before the first block.
        _ => vec![format!("layers.{}", layer.index() - 1)],
    }
}

/// The blocks that the plan computes again.
fn recomputed(context: &Context<'_>, placement: &Placement) -> Vec<usize> {
    let is_block = |layer: &LayerId| matches!(context.model.layers()[*layer].kind, LayerKind::Block(_));
    let again = placement.stages.iter().flat_map(|stage| stage.layers.iter().take(stage.recomputed));
    again.filter(is_block).map(|layer| layer.index() - 1).collect()
}
