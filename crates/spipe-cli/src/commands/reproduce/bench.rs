//! A model on a machine under a workload, to try placements on: what each memory must hold, and how fast those are that fit.

use crate::{Failure, input};
use serde::Deserialize;
use spipe_base::{Bytes, Diagnostic, Faults, SimTime};
use spipe_cost::{CostTable, Mode, Optimizer, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Attention, Model, Precision};
use spipe_plan::{Context, Placement, StageFootprint, System, check, footprint};
use spipe_schedule::lower;
use spipe_sim::iteration_time;

/// The columns of a row that say what is trained where.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Setting {
    /// A model file or the name of a shipped model.
    pub model: String,
    /// A hardware profile or the name of a shipped one.
    pub hardware: String,
    /// The model's own if not given.
    pub seq_len: Option<u64>,
    pub microbatch: u64,
    pub microbatches: u64,
    pub precision: Precision,
}

/// What a row's setting comes to.
pub struct Bench {
    model: Model,
    hardware: Hardware,
    cost: CostTable,
}

/// What one memory must hold, and can.
pub struct Need {
    pub memory: String,
    /// Whether it is a GPU's.
    pub on_gpu: bool,
    pub needed: Bytes,
    pub usable: Bytes,
}

/// A placement with what it comes to.
pub struct Judged {
    pub placement: Placement,
    pub needs: Vec<Need>,
    /// Nothing if it does not fit.
    pub iteration: Option<SimTime>,
}

impl Judged {
    /// By how much the fullest memory is filled.
    fn fill(&self) -> f64 {
        let fill = |need: &Need| need.needed.as_f64() / need.usable.as_f64().max(1.0);
        self.needs.iter().map(fill).fold(0.0, f64::max)
    }

    /// The faster of two that fit; the one that fits; the one that lacks less.
    fn better(self, other: Self) -> Self {
        match (self.iteration, other.iteration) {
            (Some(own), Some(others)) if others < own => other,
            (None, Some(_)) => other,
            (None, None) if other.fill() < self.fill() => other,
            _ => self,
        }
    }
}

impl Bench {
    /// Reads model and machine.
    pub fn new(setting: &Setting) -> Result<Self, Faults> {
        let model = input::model(&setting.model).map_err(faults)?;
        let hardware = input::hardware(&setting.hardware).map_err(faults)?;
        let workload = Workload {
            mode: Mode::Train,
            seq_len: setting.seq_len.unwrap_or_else(|| model.seq_len()),
            microbatch: setting.microbatch,
            microbatches: setting.microbatches,
            precision: setting.precision,
            optimizer: Optimizer::Adamw,
            attention: Attention::Fused,
            clip_norm: None,
        };
        let cost =
            CostTable::new(&model, &hardware, &workload).map_err(|error| Diagnostic::error(error.to_string()))?;
        Ok(Self { model, hardware, cost })
    }

    pub const fn context(&self) -> Context<'_> {
        Context { model: &self.model, hardware: &self.hardware, cost: &self.cost }
    }

    /// The tokens of an iteration.
    pub fn tokens(&self) -> u64 {
        let workload = self.cost.workload();
        workload.seq_len * workload.microbatch * workload.microbatches
    }

    /// What `placement` needs, and how long an iteration takes where that fits.
    pub fn judge(&self, placement: Placement) -> Judged {
        let context = self.context();
        let needs = footprint(&context, &placement).into_iter().map(|(id, stages)| {
            let memory = &self.hardware.memories()[id];
            Need {
                memory: memory.name.clone(),
                on_gpu: self.hardware.devices().iter().any(|device| device.is_gpu() && device.memory == id),
                needed: stages.values().map(StageFootprint::total).sum(),
                usable: memory.usable(),
            }
        });
        let needs = needs.collect();
        let fits = check(&context, &placement).is_ok();
        let program = if fits { lower(&context, &placement).ok() } else { None };
        let iteration = program.as_ref().and_then(iteration_time);
        Judged { placement, needs, iteration }
    }

    /// The best of what a system leaves open: the fastest that fits, or what lacks least.
    pub fn best(&self, system: System) -> Option<Judged> {
        let candidates = spipe_planner::candidates(&self.context(), system);
        candidates.into_iter().map(|placement| self.judge(placement)).reduce(Judged::better)
    }
}

fn faults(failure: Failure) -> Faults {
    match failure {
        Failure::Input(faults) | Failure::Arguments(faults) => faults,
        other => Diagnostic::error(other.to_string()).into(),
    }
}

/// 2³⁰ bytes.
pub fn gib(bytes: Bytes) -> f64 {
    bytes.as_f64() / Bytes::gib(1).as_f64()
}
