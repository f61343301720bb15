//! The decision space of each system: the choices that bear on its time and memory.

use crate::{
    costs::CostSums,
    problem::{LARGEST_HEAD_START, SYSTEMS},
};
use spipe_base::Bytes;
use spipe_cost::LayerMemory;
use spipe_plan::{Activations, System};

/// The devices that may compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DeviceSet {
    All,
    Gpus,
    FirstGpu,
    /// Any one GPU.
    OneGpu,
    /// One device.
    Only(usize),
    Sockets,
}

impl DeviceSet {
    /// Whether the set includes a device. [`Self::OneGpu`] includes every GPU.
    pub fn allows(self, device: usize, costs: &CostSums<'_>) -> bool {
        let is_gpu = |device: usize| !costs.devices[device].is_cpu;
        match self {
            Self::All => true,
            Self::Gpus | Self::OneGpu => is_gpu(device),
            Self::Only(only) => device == only,
            Self::FirstGpu => (0..costs.devices.len()).find(|device| is_gpu(*device)) == Some(device),
            Self::Sockets => !is_gpu(device),
        }
    }
}

/// Whether a system never, always or optionally makes a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Permission {
    Forbidden,
    Required,
    Free,
}

/// The warm-up of a chain of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Warmup {
    /// All forwards precede the first backward.
    GPipe,
    /// The i-th device from the end has i microbatches in flight, plus this head start if a CPU is
    /// at or after it.
    OneFOneB(u64),
}

/// The decision space of a system: the choices that bear on its time and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SystemRules {
    pub computing: DeviceSet,
    /// Whether a device has only one stage. Each of its layers then holds at least one microbatch
    /// of activations.
    pub one_stage_each: bool,
    pub recomputes: Permission,
    pub offloads: Permission,
    /// Whether parameters live on the host and are copied in. If so they are updated there,
    /// otherwise on their device.
    pub streams: Permission,
    /// Whether a device may have room for a single streamed stage, so that nothing arrives while it
    /// computes.
    pub one_resident: bool,
    /// Whether all microbatches pass one stage of a device before any passes its next stage.
    pub in_rounds: bool,
    /// Whether optimizer steps run on CPU sockets.
    pub steps_on_host: Permission,
    /// Whether the forwards of an iteration wait for the optimizer steps of the one before.
    pub synchronous: bool,
    /// Whether the backward is split, so that gradients of weights are off the critical path of a
    /// microbatch.
    pub splits: bool,
    /// Whether the backward may have stages of its own.
    pub apart: bool,
    /// Whether gradients may be copied to the host after each microbatch, so that GPUs need no room
    /// for them.
    pub gradients_leave: bool,
    /// Whether all GPUs share every stage.
    pub shared: bool,
    /// The warm-up, if each device has consecutive layers and every iteration ends with a gradient
    /// at the first layer.
    pub turn: Option<Warmup>,
}

impl SystemRules {
    /// Contiguous stages, one per device, without host offloads.
    pub const STAGES: Self = Self {
        computing: DeviceSet::All,
        one_stage_each: true,
        recomputes: Permission::Free,
        offloads: Permission::Forbidden,
        streams: Permission::Forbidden,
        one_resident: false,
        in_rounds: false,
        steps_on_host: Permission::Forbidden,
        synchronous: true,
        splits: false,
        apart: false,
        gradients_leave: false,
        shared: false,
        turn: None,
    };

    /// Contiguous stages, one per device, with host offloads.
    pub const HELPED_STAGES: Self =
        Self { steps_on_host: Permission::Free, offloads: Permission::Free, ..Self::STAGES };

    /// Several stages per device, each with choices of its own.
    pub const CUT_STAGES: Self = Self { one_stage_each: false, ..Self::HELPED_STAGES };

    /// Contiguous stages, one per device, with or without host offloads.
    pub const fn of_stages(host_help: bool) -> Self {
        if host_help { Self::HELPED_STAGES } else { Self::STAGES }
    }

    /// The bytes that a device holds at a time if `layer` is streamed to it, beside the persistent
    /// bytes of its layers: parameters, and in training gradients. Other resident chunks may hold
    /// no other layer.
    pub fn buffers(layer: &LayerMemory, training: bool) -> u64 {
        (layer.parameters + if training { layer.gradients } else { Bytes::ZERO }).get()
    }

    /// The warm-up, if all layers are trained and iterations are synchronous.
    pub fn turns(&self, costs: &CostSums<'_>) -> Option<Warmup> {
        self.turn.filter(|_| costs.training && self.synchronous && costs.frozen == 0)
    }

    /// The treatments of activations that the system allows.
    pub fn keeps(&self, training: bool) -> Vec<Activations> {
        let may = |when: Permission| training && when != Permission::Forbidden;
        let all = [
            (self.recomputes != Permission::Required || !training, Activations::Saved),
            (may(self.offloads), Activations::Offloaded),
            (may(self.recomputes), Activations::Recomputed),
        ];
        all.into_iter().filter_map(|(may, kept)| may.then_some(kept)).collect()
    }

    /// The rules of `system` in a problem: one for each head start, or for each GPU if it runs on
    /// one GPU.
    pub fn in_problem(costs: &CostSums<'_>, system: System) -> Vec<Self> {
        let alone =
            |rules: Self| Self { steps_on_host: Permission::Forbidden, offloads: Permission::Forbidden, ..rules };
        // Systems that rest on host offloads keep them.
        let helped = costs.host_help || !SYSTEMS.contains(&system);
        let own = Self::of(system);
        let own = if helped { own } else { alone(own) };
        if own.computing == DeviceSet::OneGpu {
            let gpus = (0..costs.devices.len()).filter(|device| !costs.devices[*device].is_cpu);
            return gpus.map(|gpu| Self { computing: DeviceSet::Only(gpu), ..own }).collect();
        }
        match own.turns(costs) {
            Some(Warmup::OneFOneB(ahead)) => {
                (0..=ahead).map(|ahead| Self { turn: Some(Warmup::OneFOneB(ahead)), ..own }).collect()
            }
            _ => vec![own],
        }
    }

    /// The rules of `system`.
    pub fn of(system: System) -> Self {
        let gpus = Self { computing: DeviceSet::Gpus, one_stage_each: false, ..Self::STAGES };
        let streams = Self { steps_on_host: Permission::Required, in_rounds: true, ..gpus };
        let streams =
            Self { streams: if system.may_keep() { Permission::Free } else { Permission::Required }, ..streams };
        let chain = Self { turn: Some(Warmup::OneFOneB(0)), ..gpus };
        // Stages are named for the first of the devices that share them.
        let shared = Self { computing: DeviceSet::FirstGpu, steps_on_host: Permission::Free, shared: true, ..gpus };
        match system {
            System::Fsdp => shared,
            System::ZeroInfinity => Self { streams: Permission::Free, ..shared },
            System::Gpipe => Self { turn: Some(Warmup::GPipe), ..Self::CUT_STAGES },
            System::OneForwardOneBackward => Self { turn: Some(Warmup::OneFOneB(0)), ..Self::CUT_STAGES },
            System::Hybrid => Self { turn: Some(Warmup::OneFOneB(LARGEST_HEAD_START)), ..Self::CUT_STAGES },
            System::PoH | System::PoF => Self { offloads: Permission::Free, splits: true, ..gpus },
            System::GpuOnly => Self { recomputes: Permission::Forbidden, ..chain },
            System::Checkpointing => Self { recomputes: Permission::Required, ..chain },
            System::CpuOnly => Self { computing: DeviceSet::Sockets, ..chain },
            System::ZeroOffload => Self { steps_on_host: Permission::Required, gradients_leave: true, ..chain },
            System::ZeroOffloadDelayed => {
                Self { steps_on_host: Permission::Required, synchronous: false, gradients_leave: true, ..gpus }
            }
            System::Spipe => Self { recomputes: Permission::Required, apart: true, ..streams },
            System::Mobius => Self { recomputes: Permission::Required, ..streams },
            System::NaiveSwap => Self { computing: DeviceSet::OneGpu, one_resident: true, ..streams },
            System::Superpipeline => Self { one_resident: true, ..streams },
            _ => Self { splits: system.splits_backward(), ..gpus },
        }
    }
}
