//! The settings that the scripts read: `plan.json`.

use super::{mesh::Places, order::Exported};
use crate::{
    batch::Batch,
    fingerprint::fingerprint,
    network::Network,
    ranks::{Rank, ranks},
};
use serde::Serialize;
use spipe_base::{DataType, StageId};
use spipe_cost::{GradientFormat, compute_type};
use spipe_plan::{Plan, Stage};

/// Everything that the scripts take from the plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
    format_version: u32,
    system: String,
    fingerprint: String,
    model: Network,
    ranks: Vec<Rank>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mesh: Option<Places>,
    stages: Vec<StageSettings>,
    batch: Batch,
    precision: &'static str,
    clip_norm: Option<f64>,
    optimizer: &'static str,
    overlaps: bool,
    /// Whether gradients of several microbatches are summed in 32 bits, where parameters have 16.
    wide_sums: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct StageSettings {
    /// The row of the order: the process, or the place along the pipeline of a mesh.
    rank: usize,
    first_layer: usize,
    last_layer: usize,
    recomputed: usize,
    offloads: bool,
    frozen: Vec<usize>,
    optimizer_on_host: bool,
    computes_in: &'static str,
}

impl Settings {
    /// The settings of a plan with this order.
    pub fn new(plan: &Plan, network: &Network, exported: &Exported) -> Self {
        let (context, placement) = (plan.context(), plan.placement());
        let workload = context.workload();
        let steps_on = |device| {
            let hosted =
                placement.stages.iter().filter(|stage| stage.lead() == device).map(|stage| context.steps(stage));
            hosted.into_iter().find(|worker| *worker != device).unwrap_or(device)
        };
        let stages: Vec<StageSettings> =
            placement.stages.enumerate().map(|(id, stage)| stage_settings(plan, exported, (id, stage))).collect();
        Self {
            format_version: 1,
            system: placement.name().into(),
            fingerprint: fingerprint(plan),
            model: network.clone(),
            ranks: ranks(plan, &exported.processes, steps_on),
            mesh: exported.places.clone(),
            stages,
            batch: Batch::of(&context),
            precision: workload.precision.name(),
            clip_norm: workload.clip_norm.map(f64::from),
            optimizer: workload.optimizer.name(),
            // Replicas reduce their gradients when all backwards are done.
            overlaps: !placement.update.is_phase() && context.mesh().data() == 1,
            wide_sums: workload.formats.gradients != Some(GradientFormat::Bf16),
        }
    }

    /// The processes.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Whether any rank is a GPU.
    pub fn has_gpus(&self) -> bool {
        self.ranks.iter().any(Rank::is_gpu)
    }

    /// Whether some ranks are GPUs and others are not.
    pub fn is_mixed(&self) -> bool {
        self.has_gpus() && !self.ranks.iter().all(Rank::is_gpu)
    }

    /// Whether any stage offloads activations.
    pub fn offloads(&self) -> bool {
        self.stages.iter().any(|stage| stage.offloads)
    }

    /// The mesh in words, if there is one.
    pub fn mesh_words(&self) -> String {
        self.mesh.as_ref().map_or(String::new(), Places::words)
    }

    /// Ranks and stages as a table of Markdown.
    pub fn table(&self) -> String {
        let mut table =
            String::from("| stage | rank | device | layers | recomputed | optimizer |\n|---|---|---|---|---|---|\n");
        for (index, stage) in self.stages.iter().enumerate() {
            let processes = self.mesh.as_ref().map_or(vec![stage.rank], |mesh| mesh.of_row(stage.rank));
            let Rank { device, kind, .. } = &self.ranks[processes[0]];
            let processes: Vec<String> = processes.iter().map(usize::to_string).collect();
            let optimizer = if stage.optimizer_on_host { "host" } else { "device" };
            table += &format!(
                "| {index} | {} | {device} ({kind}) | {}..{} | {} | {optimizer} |\n",
                processes.join(" "),
                stage.first_layer,
                stage.last_layer,
                stage.recomputed
            );
        }
        table
    }
}

fn stage_settings(plan: &Plan, exported: &Exported, (id, stage): (StageId, &Stage)) -> StageSettings {
    let context = plan.context();
    let layers = context.model.layers();
    let device = &context.hardware.devices()[stage.lead()];
    StageSettings {
        rank: exported.rows.iter().position(|rank| *rank == stage.lead()).unwrap_or(id.index()),
        first_layer: stage.layers.first().index(),
        last_layer: stage.layers.last().index(),
        recomputed: stage.recomputed,
        offloads: stage.offload.is_some(),
        frozen: stage.layers.iter().filter(|layer| !layers[*layer].learns()).map(|layer| layer.index()).collect(),
        optimizer_on_host: context.steps(stage) != stage.lead(),
        computes_in: match compute_type(device, context.workload().precision) {
            DataType::Bf16 => "bf16",
            DataType::F16 => "fp16",
            _ => "fp32",
        },
    }
}
