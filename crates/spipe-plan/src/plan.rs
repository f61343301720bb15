//! The checked plan and its parts.

use crate::{Placement, Stage, Weights};
use serde::{Deserialize, Serialize};
use spipe_base::{Bytes, DeviceId, Diagnostic, Faults, LayerRange, MemoryId, Position, StageId};
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Architecture, Model};
use std::collections::BTreeMap;

/// What a placement is judged against: the model, the machine, and the costs of one on the other.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The model.
    pub model: &'a Model,
    /// The machine.
    pub hardware: &'a Hardware,
    /// The costs of the one on the other.
    pub cost: &'a CostTable,
}

impl Context<'_> {
    /// What is asked of the model.
    pub fn workload(&self) -> &Workload {
        self.cost.workload()
    }

    /// Whether `device` is a CPU socket.
    pub fn is_cpu(&self, device: DeviceId) -> bool {
        matches!(self.hardware.devices()[device].kind, spipe_hardware::DeviceKind::Socket { .. })
    }

    /// Whether any of `layers` has parameters that are trained.
    pub fn trains(&self, layers: LayerRange) -> bool {
        layers.iter().any(|layer| self.cost.trained_parameters(layer) > 0)
    }

    /// The device that steps a stage: the socket that it names, the one at the memory that it streams from, or its own.
    pub fn steps(&self, stage: &Stage) -> DeviceId {
        let streamed = match stage.weights {
            Weights::Streamed(home) => self.hardware.memories()[home].device,
            Weights::Resident => None,
        };
        stage.optimizer.or(streamed).unwrap_or(stage.device)
    }

    /// The part of `layers` that a backward runs through: none in inference, and none where nothing at or below them trains.
    pub fn backward_of(&self, layers: LayerRange) -> Option<LayerRange> {
        LayerRange::new(layers.first().max(self.cost.without_backward().into()), layers.last())
    }

    /// Whether an iteration reads what the one before has found: the next token of each sequence, or images with less noise.
    pub fn feeds_back(&self) -> bool {
        match (self.model.architecture(), self.workload().mode) {
            (Architecture::Unet(_), mode) => mode != Mode::Train,
            (Architecture::Vision(_), _) => false,
            (_, mode) => mode == Mode::Generate,
        }
    }

    /// Whether the backward of `layers` hands a gradient to the layer before them.
    pub fn passes_gradient(&self, layers: LayerRange) -> bool {
        self.cost.without_backward() < layers.first().index()
    }
}

/// How a planner's search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutcomeStatus {
    /// The plan is the best one for the planner's objective.
    Optimal,
    /// A plan, without proof.
    Feasible,
    /// No plan fits.
    Infeasible,
    /// The limit struck first; the plan is the best one found.
    Stopped,
}

/// What a plan would gain from more of a resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Gain {
    /// Which: `vram`, `dram`, `dram-bandwidth`, `pcie` or `flops`.
    pub resource: String,
    /// How much more, as a fraction.
    pub more: f64,
    /// The simulated iteration of the best plan found with that.
    pub iteration_ms: f64,
    /// The iteration without ÷ that with it.
    pub speedup: f64,
}

/// What a planner says of its plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Outcome {
    /// Which planner.
    pub planner: String,
    /// How its search ended.
    pub status: OutcomeStatus,
    /// A proven lower bound of the iteration time.
    pub objective_ms: Option<f64>,
    /// (simulated − bound) ÷ simulated.
    pub gap: Option<f64>,
    /// The simulated iteration time.
    pub simulated_iteration_ms: Option<f64>,
    /// What it would gain from more of each resource, where that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sensitivity: Vec<Gain>,
}

/// A plan that the checker has accepted: the only kind that can be scheduled.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) model: Model,
    pub(crate) hardware: Hardware,
    pub(crate) cost: CostTable,
    pub(crate) placement: Placement,
    pub(crate) outcome: Option<Outcome>,
    simulated_peaks: BTreeMap<MemoryId, Bytes>,
}

impl Plan {
    /// Checks `placement` and joins it to what it was made for; all faults are reported.
    pub fn new(model: Model, hardware: Hardware, workload: Workload, placement: Placement) -> Result<Self, Faults> {
        Self::located(model, hardware, workload, (placement, &|_| None))
    }

    /// The same for a placement from a file, in which a function finds the stages.
    pub(crate) fn located(
        model: Model,
        hardware: Hardware,
        workload: Workload,
        (placement, position): (Placement, &dyn Fn(StageId) -> Option<Position>),
    ) -> Result<Self, Faults> {
        let cost =
            CostTable::new(&model, &hardware, &workload).map_err(|error| Diagnostic::error(error.to_string()))?;
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        crate::check::check_file(&context, &placement, position)?;
        Ok(Self { model, hardware, cost, placement, outcome: None, simulated_peaks: BTreeMap::new() })
    }

    /// The same placement for another workload, checked anew.
    ///
    /// # Errors
    /// What of the placement does not suit the workload.
    pub fn with_workload(&self, workload: Workload) -> Result<Self, Faults> {
        Self::new(self.model.clone(), self.hardware.clone(), workload, self.placement.clone())
    }

    /// The same with a planner's word on it.
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = Some(outcome);
        self
    }

    /// The same with what each memory held at most when it was simulated.
    pub fn with_simulated_peaks(mut self, peaks: BTreeMap<MemoryId, Bytes>) -> Self {
        self.simulated_peaks = peaks;
        self
    }

    /// What each memory must hold: as it is counted, or as it was simulated where the order of a system holds more than is counted
    /// without knowing it.
    pub fn peaks(&self) -> BTreeMap<MemoryId, Bytes> {
        let total =
            |stages: &BTreeMap<_, crate::StageFootprint>| stages.values().map(crate::StageFootprint::total).sum();
        let counted = crate::footprint(&self.context(), &self.placement);
        let mut peaks: BTreeMap<MemoryId, Bytes> =
            counted.iter().map(|(memory, stages)| (*memory, total(stages))).collect();
        for (memory, simulated) in &self.simulated_peaks {
            let peak = peaks.entry(*memory).or_default();
            *peak = (*peak).max(*simulated);
        }
        peaks
    }

    /// What it was judged against.
    pub fn context(&self) -> Context<'_> {
        Context { model: &self.model, hardware: &self.hardware, cost: &self.cost }
    }

    /// Its stages and system.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// What its planner said.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }
}
