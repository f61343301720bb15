//! The checked plan and its parts.

use serde::{Deserialize, Serialize};
use spipe_base::{DeviceId, Diagnostic, Faults, IdVec, LayerRange, Position, StageId};
use spipe_cost::{CostTable, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Recompute};
use std::{fmt, str::FromStr};

/// The systems that a plan can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// All forwards, then all backwards (Huang et al., GPipe, 2019).
    Gpipe,
    /// One forward, one backward (Narayanan et al., PipeDream-Flush, 2021).
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// 1F1B over GPU and CPU stages, where a CPU stage and those before it run more warm-up forwards.
    Hybrid,
}

impl System {
    /// Every system.
    pub const ALL: [Self; 3] = [Self::Gpipe, Self::OneForwardOneBackward, Self::Hybrid];

    /// Its name on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpipe => "gpipe",
            Self::OneForwardOneBackward => "1f1b",
            Self::Hybrid => "hybrid",
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for System {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|system| system.name() == word)
            .ok_or_else(|| format!("`{word}` is no system (known: {})", Self::ALL.map(Self::name).join(", ")))
    }
}

/// What happens to a layer's activations between its forward and its backward.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Activations {
    /// All are kept on the device.
    #[default]
    Saved,
    /// Only the input of the run of layers is kept; the rest is computed again.
    Recomputed,
}

impl Activations {
    /// What the cost model calls it.
    pub const fn recompute(self) -> Recompute {
        match self {
            Self::Saved => Recompute::None,
            Self::Recomputed => Recompute::Full,
        }
    }
}

/// A stage of the pipeline: consecutive layers on one device.
///
/// The first `recomputed` layers are recomputed, the others saved. Recomputing the front of a stage needs only the stage's
/// input, which is there anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Where it runs.
    pub device: DeviceId,
    /// Which layers it has.
    pub layers: LayerRange,
    /// How many of them, counted from the first, are recomputed.
    pub recomputed: usize,
}

impl Stage {
    /// The layers that are recomputed, if any.
    pub fn recomputed_layers(&self) -> Option<LayerRange> {
        let last = self.layers.first().index() + self.recomputed.checked_sub(1)?;
        LayerRange::new(self.layers.first(), last.into())
    }
}

/// Stages in model order, and the system that schedules them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The system.
    pub system: System,
    /// How many more warm-up forwards a CPU stage and those before it run ([`System::Hybrid`] only).
    pub head_start: u64,
    /// The stages, in model order.
    pub stages: IdVec<StageId, Stage>,
}

/// How many microbatches a stage holds at most between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight(pub u64);

impl InFlight {
    /// The peak of stage `stage` of `stages` under `system`: m for GPipe, min(m, p − i) for 1F1B, min(m, p − i + H) where a
    /// CPU stage lies at or after stage i for the hybrid.
    pub fn of(placement: &Placement, stage: StageId, microbatches: u64, is_cpu: impl Fn(DeviceId) -> bool) -> Self {
        let after = (placement.stages.len() - stage.index()) as u64;
        Self(match placement.system {
            System::Gpipe => microbatches,
            System::OneForwardOneBackward => after.min(microbatches),
            System::Hybrid => {
                let meets_cpu = placement.stages.as_slice()[stage.index()..].iter().any(|stage| is_cpu(stage.device));
                (after + if meets_cpu { placement.head_start } else { 0 }).min(microbatches)
            }
        })
    }
}

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
}

/// A plan that the checker has accepted: the only kind that can be scheduled.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) model: Model,
    pub(crate) hardware: Hardware,
    pub(crate) cost: CostTable,
    pub(crate) placement: Placement,
    pub(crate) outcome: Option<Outcome>,
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
        Ok(Self { model, hardware, cost, placement, outcome: None })
    }

    /// The same with a planner's word on it.
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = Some(outcome);
        self
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
