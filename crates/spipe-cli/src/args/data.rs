//! The arguments that say what sequences look like, and what blocks recompute.

use clap::{Args as Group, ValueEnum};
use spipe_hardware::LossKernel;
use spipe_model::Operations;

/// The shape of the data, and operations that are recomputed.
#[derive(Debug, Default, Group)]
pub struct DataOptions {
    /// Join documents, so that sequences are full; with --lengths, attention stays within documents
    #[arg(long)]
    pub packing: bool,
    /// Put documents of like length into a microbatch, so that few tokens are padding
    #[arg(long)]
    pub bucketing: bool,
    /// Share of the tokens that are padding, such as 30%: they are computed and do not count
    #[arg(long, value_name = "SHARE")]
    pub padding: Option<String>,
    /// Lengths of documents with their weights, such as 512:3,2048:1, or a file with one in each line;
    /// each microbatch is padded to its longest, unless packed or bucketed
    #[arg(long, value_name = "LENGTHS|FILE")]
    pub lengths: Option<String>,
    /// Operations of blocks whose outputs are recomputed in the backward and not saved: attention, norms,
    /// activation, mlp, qkv, output, gate, up, block (all but its input), separated by commas
    #[arg(long, value_name = "OPERATIONS")]
    pub recompute_ops: Option<Operations>,
    /// Kernels of the loss, in place of the runtime's
    #[arg(long, value_enum)]
    pub loss: Option<LossChoice>,
}

/// The kernels of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LossChoice {
    /// One kernel per pass over the logits
    Fused,
    /// A kernel per operation, as in PyTorch: logits in 16 and in 32 bits, and their gradients
    Unfused,
    /// A kernel per operation, which overwrites the 32-bit logits (Megatron-LM)
    InPlace,
    /// One kernel that overwrites 16-bit logits by their gradient
    FusedInPlace,
    /// The logits of a chunk of tokens at a time (torchtune, Liger)
    Chunked,
}

impl From<LossChoice> for LossKernel {
    fn from(choice: LossChoice) -> Self {
        match choice {
            LossChoice::Fused => Self::Fused,
            LossChoice::Unfused => Self::Unfused,
            LossChoice::InPlace => Self::InPlace,
            LossChoice::FusedInPlace => Self::FusedInPlace,
            LossChoice::Chunked => Self::Chunked,
        }
    }
}
