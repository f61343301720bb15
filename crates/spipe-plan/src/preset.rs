//! The table of presets: the answers that each system fixes, and those that it leaves to the plan.

use crate::{Exchange, Knob, OrderKind, Sharding, Update, Vee};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name on the command line and in files.
    pub name: &'static str,
    /// The state that is divided among replicas.
    pub sharding: Sharding,
    /// The order, with the default of its options.
    pub order: OrderKind,
    /// The time of optimizer steps, with the default of its options.
    pub update: Update,
    /// Whether GPUs behind one switch take turns with their offloads.
    pub in_turn: bool,
    /// The options that a plan may set.
    pub free: &'static [Knob],
    /// Whether all optimizer steps run on the host.
    pub steps_on_host: bool,
    /// Whether stages may stream their parameters.
    pub may_stream: bool,
    /// Whether stages of an order in rounds may keep their parameters while others stream theirs.
    pub may_keep: bool,
    /// Whether it also runs inference.
    pub infers: bool,
    /// The runtimes of the frameworks that train it, on machines with one GPU and with several.
    pub frameworks: [&'static str; 2],
}

/// The runtime of exported pipelines, of interpreted programs and of FSDP2.
const PYTORCH: &str = "pytorch";

const DEEPSPEED: &str = "deepspeed";

const PIPELINE: Preset = Preset {
    name: "1f1b",
    sharding: Sharding::None,
    order: OrderKind::PLAIN_1F1B,
    update: Update::AsReady { urgent: false },
    in_turn: false,
    free: &[Knob::OffloadSlots, Knob::UrgentSteps],
    steps_on_host: false,
    may_stream: false,
    may_keep: false,
    infers: false,
    frameworks: [PYTORCH; 2],
};

const AUTOMATIC: Preset = Preset { free: &[Knob::MemoryLimit, Knob::OffloadSlots, Knob::UrgentSteps], ..PIPELINE };

const IN_TURN: Preset = Preset { in_turn: true, ..PIPELINE };

const GROUPED: Preset = Preset { free: &[Knob::Group, Knob::OffloadSlots, Knob::UrgentSteps], ..IN_TURN };

const STREAMED: Preset =
    Preset { order: OrderKind::Rounds(ROUNDS), update: Update::AfterBackward, free: &[], may_stream: true, ..PIPELINE };

const ROUNDS: Exchange = Exchange {
    resident: None,
    swap: None,
    without_overlap: false,
    write_back: false,
    sequential: false,
    late_checkpoints: false,
};

const EXCHANGES: &[Knob] = &[Knob::Resident, Knob::Swap, Knob::WriteBack, Knob::Sequential];

const SHARED: Preset = Preset {
    sharding: Sharding::PARAMETERS,
    free: &[Knob::UrgentSteps, Knob::SynchronousOptimizer, Knob::Shards, Knob::ShardGroup, Knob::Resident],
    infers: true,
    ..PIPELINE
};

/// By system its row, in the order of the systems.
pub(crate) static TABLE: [Preset; 27] = [
    Preset { name: "gpipe", order: OrderKind::Gpipe, infers: true, ..PIPELINE },
    Preset { name: "1f1b", infers: true, ..PIPELINE },
    Preset {
        name: "hybrid",
        free: &[Knob::HeadStart, Knob::OffloadSlots, Knob::UrgentSteps],
        infers: true,
        ..PIPELINE
    },
    Preset {
        name: "interleaved-1f1b",
        order: OrderKind::Interleaved { group: None },
        free: &[Knob::Group, Knob::OffloadSlots, Knob::UrgentSteps],
        ..PIPELINE
    },
    Preset { name: "zb-h1", order: OrderKind::ZbH1, ..PIPELINE },
    Preset { name: "zb-h2", order: OrderKind::ZbH2, ..PIPELINE },
    Preset { name: "zb-1p", order: OrderKind::Automatic { turns: 1, memory_limit: None }, ..AUTOMATIC },
    Preset { name: "zb-2p", order: OrderKind::Automatic { turns: 2, memory_limit: None }, ..AUTOMATIC },
    Preset { name: "zb-v", order: OrderKind::Vee { memory: Vee::Full }, ..PIPELINE },
    Preset { name: "v-half", order: OrderKind::Vee { memory: Vee::Half }, ..PIPELINE },
    Preset { name: "v-min", order: OrderKind::Vee { memory: Vee::Least }, ..PIPELINE },
    Preset { name: "gis", order: OrderKind::Grouped { group: None, half: false }, ..GROUPED },
    Preset { name: "gis-h", order: OrderKind::Grouped { group: None, half: true }, ..GROUPED },
    Preset { name: "po-h", order: OrderKind::Uniform, ..IN_TURN },
    Preset { name: "po-f", order: OrderKind::Uniform, ..IN_TURN },
    Preset {
        name: "spipe",
        update: Update::DuringBackward { arithmetic_undo: false },
        free: &[Knob::SynchronousOptimizer, Knob::SynchronousCheckpoints, Knob::ArithmeticUndo],
        ..STREAMED
    },
    Preset { name: "mobius", may_keep: true, infers: true, ..STREAMED },
    Preset {
        name: "superpipeline",
        update: Update::NeededFirst,
        free: EXCHANGES,
        may_keep: true,
        infers: true,
        ..STREAMED
    },
    Preset {
        name: "naive-swap",
        order: OrderKind::Rounds(Exchange { without_overlap: true, ..ROUNDS }),
        free: EXCHANGES,
        infers: true,
        ..STREAMED
    },
    Preset {
        name: "zero-offload",
        free: &[Knob::OffloadSlots, Knob::UrgentSteps, Knob::GradientsLeave, Knob::SynchronousOptimizer],
        steps_on_host: true,
        // DeepSpeed has no pipelines whose steps run on the host.
        frameworks: [DEEPSPEED, PYTORCH],
        ..PIPELINE
    },
    Preset {
        name: "zero-offload-delayed",
        update: Update::Delayed,
        free: &[Knob::OffloadSlots, Knob::GradientsLeave],
        steps_on_host: true,
        ..PIPELINE
    },
    Preset { name: "zero-infinity", may_stream: true, frameworks: [DEEPSPEED; 2], ..SHARED },
    Preset { name: "fsdp", ..SHARED },
    Preset { name: "checkpointing", ..PIPELINE },
    Preset { name: "gpu-only", infers: true, ..PIPELINE },
    Preset { name: "cpu-only", infers: true, ..PIPELINE },
    Preset { name: "mixed", free: &Knob::ALL, may_stream: true, may_keep: true, infers: true, ..PIPELINE },
];
