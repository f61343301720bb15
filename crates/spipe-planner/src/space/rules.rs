//! What the placements of a system may do, as far as that bounds their time.

use crate::{
    costs::CostSums,
    problem::{LARGEST_HEAD_START, SYSTEMS},
};
use spipe_base::Bytes;
use spipe_cost::LayerMemory;
use spipe_plan::{Activations, System};

/// Which devices may compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DeviceSet {
    All,
    Gpus,
    FirstGpu,
    /// Any of them, but only one.
    OneGpu,
    /// This one.
    Only(usize),
    Sockets,
}

impl DeviceSet {
    /// Whether it includes a device; of [`Self::OneGpu`] that is any GPU.
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

/// What always, never or sometimes happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Permission {
    Forbidden,
    Required,
    Free,
}

/// How the microbatches of a chain of devices turn around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Warmup {
    /// All go forwards before the first goes back.
    GPipe,
    /// The i-th device from the end has i microbatches between forward and backward, and so many more where a CPU is at or after it.
    OneFOneB(u64),
}

/// The placements of a system, as far as that bounds their time and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SystemRules {
    pub computing: DeviceSet,
    /// Whether a device has one stage only, whose layers hold at least one microbatch of what they save.
    pub one_stage_each: bool,
    pub recomputes: Permission,
    pub offloads: Permission,
    /// Whether parameters live on the host and are copied in; then they are stepped there, otherwise where they are.
    pub streams: Permission,
    /// Whether a device may have room for one streamed stage only, so that nothing arrives while it is computed.
    pub one_resident: bool,
    /// Whether all microbatches go through one stage before any goes through the next on its device.
    pub in_rounds: bool,
    /// Whether optimizers are on CPU sockets.
    pub steps_on_host: Permission,
    /// Whether an iteration's forward needs the steps of the one before.
    pub synchronous: bool,
    /// Whether gradients of weights are computed apart from those of inputs, aside from the way of a microbatch.
    pub splits: bool,
    /// Whether backwards have stages of their own.
    pub apart: bool,
    /// Whether gradients may leave with each microbatch, so that they need no room on GPUs.
    pub gradients_leave: bool,
    /// Whether all GPUs share every stage.
    pub shared: bool,
    /// How microbatches turn around where each device has neighbouring layers and all iterations end with a gradient at the first.
    pub turn: Option<Warmup>,
}

impl SystemRules {
    /// Contiguous stages, one per device, that keep everything: what the planners of stages search.
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

    /// The same where the host may help.
    pub const HELPED_STAGES: Self =
        Self { steps_on_host: Permission::Free, offloads: Permission::Free, ..Self::STAGES };

    /// Several stages per device, each with choices of its own.
    pub const CUT_STAGES: Self = Self { one_stage_each: false, ..Self::HELPED_STAGES };

    /// Stages, one per device, with the host's help or without.
    pub const fn of_stages(host_help: bool) -> Self {
        if host_help { Self::HELPED_STAGES } else { Self::STAGES }
    }

    /// What a device has at once beside all that its layers hold, if `layer` is streamed to it, in bytes: its parameters, and in training its
    /// gradients. Where more chunks are resident the others may be those of no other layer.
    pub fn buffers(layer: &LayerMemory, training: bool) -> u64 {
        (layer.parameters + if training { layer.gradients } else { Bytes::ZERO }).get()
    }

    /// How microbatches turn around, where every layer is trained.
    pub fn turns(&self, costs: &CostSums<'_>) -> Option<Warmup> {
        self.turn.filter(|_| costs.training && self.synchronous && costs.frozen == 0)
    }

    /// Where what is saved may be kept, in training or not.
    pub fn keeps(&self, training: bool) -> Vec<Activations> {
        let may = |when: Permission| training && when != Permission::Forbidden;
        let all = [
            (self.recomputes != Permission::Required || !training, Activations::Saved),
            (may(self.offloads), Activations::Offloaded),
            (may(self.recomputes), Activations::Recomputed),
        ];
        all.into_iter().filter_map(|(may, kept)| may.then_some(kept)).collect()
    }

    /// Those of `system` in a problem, for every head start, or for every GPU where it has one.
    pub fn in_problem(costs: &CostSums<'_>, system: System) -> Vec<Self> {
        let alone =
            |rules: Self| Self { steps_on_host: Permission::Forbidden, offloads: Permission::Forbidden, ..rules };
        // Systems that are made of the host's help still have it.
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

    /// That of `system`.
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
