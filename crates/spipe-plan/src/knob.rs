//! Options of answers by name and as numbers, as planners, pins and tests set them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An option of an answer as a number; a switch is 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// Additional warm-up forwards of a CPU stage and of the stages before it (order 1F1B).
    HeadStart,
    /// Microbatches per group (the interleaved orders).
    Group,
    /// The most activations, in microbatches of one stage, that a device may hold (the automatic order).
    MemoryLimit,
    /// Slots of a device per direction for offloaded activations, in microbatches.
    OffloadSlots,
    /// Whether sockets give priority to the steps that the next iteration needs first.
    UrgentSteps,
    /// Whether gradients are copied to the host after each microbatch.
    GradientsLeave,
    /// Whether all optimizer steps wait for the end of the backward.
    SynchronousOptimizer,
    /// The number of GPUs over which everything is sharded.
    Shards,
    /// The number of GPUs of a group that has one copy of everything.
    ShardGroup,
    /// k, the resident layers of a GPU, or the gathered stages of a replica.
    Resident,
    /// k′, the layers exchanged at a time.
    Swap,
    /// Whether an exchange copies back unchanged parameters.
    WriteBack,
    /// Whether the layers of an exchange are copied one by one.
    Sequential,
    /// Whether checkpoints are sent only in the step before their use.
    SynchronousCheckpoints,
    /// Whether speculative optimizer steps are undone by arithmetic.
    ArithmeticUndo,
}

impl Knob {
    /// The largest value. It exceeds the layers of any model and the microbatches of any batch, and
    /// a product with bytes does not overflow.
    pub const LARGEST: u64 = 1 << 20;

    /// Every option; those that planners turn come first.
    pub const ALL: [Self; 15] = [
        Self::HeadStart,
        Self::Group,
        Self::MemoryLimit,
        Self::OffloadSlots,
        Self::UrgentSteps,
        Self::GradientsLeave,
        Self::SynchronousOptimizer,
        Self::Shards,
        Self::ShardGroup,
        Self::Resident,
        Self::Swap,
        Self::WriteBack,
        Self::Sequential,
        Self::SynchronousCheckpoints,
        Self::ArithmeticUndo,
    ];

    /// The options that planners turn and that pins may fix; the others exist for comparison.
    pub const TURNED: &'static [Self] = Self::ALL.split_at(11).0;

    /// Its name in pins.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HeadStart => "head-start",
            Self::Group => "group",
            Self::MemoryLimit => "memory-limit",
            Self::OffloadSlots => "offload-slots",
            Self::UrgentSteps => "urgent-steps",
            Self::GradientsLeave => "gradients-leave",
            Self::SynchronousOptimizer => "synchronous-optimizer",
            Self::Shards => "shards",
            Self::ShardGroup => "shard-group",
            Self::Resident => "resident",
            Self::Swap => "swap",
            Self::WriteBack => "write-back",
            Self::Sequential => "sequential",
            Self::SynchronousCheckpoints => "synchronous-checkpoints",
            Self::ArithmeticUndo => "arithmetic-undo",
        }
    }

    /// The thing that a system without the option lacks, in messages.
    pub(crate) const fn noun(self) -> &'static str {
        match self {
            Self::HeadStart => "head start",
            Self::Group => "group size",
            Self::MemoryLimit => "memory limit",
            Self::OffloadSlots => "slots for offloaded activations",
            Self::UrgentSteps => "priorities of optimizer steps",
            Self::GradientsLeave => "gradients that leave after each microbatch",
            Self::SynchronousOptimizer => "synchronous optimizer",
            Self::Shards => "shards",
            Self::ShardGroup => "groups of shards",
            Self::Resident => "resident layers",
            Self::Swap => "exchanged layers",
            Self::WriteBack | Self::Sequential => "options of layer exchanges",
            Self::SynchronousCheckpoints => "synchronous checkpoints",
            Self::ArithmeticUndo => "arithmetic undo",
        }
    }

    /// Whether the option is a switch.
    pub const fn is_switch(self) -> bool {
        matches!(
            self,
            Self::UrgentSteps
                | Self::GradientsLeave
                | Self::SynchronousOptimizer
                | Self::WriteBack
                | Self::Sequential
                | Self::SynchronousCheckpoints
                | Self::ArithmeticUndo
        )
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
