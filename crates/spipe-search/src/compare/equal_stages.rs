//! The baseline of plans: tensor, pipeline and data parallelism with equal stages, as frameworks run them where nobody
//! searches.
//!
//! ```text
//! mesh × recompute × size of microbatches ─► 1F1B, all blocks in equal stages on GPUs ─► checked, simulated
//! ```
//!
//! Times and bytes are those of plans: the same checker and the same simulator find them.

use crate::{
    error::SearchError,
    request::{meshes::Degrees, spelling::Spelling},
    setting::Setting,
};
use spipe_base::{ActionKind, Bytes, DeviceId, Diagnostic, Faults, LaneId, LayerId, LayerRange, SimTime};
use spipe_cost::{CostError, Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Operation, Operations, Recompute};
use spipe_plan::{Mesh, Placement, Plan, Sharding, Stage, StageFootprint, System, check, footprint};
use spipe_trace::{Metrics, Trace};
use std::{collections::BTreeMap, sync::Arc};

/// The name of plain data parallelism, which is a baseline and no system of plans.
pub const DATA_PARALLEL: &str = "data-parallel";

/// The baselines that are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// The degrees: without a pipeline degree one stage; of the others those that are left out take every value that uses
    /// most GPUs. Without a sharding nothing is divided among replicas.
    pub degrees: Degrees,
    /// The activations that are recomputed; without it, every choice.
    pub recompute: Option<Recompute>,
}

/// A baseline with its best size of microbatches.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// The mesh.
    pub mesh: Mesh,
    /// The recomputed activations.
    pub recompute: Recompute,
    /// The workload of all replicas, whose operations to recompute are those of a selective recompute.
    pub workload: Workload,
    /// The stages.
    pub placement: Placement,
    /// The bytes of the GPU that needs most.
    pub memory: Bytes,
    /// The room of a GPU.
    pub usable: Bytes,
    /// The simulated iteration, or the first fault that the checker finds.
    pub times: Result<Times, Diagnostic>,
}

/// The simulated iteration of a baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// The iteration.
    pub iteration: SimTime,
    /// The share of the GPUs' time that is idle.
    pub bubbles: f64,
    /// The collectives over replicas and contexts, on the device that has most of them.
    pub collectives: SimTime,
    /// The optimizer steps, on the device that has most of them.
    pub optimizer: SimTime,
}

impl Baseline {
    /// Whether each GPU's part fits in its memory.
    pub const fn fits(&self) -> bool {
        self.times.is_ok()
    }

    /// The tokens per second; `None` if it does not fit.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let seconds = self.times.as_ref().ok()?.iteration.to_seconds().get();
        (seconds > 0.0).then(|| self.workload.tokens() as f64 / seconds)
    }

    /// The baseline as a plan.
    ///
    /// # Errors
    /// It does not fit.
    pub fn plan(&self, (model, hardware): (&Model, &Hardware)) -> Result<Plan, SearchError> {
        Ok(Plan::new(model.clone(), hardware.clone(), self.workload, self.placement.clone())?)
    }

    /// Whether it is faster and fits, or if none fits, needs less memory.
    fn better_than(&self, other: &Self) -> bool {
        match (&self.times, &other.times) {
            (Ok(own), Ok(others)) => own.iteration < others.iteration,
            (Err(_), Err(_)) => self.memory < other.memory,
            (own, _) => own.is_ok(),
        }
    }
}

/// The index of the best baseline.
pub fn best(all: &[Baseline]) -> Option<usize> {
    (0..all.len()).reduce(|best, other| if all[other].better_than(&all[best]) { other } else { best })
}

/// Plain data parallelism: every GPU holds the whole model, and the GPUs share the sequences. Of all sizes of microbatches
/// and choices of recompute, the fastest that fits; if none fits, the one that needs the least memory.
///
/// # Errors
/// The reason why there is none: the machine has no GPU, or its GPUs cannot share the sequences.
pub fn data_parallel(inputs: (&Arc<Model>, &Arc<Hardware>), workloads: &[Workload]) -> Result<Baseline, SearchError> {
    let gpus = inputs.1.gpus().count() as u64;
    let degrees = Degrees { tensor: Some(1), data: Some(gpus.max(1)), ..Degrees::default() };
    let mut all = baselines(&Asked { degrees, recompute: None }, inputs, (workloads, Spelling::default()))?;
    let best = best(&all).map(|best| all.swap_remove(best));
    best.ok_or_else(|| SearchError::request("there are no microbatches", "use another batch"))
}

/// The baselines that are asked for, each with its best size of microbatches.
///
/// # Errors
/// The degrees do not divide the model, its batch or the GPUs; parameters are to be sharded; or no mesh has a table of
/// times, with the first reason.
pub fn baselines(
    asked: &Asked,
    (model, hardware): (&Arc<Model>, &Arc<Hardware>),
    (workloads, spelling): (&[Workload], Spelling),
) -> Result<Vec<Baseline>, SearchError> {
    if matches!(asked.degrees.sharding, Some(Sharding::Parameters { .. })) {
        let hint = format!("plan it: {}", spelling.value("system", "fsdp"));
        return Err(SearchError::request("the baseline keeps all parameters of a stage on its GPUs", hint));
    }
    let sharding = asked.degrees.sharding.or(Some(Sharding::None));
    let degrees = Degrees { pipeline: asked.degrees.pipeline.or(Some(1)), sharding, ..asked.degrees };
    let meshes = degrees.meshes((model, hardware), workloads, spelling)?;
    let trains = workloads.iter().any(|workload| workload.mode == Mode::Train);
    let choices = match asked.recompute {
        _ if !trains => vec![Recompute::None],
        Some(given) => vec![given],
        None => Recompute::ALL.to_vec(),
    };
    let (mut all, mut refused) = (Vec::new(), None);
    for mesh in &meshes {
        for recompute in &choices {
            let of = |workload: &Workload| baseline((model, hardware), workload, (mesh, *recompute));
            let even = workloads.iter().filter(|workload| workload.microbatches.is_multiple_of(mesh.data()));
            let mut sizes = Vec::new();
            for found in even.map(of) {
                match found {
                    Ok(found) => sizes.push(found),
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
            all.extend(best(&sizes).map(|best| sizes.swap_remove(best)));
        }
    }
    match refused {
        Some(error) if all.is_empty() => Err(error),
        _ => Ok(all),
    }
}

/// A baseline with this size of microbatches.
fn baseline(
    (model, hardware): (&Arc<Model>, &Arc<Hardware>),
    workload: &Workload,
    (mesh, recompute): (&Mesh, Recompute),
) -> Result<Baseline, SearchError> {
    let ops = if recompute == Recompute::Selective { selected(workload) } else { workload.recompute_ops };
    let workload = Workload { recompute_ops: ops, ..*workload };
    let untimed = |error: CostError| SearchError::Infeasible(Diagnostic::error(error.to_string()));
    let setting = Setting::on(model, hardware, &workload, mesh).map_err(untimed)?;
    let context = setting.context();
    let leads: Vec<_> = mesh.leads().collect();
    let stages = equal(model, leads.len()).into_iter().zip(&leads);
    let stages = stages.flat_map(|(layers, lead)| parts(model, (*lead, layers), recompute == Recompute::Full));
    let placement = Placement::new(System::OneForwardOneBackward, stages);
    // One replica on teams of one device is no entry of a plan.
    let placement = if mesh.is_single() { placement } else { Placement { mesh: mesh.clone(), ..placement } };
    let needs = footprint(&context, &placement);
    let total = |stages: &BTreeMap<_, StageFootprint>| stages.values().map(StageFootprint::total).sum::<Bytes>();
    let own = |lead| hardware.devices()[lead].memory;
    let memory = leads.iter().filter_map(|lead| needs.get(&own(*lead))).map(total).max().unwrap_or_default();
    let usable = leads.iter().map(|lead| hardware.memories()[own(*lead)].usable()).min().unwrap_or_default();
    let times = times(&setting, &placement);
    Ok(Baseline { mesh: mesh.clone(), recompute, workload, placement, memory, usable, times })
}

/// The simulated iteration of a placement, or its first fault.
fn times(setting: &Setting, placement: &Placement) -> Result<Times, Diagnostic> {
    let fault = |faults: Faults| faults.iter().next().cloned();
    if let Err(Some(fault)) = check(&setting.context(), placement).map_err(fault) {
        return Err(fault);
    }
    let simulation = setting.evaluator().checked_simulation(placement);
    let failed = || Diagnostic::error("the simulation of equal stages runs out of memory");
    simulation.map(|simulation| Times::of(&simulation.trace)).ok_or_else(failed)
}

/// The layers of a device as one stage; where blocks are recomputed, each on its own, as a stage for each layer.
fn parts(model: &Model, (lead, layers): (DeviceId, LayerRange), recomputed: bool) -> Vec<Stage> {
    if !recomputed {
        return vec![Stage::new(lead, layers)];
    }
    let part = |layer: LayerId| {
        let stage = LayerRange::new(layer, layer).map(|layers| Stage::new(lead, layers))?;
        Some(if model.layers()[layer].as_block().is_some() { stage.with_everything_recomputed() } else { stage })
    };
    layers.iter().filter_map(part).collect()
}

/// The operations that a selective recompute repeats: the core of attention (Korthikanti et al. 2022, arXiv 2205.05198,
/// section 5), beside those that are repeated anyway.
fn selected(workload: &Workload) -> Operations {
    let mut all = Vec::from(workload.recompute_ops);
    all.push(Operation::Attention);
    Operations::of(&all)
}

/// The layers in `stages` stages with as many blocks each, the first ones with one more if some are left. Layers before the
/// blocks are in the first stage, those behind them in the last one. Models with fewer blocks are divided by layers.
fn equal(model: &Model, stages: usize) -> Vec<LayerRange> {
    let all: Vec<usize> = (0..model.layers().len()).collect();
    let blocks: Vec<usize> =
        all.iter().copied().filter(|at| model.layers()[(*at).into()].as_block().is_some()).collect();
    let parts = if blocks.len() >= stages { &blocks } else { &all };
    let (each, more) = (parts.len() / stages.max(1), parts.len() % stages.max(1));
    let start = |stage: usize| match stage {
        0 => 0,
        stage if stage >= stages => all.len(),
        stage => parts[stage * each + stage.min(more)],
    };
    (0..stages).filter_map(|stage| LayerRange::new(start(stage).into(), (start(stage + 1) - 1).into())).collect()
}

impl Times {
    fn of(trace: &Trace) -> Self {
        let metrics = Metrics::of(trace);
        Self {
            iteration: metrics.iteration,
            bubbles: metrics.bubble_fraction,
            collectives: most(trace, |kind| matches!(kind, ActionKind::Collective(_))),
            optimizer: most(trace, |kind| kind == ActionKind::OptimizerStep),
        }
    }
}

/// The time of the actions of some kinds on the lane that has most of them.
fn most(trace: &Trace, is: impl Fn(ActionKind) -> bool) -> SimTime {
    let mut lanes: BTreeMap<LaneId, SimTime> = BTreeMap::new();
    for span in trace.spans.iter().filter(|span| is(span.kind)) {
        *lanes.entry(span.lane).or_default() += span.duration();
    }
    lanes.into_values().max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped(name: &str) -> Model {
        let (_, text) = spipe_model::shipped().iter().find(|(known, _)| *known == name).unwrap();
        Model::from_toml(name, text).unwrap()
    }

    #[test]
    fn stages_have_as_many_blocks() {
        // An embedding, twelve blocks and a head.
        let model = shipped("gpt2");
        let of = |stages| equal(&model, stages).iter().map(LayerRange::to_string).collect::<Vec<_>>();
        assert_eq!(model.layers().len(), 14);
        assert_eq!(of(1), ["0..13"]);
        assert_eq!(of(3), ["0..4", "5..8", "9..13"]);
        assert_eq!(of(5), ["0..3", "4..6", "7..8", "9..10", "11..13"]);
        let all = equal(&model, 14);
        assert_eq!(all.iter().map(|layers| layers.count()).collect::<Vec<_>>(), [1; 14], "fewer blocks than stages");
    }
}
