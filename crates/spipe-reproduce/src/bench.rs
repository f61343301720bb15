//! A model on a machine under a workload, on which placements are tried: the bytes that each memory
//! needs, and the iteration time.

use crate::source::Library;
use serde::Deserialize;
use spipe_base::{Bytes, DeviceId, Diagnostic, Faults, SimTime};
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::{Hardware, NetworkFile};
use spipe_model::{Model, Precision};
use spipe_plan::{Context, Mesh, Placement, StageFootprint, System, Team, check, footprint};
use spipe_schedule::lower;
use spipe_sim::iteration_time;

/// The columns of a row that give the model, the machine and the workload.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Setting {
    /// A model file or the name of a shipped model.
    pub model: String,
    /// A hardware profile or the name of a shipped one.
    pub hardware: String,
    /// Tokens per sequence; the model's own if not given.
    pub seq_len: Option<u64>,
    pub microbatch: u64,
    pub microbatches: u64,
    pub precision: Precision,
}

/// A setting with its costs.
pub struct Bench {
    model: Model,
    hardware: Hardware,
    cost: CostTable,
}

/// The bytes that a placement needs in one memory, and the bytes that it can hold.
pub struct Need {
    pub memory: String,
    /// Whether it is the memory of a GPU.
    pub on_gpu: bool,
    pub needed: Bytes,
    pub usable: Bytes,
}

/// A placement with its memory and its simulated time.
pub struct Judged {
    pub placement: Placement,
    pub needs: Vec<Need>,
    /// None if it does not fit.
    pub iteration: Option<SimTime>,
}

impl Judged {
    /// The largest share of a memory that is filled; above 1 where it does not fit.
    fn fill(&self) -> f64 {
        let fill = |need: &Need| need.needed.as_f64() / need.usable.as_f64().max(1.0);
        self.needs.iter().map(fill).fold(0.0, f64::max)
    }

    /// The faster one if both fit, the one that fits, or the one whose fullest memory is less
    /// overfull.
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
    /// Finds the model and the machine of a setting, and computes their costs.
    pub fn new(setting: &Setting, library: Library<'_>) -> Result<Self, Faults> {
        let hardware = (library.hardware)(&setting.hardware)?;
        Self::on(setting, (hardware, Mesh::default()), library)
    }

    /// The same on `count` teams of `members` GPUs each, which divide activations too, over as many computers with a
    /// network as they need.
    pub fn on_teams(
        setting: &Setting,
        (members, count): (usize, usize),
        network: &str,
        library: Library<'_>,
    ) -> Result<Self, Faults> {
        let computer = (library.hardware)(&setting.hardware)?;
        let nodes = (members * count).div_ceil(computer.gpus().count().max(1));
        let network = NetworkFile::parse(network).map_err(Diagnostic::error)?;
        let hardware = if nodes > 1 { computer.on_nodes(nodes as u32, Some(network))? } else { computer };
        let gpus = hardware.devices().enumerate().filter(|(_, device)| device.is_gpu());
        let gpus: Vec<DeviceId> = gpus.map(|(id, _)| id).collect();
        let teams: Vec<Team> = gpus.chunks_exact(members).take(count).map(<[DeviceId]>::to_vec).collect();
        let mesh = Mesh { replicas: vec![teams], sequence: true, ..Mesh::default() };
        Self::on(setting, (hardware, mesh), library)
    }

    fn on(setting: &Setting, (hardware, mesh): (Hardware, Mesh), library: Library<'_>) -> Result<Self, Faults> {
        let model = (library.model)(&setting.model)?;
        let workload = Workload {
            mode: Mode::Train,
            seq_len: setting.seq_len.unwrap_or_else(|| model.seq_len()),
            microbatch: setting.microbatch,
            microbatches: setting.microbatches,
            precision: setting.precision,
            ..Workload::PLAIN
        };
        let cost =
            CostTable::on(&model, &hardware, &workload, &mesh).map_err(|error| Diagnostic::error(error.to_string()))?;
        Ok(Self { model, hardware, cost })
    }

    pub const fn context(&self) -> Context<'_> {
        Context { model: &self.model, hardware: &self.hardware, cost: &self.cost }
    }

    /// The tokens of one iteration.
    pub fn tokens(&self) -> u64 {
        let workload = self.cost.workload();
        workload.seq_len * workload.microbatch * workload.microbatches
    }

    /// The memory that `placement` needs, and its simulated iteration if that fits.
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

    /// The best candidate placement of a system: the fastest that fits, or the one closest to
    /// fitting.
    pub fn best(&self, system: System) -> Option<Judged> {
        let candidates = spipe_planner::candidates(&self.context(), system);
        candidates.into_iter().map(|placement| self.judge(placement)).reduce(Judged::better)
    }
}

/// Bytes in GiB.
pub fn gib(bytes: Bytes) -> f64 {
    bytes.as_f64() / Bytes::gib(1).as_f64()
}
