//! The independent answers of a placement: its order, the time of its optimizer steps, and the turns of its offloads.
//!
//! Lowering, simulation, execution and export read these, never the name of a system.

use crate::{Family, Placement, System};
use spipe_base::DeviceId;
use spipe_hardware::Hardware;

/// The order in which devices compute, with the options of that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// All forwards, then all backwards.
    Gpipe,
    /// One forward, one backward.
    OneForwardOneBackward {
        /// Additional warm-up forwards of the last CPU stage and of the stages before it.
        head_start: u64,
    },
    /// 1F1B with several stages per device, assigned round-robin.
    Interleaved,
    /// Split backwards at the memory of 1F1B.
    ZbH1,
    /// Split backwards at about twice the memory of 1F1B.
    ZbH2,
    /// The automatic schedule of Zero Bubble.
    Automatic {
        /// The most activations that a device holds by default, as a multiple of the number of devices.
        turns: u64,
        /// The most activations that a device holds, in microbatches of one stage, if another number is given.
        limit: Option<u64>,
    },
    /// Two stages per device in the shape of a V.
    Vee(Vee),
    /// The generalised interleaved schedule.
    Grouped {
        /// The number of microbatches that pass through one chunk before the next: by default that of the devices, or
        /// half of it.
        group: Option<u64>,
        /// Whether the default is half the number of devices.
        half: bool,
    },
    /// The uniform building block of the generalised interleaved schedule.
    Uniform,
    /// A device runs all microbatches of a stage before its next stage.
    Rounds,
    /// Every device runs all layers on microbatches of its own.
    Replicas,
}

/// The building block of a V-shaped order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vee {
    /// Without bubbles, at the memory of 1F1B.
    Full,
    /// At about half the memory of 1F1B.
    Half,
    /// At about a third of the memory of 1F1B.
    Least,
}

/// The time of optimizer steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// A stage is updated as soon as its gradients are complete. The next iteration waits for the steps of the
    /// parameters that it uses.
    AsReady,
    /// All steps wait for the end of the backward, and the next iteration for all steps.
    Phase,
    /// Steps follow the backward, one after the other.
    AfterBackward,
    /// Steps follow the backward in the order in which the next iteration needs their parameters.
    NeededFirst,
    /// Steps run during the backward, before the global check.
    DuringBackward,
    /// Steps run during the next iteration, whose gradients they do not use.
    Delayed,
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
