//! Placements: stages, and the system that schedules them.

use crate::{Stage, System};
use serde::{Deserialize, Serialize};
use spipe_base::{DeviceId, IdVec, StageId};
use spipe_hardware::Hardware;

/// The fewest stages that a device has in whole of what all share: one that computes, and one that comes.
pub const FEWEST_RESIDENT: u64 = 2;

/// One microbatch of activations that is computed on, and one that moves.
pub const FEWEST_OFFLOAD_SLOTS: u64 = 2;

/// What a system leaves to choose. What is not given is the system's own default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Knobs {
    /// More warm-up forwards of a CPU stage and those before it (`hybrid`).
    #[serde(skip_serializing_if = "is_zero")]
    pub head_start: u64,
    /// Microbatches that go through one chunk before the next (`gis`, `gis-h`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u64>,
    /// Activations of one microbatch that a device may hold (`zb-1p`, `zb-2p`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// How many microbatches of what its stages offload a device may hold on their way out, and as many on their way back, at least
    /// 2: one that is computed on, and one that moves; 2 without (pipelines).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offload_slots: Option<u64>,
    /// Whether sockets step, of what is there to step, what the next iteration needs first, not what came first (pipelines whose
    /// steps end with their iteration, and what all GPUs share).
    #[serde(skip_serializing_if = "is_false")]
    pub urgent_steps: bool,
    /// Whether gradients leave with each microbatch and are added up on the host, so that none stays on a GPU, not once they are complete
    /// (`zero-offload`, `zero-offload-delayed`).
    #[serde(skip_serializing_if = "is_false")]
    pub gradients_leave: bool,
    /// How many GPUs share parameters, gradients and optimizer state, counted from the first; all without (`fsdp`,
    /// `zero-infinity`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<u64>,
    /// k, the layers on the GPU (`superpipeline`); the stages that a GPU has in whole, those used last and those that come, at least 2, and 2
    /// without (`fsdp`, `zero-infinity`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident: Option<u64>,
    /// k′, the layers exchanged at a time (`superpipeline`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<u64>,
    /// Whether unchanged parameters are copied back to the host although they are there (`superpipeline`).
    #[serde(skip_serializing_if = "is_false")]
    pub write_back: bool,
    /// Whether the layers of an exchange are copied one by one, not in one piece (`superpipeline`).
    #[serde(skip_serializing_if = "is_false")]
    pub sequential: bool,
    /// Whether checkpoints are sent only when they are needed (`spipe`; for comparison).
    #[serde(skip_serializing_if = "is_false")]
    pub synchronous_checkpoints: bool,
    /// Whether the optimizer waits for the end of the backward (`spipe`, `zero-offload`, `fsdp`, `zero-infinity`; for comparison); but in
    /// `spipe` the next iteration waits for all steps as well, as with DeepSpeed's and PyTorch's `step()`.
    #[serde(skip_serializing_if = "is_false")]
    pub synchronous_optimizer: bool,
    /// Whether steps taken on trust are undone by arithmetic from their gradients, nearly exactly, instead of from a log of what
    /// was there before, exactly (`spipe`).
    #[serde(skip_serializing_if = "is_false")]
    pub arithmetic_undo: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// Stages in model order, and the system that schedules them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The system.
    pub system: System,
    /// What it leaves to choose.
    pub knobs: Knobs,
    /// The stages, in model order.
    pub stages: IdVec<StageId, Stage>,
    /// The stages of the backward, in model order, where they are not those of the forward.
    pub backward: IdVec<StageId, Stage>,
}

impl Placement {
    /// Stages that serve both passes, under the defaults of `system`.
    pub fn new(system: System, stages: impl IntoIterator<Item = Stage>) -> Self {
        Self { system, knobs: Knobs::default(), stages: stages.into_iter().collect(), backward: IdVec::new() }
    }

    /// The same with those knobs.
    pub fn with_knobs(self, knobs: Knobs) -> Self {
        Self { knobs, ..self }
    }

    /// The same with those stages for the backward.
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

    /// The devices that compute, each once, in the order of the first stages on them.
    pub fn devices(&self) -> Vec<DeviceId> {
        let mut devices = Vec::new();
        for stage in self.all_stages() {
            if !devices.contains(&stage.device) {
                devices.push(stage.device);
            }
        }
        devices
    }

    /// The GPUs that share everything ([`crate::Family::Sharded`]): the first of the machine, as many as the knob says.
    pub fn participants(&self, hardware: &Hardware) -> Vec<DeviceId> {
        let gpus = hardware.devices().enumerate().filter(|(_, device)| device.is_gpu()).map(|(id, _)| id);
        gpus.take(self.knobs.shards.map_or(usize::MAX, |shards| shards as usize)).collect()
    }

    /// How many stages a device has in whole of what all share ([`crate::Family::Sharded`]).
    pub fn resident_stages(&self) -> usize {
        self.knobs.resident.unwrap_or(FEWEST_RESIDENT) as usize
    }

    /// How many microbatches of what its stages offload each device may hold on their way out, and as many on their way back.
    pub fn offload_slots(&self) -> u64 {
        self.knobs.offload_slots.unwrap_or(FEWEST_OFFLOAD_SLOTS)
    }

    /// How many stages each device has, rounded up.
    pub fn chunks(&self) -> usize {
        self.stages.len().div_ceil(self.devices().len().max(1))
    }
}

/// How many microbatches a stage holds at most between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight(pub u64);

impl InFlight {
    /// The peak of stage `stage` of p under the placement's system where it has a closed form: m for GPipe, min(m, p − i) for
    /// 1F1B, min(m, p − i + H) where a CPU stage lies at or after stage i for the hybrid. Where an algorithm makes the order, the
    /// 1 that is certain; lowering counts the rest.
    pub fn of(placement: &Placement, stage: StageId, microbatches: u64, is_cpu: impl Fn(DeviceId) -> bool) -> Self {
        // Adjacent stages of one device take their turn together.
        let behind = &placement.stages.as_slice()[stage.index()..];
        let after = behind.chunk_by(|stage, next| stage.device == next.device).count() as u64;
        Self(match placement.system {
            System::Gpipe => microbatches,
            System::OneForwardOneBackward
            | System::Checkpointing
            | System::GpuOnly
            | System::CpuOnly
            | System::ZeroOffload
            | System::ZeroOffloadDelayed => after.min(microbatches),
            System::Hybrid => {
                let meets_cpu = behind.iter().any(|stage| is_cpu(stage.device));
                (after + if meets_cpu { placement.knobs.head_start } else { 0 }).min(microbatches)
            }
            _ => 1,
        })
    }
}

/// What a stage holds at most between passes, in microbatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Between forward and the end of the backward, when the device of the stage holds the most bytes.
    pub in_flight: InFlight,
    /// The same at any time.
    pub at_most: u64,
    /// Of these, between the two parts of a split backward.
    pub awaiting_weights: u64,
    /// Outputs that the next stage, on the same device, has not taken yet.
    pub outputs: u64,
    /// Gradients that the stage before, on the same device, has not taken yet.
    pub gradients: u64,
    /// Outputs on their way to another device at once, and as many on their way here.
    pub slots: u64,
}

impl From<InFlight> for Held {
    fn from(in_flight: InFlight) -> Self {
        Self { in_flight, at_most: in_flight.0, awaiting_weights: 1, outputs: 1, gradients: 1, slots: 2 }
    }
}
