//! The engines of others that run exported plans.

use crate::{Modules, deepspeed, fsdp, megatron, torch, torchtitan};
use spipe_base::Faults;
use spipe_plan::Plan;

/// An engine that runs exported plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// PyTorch's pipelines.
    Torch,
    /// PyTorch's FSDP2.
    Fsdp,
    /// DeepSpeed.
    Deepspeed,
    /// Megatron-LM.
    Megatron,
    /// torchtitan.
    Torchtitan,
}

impl Engine {
    /// All engines.
    pub const ALL: [Self; 5] = [Self::Torch, Self::Fsdp, Self::Deepspeed, Self::Megatron, Self::Torchtitan];

    /// Its name, as the export has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Torch => "torch",
            Self::Fsdp => "fsdp",
            Self::Deepspeed => "deepspeed",
            Self::Megatron => "megatron",
            Self::Torchtitan => "torchtitan",
        }
    }

    /// Whether exported plans were run on a GPU.
    pub const fn tested_on_gpu(self) -> bool {
        match self {
            Self::Torch | Self::Fsdp | Self::Deepspeed | Self::Megatron | Self::Torchtitan => false,
        }
    }

    /// Refuses what the export refuses, without making the folder. A drive of the plan counts as mounted.
    ///
    /// # Errors
    /// The faults of the export.
    pub fn check(self, plan: &Plan, modules: Modules) -> Result<(), Faults> {
        match self {
            Self::Torch => torch::check(plan, modules),
            Self::Fsdp => fsdp::check(plan, modules),
            Self::Deepspeed => deepspeed::check(plan, modules),
            Self::Megatron => megatron::check(plan),
            Self::Torchtitan => torchtitan::check(plan),
        }
    }
}
