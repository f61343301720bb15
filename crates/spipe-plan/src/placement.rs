//! Placements: stages, and the system that schedules them.

use crate::{Family, OrderKind, Stage, System, Update, Vee};
use serde::{Deserialize, Serialize};
use spipe_base::{DeviceId, IdVec, StageId};
use spipe_hardware::Hardware;

/// The fewest gathered stages per device of a sharded placement: one that computes, and one that is
/// being gathered.
pub const FEWEST_RESIDENT: u64 = 2;

/// The fewest offload slots per direction: one for the microbatch in computation, and one for a
/// copy under way.
pub const FEWEST_OFFLOAD_SLOTS: u64 = 2;

/// The options of a system. Those not given have the system's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Knobs {
    /// Additional warm-up forwards of a CPU stage and of the stages before it (`hybrid`).
    #[serde(skip_serializing_if = "is_zero")]
    pub head_start: u64,
    /// Microbatches per group: a group passes through one chunk before the next (`gis`, `gis-h`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u64>,
    /// The most activations, in microbatches of one stage, that a device may hold (`zb-1p`,
    /// `zb-2p`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// Offload slots of a device per direction, in microbatches: at least 2, one in computation and
    /// one being copied; default 2 (pipelines).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offload_slots: Option<u64>,
    /// Whether a socket gives priority to the optimizer steps that the next iteration needs first;
    /// otherwise it runs them in order of arrival (pipelines without stale gradients, and sharded
    /// systems).
    #[serde(skip_serializing_if = "is_false")]
    pub urgent_steps: bool,
    /// Whether gradients are copied to the host after each microbatch and accumulated there, so
    /// that no GPU holds a sum; otherwise they are copied once, when complete (`zero-offload`,
    /// `zero-offload-delayed`).
    #[serde(skip_serializing_if = "is_false")]
    pub gradients_leave: bool,
    /// The number of GPUs, counted from the first, over which parameters, gradients and optimizer
    /// state are sharded; default all (`fsdp`, `zero-infinity`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<u64>,
    /// k, the resident layers of a GPU (`superpipeline`); the gathered stages of a GPU, those used
    /// last and those being gathered, at least 2, default 2 (`fsdp`, `zero-infinity`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident: Option<u64>,
    /// k′, the layers exchanged at a time (`superpipeline`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<u64>,
    /// Whether parameters are copied back to the host although the host has them unchanged
    /// (`superpipeline`).
    #[serde(skip_serializing_if = "is_false")]
    pub write_back: bool,
    /// Whether the layers of an exchange are copied one by one instead of together
    /// (`superpipeline`).
    #[serde(skip_serializing_if = "is_false")]
    pub sequential: bool,
    /// Whether checkpoints are sent only in the step before their use (`spipe`; for comparison).
    #[serde(skip_serializing_if = "is_false")]
    pub synchronous_checkpoints: bool,
    /// Whether the optimizer waits for the end of the backward (`spipe`, `zero-offload`, `fsdp`,
    /// `zero-infinity`; for comparison). Except in `spipe`, the next iteration also waits for all
    /// optimizer steps, as with DeepSpeed's and PyTorch's `step()`.
    #[serde(skip_serializing_if = "is_false")]
    pub synchronous_optimizer: bool,
    /// Whether speculative optimizer steps are undone by arithmetic from their gradients, which is
    /// not exact to the last bit, instead of from an undo log, which is (`spipe`).
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
    /// Its options.
    pub knobs: Knobs,
    /// The stages, in model order.
    pub stages: IdVec<StageId, Stage>,
    /// The stages of the backward, in model order; empty if they are those of the forward.
    pub backward: IdVec<StageId, Stage>,
}

impl Placement {
    /// A placement with the same stages in both passes and the default options of `system`.
    pub fn new(system: System, stages: impl IntoIterator<Item = Stage>) -> Self {
        Self { system, knobs: Knobs::default(), stages: stages.into_iter().collect(), backward: IdVec::new() }
    }

    /// The same placement with other options.
    pub fn with_knobs(self, knobs: Knobs) -> Self {
        Self { knobs, ..self }
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
            if !devices.contains(&stage.device) {
                devices.push(stage.device);
            }
        }
        devices
    }

    /// The GPUs of a sharded placement ([`crate::Family::Sharded`]): the first `knobs.shards` of
    /// the machine.
    pub fn participants(&self, hardware: &Hardware) -> Vec<DeviceId> {
        let gpus = hardware.devices().enumerate().filter(|(_, device)| device.is_gpu()).map(|(id, _)| id);
        gpus.take(self.knobs.shards.map_or(usize::MAX, |shards| shards as usize)).collect()
    }

    /// The gathered stages per device of a sharded placement ([`crate::Family::Sharded`]).
    pub fn resident_stages(&self) -> usize {
        self.knobs.resident.unwrap_or(FEWEST_RESIDENT) as usize
    }

    /// The offload slots of each device per direction, in microbatches.
    pub fn offload_slots(&self) -> u64 {
        self.knobs.offload_slots.unwrap_or(FEWEST_OFFLOAD_SLOTS)
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

    /// The order in which devices compute.
    pub const fn order(&self) -> OrderKind {
        let knobs = &self.knobs;
        match self.system {
            System::Gpipe => OrderKind::Gpipe,
            System::Hybrid => OrderKind::OneForwardOneBackward { head_start: knobs.head_start },
            System::OneForwardOneBackward
            | System::ZeroOffload
            | System::ZeroOffloadDelayed
            | System::Checkpointing
            | System::GpuOnly
            | System::CpuOnly => OrderKind::OneForwardOneBackward { head_start: 0 },
            System::Interleaved => OrderKind::Interleaved,
            System::ZbH1 => OrderKind::ZbH1,
            System::ZbH2 => OrderKind::ZbH2,
            System::Zb1p => OrderKind::Automatic { turns: 1, limit: knobs.memory_limit },
            System::Zb2p => OrderKind::Automatic { turns: 2, limit: knobs.memory_limit },
            System::ZbV => OrderKind::Vee(Vee::Full),
            System::VHalf => OrderKind::Vee(Vee::Half),
            System::VMin => OrderKind::Vee(Vee::Least),
            System::Gis => OrderKind::Grouped { group: knobs.group, half: false },
            System::GisH => OrderKind::Grouped { group: knobs.group, half: true },
            System::PoH | System::PoF => OrderKind::Uniform,
            System::Spipe | System::Mobius | System::Superpipeline | System::NaiveSwap => OrderKind::Rounds,
            System::ZeroInfinity | System::Fsdp => OrderKind::Replicas,
        }
    }

    /// The time of optimizer steps.
    pub const fn update(&self) -> Update {
        match self.system {
            System::Spipe if !self.knobs.synchronous_optimizer => Update::DuringBackward,
            System::Superpipeline => Update::NeededFirst,
            System::Spipe | System::Mobius | System::NaiveSwap => Update::AfterBackward,
            System::ZeroOffloadDelayed => Update::Delayed,
            _ if self.knobs.synchronous_optimizer => Update::Phase,
            _ => Update::AsReady,
        }
    }

    /// Whether GPUs behind one switch take turns with their offloads; otherwise they share the switch.
    pub const fn offloads_in_turn(&self) -> bool {
        matches!(self.system, System::Gis | System::GisH | System::PoH | System::PoF)
    }

    /// Whether every device runs all layers, with parameters that are sharded over the devices.
    pub const fn shards_parameters(&self) -> bool {
        matches!(self.system.family(), Family::Sharded)
    }

    /// The devices that compute: those of the stages, or all that share the parameters.
    pub fn computing(&self, hardware: &Hardware) -> Vec<DeviceId> {
        if self.shards_parameters() { self.participants(hardware) } else { self.devices() }
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
        let after = behind.chunk_by(|stage, next| stage.device == next.device).count() as u64;
        Self(match placement.order() {
            OrderKind::Gpipe => microbatches,
            OrderKind::OneForwardOneBackward { head_start } => {
                let meets_cpu = || behind.iter().any(|stage| is_cpu(stage.device));
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
