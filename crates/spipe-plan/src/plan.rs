//! The checked plan and its parts.

use crate::{
    Context, Placement, Stage, StageFootprint,
    check::{check_at, check_mesh, undivided},
    footprint,
};
use serde::{Deserialize, Serialize};
use spipe_base::{Bytes, DeviceId, Faults, MemoryId, Position, StageId};
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::{Hardware, Runtime};
use spipe_model::Model;
use std::collections::{BTreeMap, BTreeSet};

/// How a planner's search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutcomeStatus {
    /// The plan is proven optimal for the planner's objective.
    Optimal,
    /// A plan without proof of optimality.
    Feasible,
    /// No plan fits.
    Infeasible,
    /// The search reached its limit; the plan is the best one found.
    Stopped,
}

/// The gain of a plan from more of one resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Gain {
    /// The resource: `vram`, `dram`, `dram-bandwidth`, `pcie` or `flops`.
    pub resource: String,
    /// The addition, as a fraction of the resource.
    pub more: f64,
    /// The simulated iteration time of the best plan found with the addition.
    pub iteration_ms: f64,
    /// The iteration time without the addition ÷ the one with it.
    pub speedup: f64,
}

/// The error that measured runs of a plan's class had on a fitted machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExpectedError {
    /// The class of runs, such as `pipeline`.
    pub class: String,
    /// The number of its measured runs; 0 if constants were fitted on other classes alone.
    pub runs: u32,
    /// The mean absolute error of their predicted iterations, as a fraction.
    pub mean: f64,
    /// The largest absolute error.
    pub largest: f64,
}

/// A planner's report on its plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Outcome {
    /// The planner.
    pub planner: String,
    /// How its search ended.
    pub status: OutcomeStatus,
    /// A proven lower bound of the iteration time.
    pub objective_ms: Option<f64>,
    /// (simulated − bound) ÷ simulated.
    pub gap: Option<f64>,
    /// The simulated iteration time.
    pub simulated_iteration_ms: Option<f64>,
    /// The gain from more of each resource, if a sensitivity analysis was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sensitivity: Vec<Gain>,
    /// The error that its class of runs had, if the machine's constants are fitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_error: Option<ExpectedError>,
    /// The course of the search, which a plan file leaves out: it differs from run to run.
    #[serde(default)]
    pub search: SearchRecord,
}

/// The course of a planner's search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SearchRecord {
    /// Why it ended: `limit`, `gap`, `effort`, `exhausted` or `interrupted`.
    pub ended: Option<String>,
    /// The iteration of the fastest plan found, where a plan within 1 % that is easier to read was
    /// preferred.
    pub fastest_iteration_ms: Option<f64>,
    /// The plans that were faster than all before them.
    pub incumbents: Vec<Incumbent>,
    /// By memory, the least capacity with which some plan exists while the others stay as they are;
    /// none where the time limit came first.
    pub least_bytes: BTreeMap<String, Option<Bytes>>,
    /// By memory, the least capacity with which a plan was found: the same, or where the time limit came first an
    /// upper bound of it.
    pub least_bytes_found: BTreeMap<String, Bytes>,
    /// By memory, the iteration of a plan with that capacity.
    pub least_iteration_ms: BTreeMap<String, Option<f64>>,
    /// The engines that run the plan; none if it was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engines: Option<Vec<EngineCommand>>,
}

/// An engine that runs a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct EngineCommand {
    /// The engine: `run` for this program's own executor, `torch`, `fsdp` or `deepspeed` for exports.
    pub engine: String,
    /// The command that runs or exports the plan; words in capitals are to be filled in.
    pub command: String,
    /// Whether the engine has run plans on a GPU.
    pub tested_on_gpu: bool,
}

/// A plan that was faster than all before it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Incumbent {
    /// When it was found, from the start of the search.
    pub ms: f64,
    /// Its iteration time.
    pub iteration_ms: f64,
    /// The lower bound of all plans that was proven by then; zero if none was.
    pub bound_ms: f64,
}

/// A plan that the checker has accepted: the only kind that can be scheduled.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) model: Model,
    pub(crate) hardware: Hardware,
    pub(crate) cost: CostTable,
    pub(crate) placement: Placement,
    pub(crate) outcome: Option<Outcome>,
    simulated_peaks: BTreeMap<MemoryId, (Bytes, MemoryParts)>,
}

/// The bytes of a memory by part, such as `weights` and `activations`.
pub type MemoryParts = BTreeMap<String, Bytes>;

impl Plan {
    /// Checks `placement` and joins it to the model, the machine and the workload.
    ///
    /// # Errors
    /// Every fault of the placement.
    pub fn new(model: Model, hardware: Hardware, workload: Workload, placement: Placement) -> Result<Self, Faults> {
        Self::located(model, hardware, workload, (placement, &|_| None))
    }

    /// The same for a placement from a file; `position` locates its stages there.
    pub(crate) fn located(
        model: Model,
        hardware: Hardware,
        workload: Workload,
        (placement, position): (Placement, &dyn Fn(StageId) -> Option<Position>),
    ) -> Result<Self, Faults> {
        let mesh = placement.mesh_of_teams();
        check_mesh(&hardware, &mesh)?;
        let cost = CostTable::on(&model, &hardware, &workload, &mesh).map_err(undivided)?;
        let context = Context { model: &model, hardware: &hardware, cost: &cost };
        check_at(&context, &placement, position)?;
        Ok(Self { model, hardware, cost, placement, outcome: None, simulated_peaks: BTreeMap::new() })
    }

    /// The same placement for another workload, checked anew.
    ///
    /// # Errors
    /// Every fault of the placement under `workload`.
    pub fn with_workload(&self, workload: Workload) -> Result<Self, Faults> {
        Self::new(self.model.clone(), self.hardware.clone(), workload, self.placement.clone())
    }

    /// The same placement under another runtime, checked anew.
    ///
    /// # Errors
    /// Every fault of the placement under `runtime`.
    pub fn under(&self, runtime: Runtime) -> Result<Self, Faults> {
        let hardware = self.hardware.clone().under(runtime);
        Self::new(self.model.clone(), hardware, self.cost.whole_workload(), self.placement.clone())
    }

    /// Whether predictions of the runtime's constants were never compared with measured runs of the system.
    pub fn is_estimate(&self) -> bool {
        let known = self.outcome.as_ref().and_then(|outcome| outcome.expected_error.as_ref());
        !self.hardware.runtime().is_measured_for(self.placement.system.name())
            && known.is_none_or(|known| known.runs == 0)
    }

    /// The same plan with a planner's report on it.
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = Some(outcome);
        self
    }

    /// The same plan with the simulated peak of each memory and its parts.
    pub fn with_simulated_peaks(mut self, peaks: BTreeMap<MemoryId, (Bytes, MemoryParts)>) -> Self {
        self.simulated_peaks = peaks;
        self
    }

    /// The devices that compute or run an optimizer step, in the order of the machine.
    pub fn devices(&self) -> BTreeSet<DeviceId> {
        let (context, placement) = (self.context(), &self.placement);
        let shared = placement.shards_parameters();
        let computing = placement.computing_in(&context);
        let mut devices: BTreeSet<DeviceId> = computing.iter().copied().collect();
        let trains = context.workload().mode == Mode::Train;
        let run = |stage: &Stage| {
            let runners = if shared { vec![stage.lead()] } else { context.runners(stage.lead()) };
            runners.into_iter().map(|device| context.as_run_by(stage, device)).collect::<Vec<_>>()
        };
        let stages = placement.all_stages().filter(|stage| trains && context.trains(stage.layers));
        for stage in stages.flat_map(run) {
            match context.steps(&stage) {
                own if own == stage.lead() => {}
                // Each GPU's part is updated by the socket next to it.
                _ if shared => devices.extend(computing.iter().filter_map(|gpu| {
                    self.hardware.host_memory(*gpu).and_then(|host| self.hardware.memories()[host].device)
                })),
                socket => drop(devices.insert(socket)),
            }
        }
        devices
    }

    /// The other devices of the machine, in its order: the plan leaves them without work.
    pub fn idle_devices(&self) -> Vec<DeviceId> {
        let busy = self.devices();
        self.hardware.devices().ids().filter(|id| !busy.contains(id)).collect()
    }

    /// The peak of each memory: the counted footprint, or the simulated peak if that is higher. It
    /// is higher where the footprint does not know the order of the system and counts only the
    /// certain part.
    pub fn peaks(&self) -> BTreeMap<MemoryId, Bytes> {
        let total = |stages: &BTreeMap<_, StageFootprint>| stages.values().map(StageFootprint::total).sum();
        let counted = footprint(&self.context(), &self.placement);
        let mut peaks: BTreeMap<MemoryId, Bytes> =
            counted.iter().map(|(memory, stages)| (*memory, total(stages))).collect();
        for (memory, (simulated, _)) in &self.simulated_peaks {
            let peak = peaks.entry(*memory).or_default();
            *peak = (*peak).max(*simulated);
        }
        peaks
    }

    /// The parts of the peak of each simulated memory; they add up to [`peaks`](Self::peaks). Where the
    /// footprint counts more than the simulation holds, the rest is room for copies that may be late:
    /// it is part of `buffers`.
    pub fn memory_parts(&self) -> BTreeMap<MemoryId, MemoryParts> {
        let peaks = self.peaks();
        let simulated = self.simulated_peaks.iter().map(|(memory, (_, parts))| {
            let mut parts = parts.clone();
            let sum: Bytes = parts.values().copied().sum();
            let rest = peaks.get(memory).map_or(Bytes::ZERO, |peak| peak.saturating_sub(sum));
            if rest > Bytes::ZERO {
                *parts.entry("buffers".into()).or_default() += rest;
            }
            (*memory, parts)
        });
        let counted = peaks.iter().map(|(memory, peak)| (*memory, MemoryParts::from([("buffers".into(), *peak)])));
        // Later entries replace earlier ones: a memory that no simulation has used holds buffers alone.
        if self.simulated_peaks.is_empty() { BTreeMap::new() } else { counted.chain(simulated).collect() }
    }

    /// Model, machine and costs.
    pub fn context(&self) -> Context<'_> {
        Context { model: &self.model, hardware: &self.hardware, cost: &self.cost }
    }

    /// The stages and their system.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The planner's report, if there is one.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }
}
