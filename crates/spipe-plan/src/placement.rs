//! Placements: stages, and the answers that hold for all of them.

use crate::{GradientsLeave, Mesh, Offload, OrderKind, ShardGroups, Sharding, Stage, System, Update};
use spipe_base::{DeviceId, IdVec, StageId};
use spipe_hardware::Hardware;

/// The fewest gathered stages of a replica with sharded parameters: one that computes, and one that is
/// being gathered.
pub const FEWEST_RESIDENT: u64 = 2;

/// The fewest offload slots per direction: one for the microbatch in computation, and one for a
/// copy under way.
pub const FEWEST_OFFLOAD_SLOTS: u64 = 2;

/// Stages in model order, and the answers that hold for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The preset that the answers fit: its name, and what its row leaves to the plan.
    pub system: System,
    /// The replicas, and what is divided among them. On the mesh of a [`Context`](crate::Context), stages name the teams of
    /// its first replica, and this one is the same or empty.
    pub mesh: Mesh,
    /// The order in which devices compute.
    pub order: OrderKind,
    /// The time of optimizer steps.
    pub update: Update,
    /// The time at which gradients leave for hosts that run steps.
    pub gradients_leave: GradientsLeave,
    /// The copies of offloaded activations.
    pub offload: Offload,
    /// The stages, in model order.
    pub stages: IdVec<StageId, Stage>,
    /// The stages of the backward, in model order; empty if they are those of the forward.
    pub backward: IdVec<StageId, Stage>,
}

impl Placement {
    /// A placement with the same stages in both passes and the answers of `system`, with default options.
    pub fn new(system: System, stages: impl IntoIterator<Item = Stage>) -> Self {
        let preset = system.preset();
        Self {
            system,
            mesh: Mesh { sharding: preset.sharding, ..Mesh::default() },
            order: preset.order,
            update: preset.update,
            gradients_leave: GradientsLeave::Complete,
            offload: Offload { slots: None, in_turn: preset.in_turn },
            stages: stages.into_iter().collect(),
            backward: IdVec::new(),
        }
    }

    /// A placement with answers of its own, which need not fit a preset.
    pub fn mixed((order, update): (OrderKind, Update), stages: impl IntoIterator<Item = Stage>) -> Self {
        Self { order, update, ..Self::new(System::Mixed, stages) }
    }

    /// The same placement with its own stages for the backward.
    pub fn with_backward(self, stages: impl IntoIterator<Item = Stage>) -> Self {
        Self { backward: stages.into_iter().collect(), ..self }
    }

    /// The stages of the backward, in model order.
    pub fn backward_stages(&self) -> &IdVec<StageId, Stage> {
        if self.backward.is_empty() { &self.stages } else { &self.backward }
    }

    /// All stages, those of the forward first.
    pub fn all_stages(&self) -> impl Iterator<Item = &Stage> {
        self.stages.iter().chain(&self.backward)
    }

    /// The devices that compute, without repetition, in the order of their first stages.
    pub fn devices(&self) -> Vec<DeviceId> {
        let mut devices = Vec::new();
        for stage in self.all_stages() {
            if !devices.contains(&stage.lead()) {
                devices.push(stage.lead());
            }
        }
        devices
    }

    /// The offload slots of each device per direction, in microbatches.
    pub fn offload_slots(&self) -> u64 {
        self.offload.slots.unwrap_or(FEWEST_OFFLOAD_SLOTS)
    }

    /// Stages per device, rounded up.
    pub fn chunks(&self) -> usize {
        self.stages.len().div_ceil(self.devices().len().max(1))
    }
}

impl Placement {
    /// The name under which the placement is reported: that of its preset.
    pub const fn name(&self) -> &'static str {
        self.system.name()
    }

    /// The name in messages of that which fixes the answers: the preset, or the order where there is none.
    pub(crate) fn fixed_by(&self) -> String {
        match self.system {
            System::Mixed if self.shards_parameters() => "a mesh with sharded parameters".into(),
            System::Mixed => format!("order `{}`", self.order),
            system => format!("system `{system}`"),
        }
    }
}

impl Placement {
    /// Whether parameters are divided among replicas, each of which runs all layers.
    pub const fn shards_parameters(&self) -> bool {
        matches!(self.mesh.sharding, Sharding::Parameters { .. })
    }

    /// The mesh on whose teams the stages are; none where parameters are divided among replicas of the placement's own.
    pub fn mesh_of_teams(&self) -> Mesh {
        if self.shards_parameters() { Mesh::default() } else { self.mesh.clone() }
    }

    /// The devices among which parameters are divided, one for each replica.
    pub fn replicas(&self) -> Vec<DeviceId> {
        self.mesh.replicas.iter().flatten().flatten().copied().collect()
    }

    /// The groups of replicas that have one copy of the parameters each, divided among the devices of the group.
    pub fn shard_groups(&self) -> ShardGroups {
        let devices = self.replicas();
        let size = match self.mesh.sharding {
            Sharding::Parameters { group: Some(group), .. } => group as usize,
            _ => devices.len(),
        };
        ShardGroups::new(devices, size)
    }

    /// The gathered stages of a replica with sharded parameters.
    pub fn resident_stages(&self) -> usize {
        match self.mesh.sharding {
            Sharding::Parameters { resident: Some(resident), .. } => resident as usize,
            _ => FEWEST_RESIDENT as usize,
        }
    }

    /// Whether replicas that shard parameters gather each stage once in an iteration, and keep it (ZeRO stage 2).
    pub fn gathers_once(&self) -> bool {
        let all = self.stages.len() as u64;
        matches!(self.mesh.sharding, Sharding::Parameters { resident: Some(resident), .. } if resident >= all)
    }

    /// The same placement with a replica on each of these devices.
    pub fn over(self, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        let replicas = devices.into_iter().map(|device| vec![vec![device]]).collect();
        Self { mesh: Mesh { replicas, ..self.mesh }, ..self }
    }

    /// The same placement with a replica on each of the machine's first `count` GPUs, or on all of them.
    pub fn over_gpus(self, hardware: &Hardware, count: Option<u64>) -> Self {
        let gpus = hardware.gpus();
        self.over(gpus.take(count.map_or(usize::MAX, |count| count as usize)))
    }

    /// The devices that compute: those of the stages, or of all replicas.
    pub fn computing(&self) -> Vec<DeviceId> {
        if self.shards_parameters() { self.replicas() } else { self.devices() }
    }

    /// Whether parameters stay on the device of their stage, and microbatches flow through the stages.
    pub const fn is_pipeline(&self) -> bool {
        self.order.is_pipeline() && !self.shards_parameters()
    }
}

/// The most microbatches that a stage holds between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight(pub u64);

impl InFlight {
    /// The peak of stage i = `stage` of p stages with m = `microbatches`, where the system has a
    /// closed form:
    ///
    /// - GPipe: m;
    /// - 1F1B: min(m, p − i);
    /// - hybrid: min(m, p − i + H) if stage i or a later one is on a CPU, with head start H.
    ///
    /// For systems whose order comes from an algorithm it is the certain minimum, 1; [`Held`] has
    /// the count of a known order.
    pub fn of(placement: &Placement, stage: StageId, microbatches: u64, is_cpu: impl Fn(DeviceId) -> bool) -> Self {
        // Adjacent stages of one device run as one stage.
        let behind = &placement.stages.as_slice()[stage.index()..];
        let after = behind.chunk_by(|stage, next| stage.team == next.team).count() as u64;
        Self(match placement.order {
            _ if placement.shards_parameters() => 1,
            OrderKind::Gpipe => microbatches,
            OrderKind::OneForwardOneBackward { head_start } => {
                let meets_cpu = || behind.iter().any(|stage| is_cpu(stage.lead()));
                (after + if head_start > 0 && meets_cpu() { head_start } else { 0 }).min(microbatches)
            }
            _ => 1,
        })
    }
}

/// The most that a stage holds between passes under a known order, in microbatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Between forward and the end of the backward, at the time when the device holds the most
    /// bytes.
    pub in_flight: InFlight,
    /// Between forward and the end of the backward, at any time.
    pub at_most: u64,
    /// Between the two parts of a split backward; included in `at_most`.
    pub awaiting_weights: u64,
    /// Outputs that the next stage, on the same device, has not consumed yet.
    pub outputs: u64,
    /// Gradients that the stage before, on the same device, has not consumed yet.
    pub gradients: u64,
    /// Outputs being copied to another device, and as many arriving from one.
    pub slots: u64,
}

impl From<InFlight> for Held {
    fn from(in_flight: InFlight) -> Self {
        Self { in_flight, at_most: in_flight.0, awaiting_weights: 1, outputs: 1, gradients: 1, slots: 2 }
    }
}
