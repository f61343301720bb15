//! What the placements of a system may do, as far as that bounds their time.

use crate::{LARGEST_HEAD_START, SYSTEMS, figures::Figures};
use spipe_base::Bytes;
use spipe_cost::LayerMemory;
use spipe_plan::System;

/// Which devices may compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Computing {
    All,
    Gpus,
    FirstGpu,
    /// Any of them, but only one.
    OneGpu,
    /// This one.
    Only(usize),
    Sockets,
}

impl Computing {
    /// Whether it includes a device; of [`Self::OneGpu`] that is any GPU.
    pub fn allows(self, device: usize, figures: &Figures<'_>) -> bool {
        let is_gpu = |device: usize| !figures.devices[device].is_cpu;
        match self {
            Self::All => true,
            Self::Gpus | Self::OneGpu => is_gpu(device),
            Self::Only(only) => device == only,
            Self::FirstGpu => (0..figures.devices.len()).find(|device| is_gpu(*device)) == Some(device),
            Self::Sockets => !is_gpu(device),
        }
    }
}

/// What always, never or sometimes happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum When {
    Never,
    Always,
    Perhaps,
}

/// Where what a layer saves for its backward is until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    OnDevice,
    InHost,
    /// It is computed again.
    Nowhere,
}

/// How the microbatches of a chain of devices turn around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    /// All go forwards before the first goes back.
    AllForwards,
    /// The i-th device from the end has i microbatches between forward and backward, and so many more where a CPU is at or after it.
    Ahead(u64),
}

/// The placements of a system, as far as that bounds their time and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Freedom {
    pub computing: Computing,
    /// Whether a device has one stage only, whose layers hold at least one microbatch of what they save.
    pub one_stage_each: bool,
    pub recomputes: When,
    pub offloads: When,
    /// Whether parameters live on the host and are copied in; then they are stepped there, otherwise where they are.
    pub streams: When,
    /// Whether a device may have room for one streamed stage only, so that nothing arrives while it is computed.
    pub one_resident: bool,
    /// Whether all microbatches go through one stage before any goes through the next on its device.
    pub in_rounds: bool,
    /// Whether optimizers are on CPU sockets.
    pub steps_on_host: When,
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
    pub turn: Option<Turn>,
}

impl Freedom {
    /// Contiguous stages, one per device, that keep everything: what the planners of stages search.
    pub const STAGES: Self = Self {
        computing: Computing::All,
        one_stage_each: true,
        recomputes: When::Perhaps,
        offloads: When::Never,
        streams: When::Never,
        one_resident: false,
        in_rounds: false,
        steps_on_host: When::Never,
        synchronous: true,
        splits: false,
        apart: false,
        gradients_leave: false,
        shared: false,
        turn: None,
    };

    /// The same where the host may help.
    pub const HELPED_STAGES: Self = Self { steps_on_host: When::Perhaps, offloads: When::Perhaps, ..Self::STAGES };

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
    pub fn turns(&self, figures: &Figures<'_>) -> Option<Turn> {
        self.turn.filter(|_| figures.training && self.synchronous && figures.frozen == 0)
    }

    /// Where what is saved may be kept, in training or not.
    pub fn keeps(&self, training: bool) -> Vec<Kept> {
        let may = |when: When| training && when != When::Never;
        let all = [
            (self.recomputes != When::Always || !training, Kept::OnDevice),
            (may(self.offloads), Kept::InHost),
            (may(self.recomputes), Kept::Nowhere),
        ];
        all.into_iter().filter_map(|(may, kept)| may.then_some(kept)).collect()
    }

    /// Those of `system` in a problem, for every head start, or for every GPU where it has one.
    pub fn in_problem(figures: &Figures<'_>, system: System) -> Vec<Self> {
        let alone = |freedom: Self| Self { steps_on_host: When::Never, offloads: When::Never, ..freedom };
        // Systems that are made of the host's help still have it.
        let helped = figures.host_help || !SYSTEMS.contains(&system);
        let own = Self::of(system);
        let own = if helped { own } else { alone(own) };
        if own.computing == Computing::OneGpu {
            let gpus = (0..figures.devices.len()).filter(|device| !figures.devices[*device].is_cpu);
            return gpus.map(|gpu| Self { computing: Computing::Only(gpu), ..own }).collect();
        }
        match own.turns(figures) {
            Some(Turn::Ahead(ahead)) => {
                (0..=ahead).map(|ahead| Self { turn: Some(Turn::Ahead(ahead)), ..own }).collect()
            }
            _ => vec![own],
        }
    }

    /// That of `system`.
    pub fn of(system: System) -> Self {
        let gpus = Self { computing: Computing::Gpus, one_stage_each: false, ..Self::STAGES };
        let streams = Self { steps_on_host: When::Always, in_rounds: true, ..gpus };
        let streams = Self { streams: if system.may_keep() { When::Perhaps } else { When::Always }, ..streams };
        let chain = Self { turn: Some(Turn::Ahead(0)), ..gpus };
        // Stages are named for the first of the devices that share them.
        let shared = Self { computing: Computing::FirstGpu, steps_on_host: When::Perhaps, shared: true, ..gpus };
        match system {
            System::Fsdp => shared,
            System::ZeroInfinity => Self { streams: When::Perhaps, ..shared },
            System::Gpipe => Self { turn: Some(Turn::AllForwards), ..Self::CUT_STAGES },
            System::OneForwardOneBackward => Self { turn: Some(Turn::Ahead(0)), ..Self::CUT_STAGES },
            System::Hybrid => Self { turn: Some(Turn::Ahead(LARGEST_HEAD_START)), ..Self::CUT_STAGES },
            System::PoH | System::PoF => Self { offloads: When::Perhaps, splits: true, ..gpus },
            System::GpuOnly => Self { recomputes: When::Never, ..chain },
            System::Checkpointing => Self { recomputes: When::Always, ..chain },
            System::CpuOnly => Self { computing: Computing::Sockets, ..chain },
            System::ZeroOffload => Self { steps_on_host: When::Always, gradients_leave: true, ..chain },
            System::ZeroOffloadDelayed => {
                Self { steps_on_host: When::Always, synchronous: false, gradients_leave: true, ..gpus }
            }
            System::Spipe => Self { recomputes: When::Always, apart: true, ..streams },
            System::Mobius => Self { recomputes: When::Always, ..streams },
            System::NaiveSwap => Self { computing: Computing::OneGpu, one_resident: true, ..streams },
            System::Superpipeline => Self { one_resident: true, ..streams },
            _ => Self { splits: system.splits_backward(), ..gpus },
        }
    }
}
