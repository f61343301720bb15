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

/// A group of systems with the same way of moving data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Parameters stay on the device of their stage, and microbatches flow through the stages.
    Pipeline,
    /// Parameters are streamed from the host in rounds.
    Streamed,
    /// Parameters are divided among replicas.
    Sharded,
}

impl Family {
    /// The family of `system`.
    pub const fn of(system: System) -> Self {
        match (system.is_pipeline(), system.shards_parameters()) {
            (true, _) => Self::Pipeline,
            (_, true) => Self::Sharded,
            _ => Self::Streamed,
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
        let mut own = Self::of(system);
        // Systems that rest on host offloads keep them.
        if !costs.host_help && SYSTEMS.contains(&system) {
            (own.steps_on_host, own.offloads) = (Permission::Forbidden, Permission::Forbidden);
        }
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
        SystemSpec::of(system).rules
    }
}

/// The way in which streamed stages are dealt to GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streaming {
    /// One stage per layer on one GPU, of which some are resident at a time.
    OneByOne,
    /// Round robin, all of them streamed; also cut by an integer program.
    RoundRobin,
    /// Round robin, each of them streamed or kept.
    Mixed,
    /// Round robin in the forward, and otherwise in the backward.
    Apart,
}

/// The chunks of each device whose activations candidates offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffloadedChunks {
    None,
    Half,
    All,
}

/// A system: its decision space, and how its candidates are made. One row of [`SystemSpec::of`] is
/// all that the planner knows of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SystemSpec {
    pub rules: SystemRules,
    /// Whether some stage must be on a CPU socket.
    pub needs_cpu: bool,
    /// Whether candidates also have one stage per layer: gradients leave and parameters return while
    /// other layers compute, or only one recomputed layer needs memory at a time.
    pub by_layer: bool,
    pub offloaded: OffloadedChunks,
    /// The way of streamed systems.
    pub streaming: Option<Streaming>,
}

impl SystemSpec {
    /// A system of resident stages with these rules.
    const fn resident(rules: SystemRules) -> Self {
        Self { rules, needs_cpu: false, by_layer: false, offloaded: OffloadedChunks::None, streaming: None }
    }

    /// The row of `system`.
    pub fn of(system: System) -> Self {
        use Permission::{Forbidden, Free, Required};
        let resident = Self::resident;
        let gpus = SystemRules { computing: DeviceSet::Gpus, one_stage_each: false, ..SystemRules::STAGES };
        let chain = SystemRules { turn: Some(Warmup::OneFOneB(0)), ..gpus };
        let cut = |turn| resident(SystemRules { turn: Some(turn), ..SystemRules::CUT_STAGES });
        // Stages are named for the first of the devices that share them.
        let shared = SystemRules { computing: DeviceSet::FirstGpu, steps_on_host: Free, shared: true, ..gpus };
        let by_layer = |rules| Self { by_layer: true, ..resident(rules) };
        let offloads = |offloaded| Self { offloaded, ..resident(SystemRules { offloads: Free, splits: true, ..gpus }) };
        let streams = SystemRules { steps_on_host: Required, in_rounds: true, streams: Required, ..gpus };
        let streamed = |streaming, rules| Self { streaming: Some(streaming), ..resident(rules) };
        match system {
            System::Fsdp => resident(shared),
            System::ZeroInfinity => resident(SystemRules { streams: Free, ..shared }),
            System::Gpipe => cut(Warmup::GPipe),
            System::OneForwardOneBackward => cut(Warmup::OneFOneB(0)),
            System::Hybrid => Self { needs_cpu: true, ..cut(Warmup::OneFOneB(LARGEST_HEAD_START)) },
            System::PoH => offloads(OffloadedChunks::Half),
            System::PoF => offloads(OffloadedChunks::All),
            System::GpuOnly => resident(SystemRules { recomputes: Forbidden, ..chain }),
            System::Checkpointing => by_layer(SystemRules { recomputes: Required, ..chain }),
            System::CpuOnly => by_layer(SystemRules { computing: DeviceSet::Sockets, ..chain }),
            System::ZeroOffload => by_layer(SystemRules { steps_on_host: Required, gradients_leave: true, ..chain }),
            System::ZeroOffloadDelayed => {
                by_layer(SystemRules { steps_on_host: Required, synchronous: false, gradients_leave: true, ..gpus })
            }
            System::Spipe => streamed(Streaming::Apart, SystemRules { recomputes: Required, apart: true, ..streams }),
            System::Mobius => {
                streamed(Streaming::RoundRobin, SystemRules { recomputes: Required, streams: Free, ..streams })
            }
            System::NaiveSwap => streamed(
                Streaming::OneByOne,
                SystemRules { computing: DeviceSet::OneGpu, one_resident: true, ..streams },
            ),
            System::Superpipeline => {
                streamed(Streaming::Mixed, SystemRules { one_resident: true, streams: Free, ..streams })
            }
            _ => resident(SystemRules { splits: system.splits_backward(), ..gpus }),
        }
    }

    /// Whether each stage may recompute more or fewer layers.
    pub fn recompute_varies(&self) -> bool {
        self.rules.recomputes == Permission::Free
    }

    /// The numbers of forwards by which the warm-up may exceed 1F1B's.
    pub const fn largest_head_start(&self) -> u64 {
        match self.rules.turn {
            Some(Warmup::OneFOneB(ahead)) => ahead,
            _ => 0,
        }
    }
}
