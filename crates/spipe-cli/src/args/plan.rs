//! What `spipe plan` and `spipe baseline` take.

use crate::solving::Unknown;
use clap::{Args as Group, Subcommand, ValueEnum};
use spipe_base::Seconds;
use spipe_cost::{ClipNorm, Mode, Optimizer};
use spipe_model::{Precision, Recompute};

/// What to plan.
#[derive(Debug, Group)]
pub struct Plan {
    /// A model file or the name of a shipped model
    #[arg(long, required_unless_present = "improve")]
    pub model: Option<String>,
    /// A hardware profile or the name of a shipped one
    #[arg(long, required_unless_present = "improve")]
    pub hardware: Option<String>,
    /// A plan to start from, with its model, machine and workload
    #[arg(long, conflicts_with_all = [
        "model", "hardware", "global_batch", "seq_len", "solve_for", "mode", "optimizer", "precision", "clip_norm",
        "materialised_attention", "freeze",
    ])]
    pub improve: Option<String>,
    /// Tokens per sequence; the model's own if not given
    #[arg(long)]
    pub seq_len: Option<u64>,
    /// Sequences (images) per iteration
    #[arg(long, required_unless_present = "improve")]
    pub global_batch: Option<u64>,
    /// Sequences per microbatch, or auto
    #[arg(long, default_value = "auto")]
    pub microbatch: String,
    /// train, infer (forward only) or generate (the next token of each sequence)
    #[arg(long, default_value = "train")]
    pub mode: Mode,
    /// A system, several with commas between them, or auto for all that suit and whose losses are those of plain training
    #[arg(long, default_value = "auto")]
    pub system: String,
    /// ilp, dp, greedy, exhaustive or mobius-mip
    #[arg(long, default_value = "ilp")]
    pub planner: String,
    /// Optimizer
    #[arg(long, default_value = "adamw")]
    pub optimizer: Optimizer,
    /// Data type of parameters and activations; of fp16 losses are scaled, and no step begins before all gradients are known to be finite
    #[arg(long, default_value = "bf16")]
    pub precision: Precision,
    /// Scale gradients down to this norm where all together have a longer one: no step begins before all of them are known
    #[arg(long)]
    pub clip_norm: Option<ClipNorm>,
    /// Assume attention that writes its scores to memory
    #[arg(long)]
    pub materialised_attention: bool,
    /// Layers that are not trained, such as 0..3 or block.0..block.3
    #[arg(long)]
    pub freeze: Vec<String>,
    /// What the plan must hold: layer=0..3:cpu0, stage=0:gpu1, recompute=4..7, save=4..7, offload=4..7,
    /// optimizer=0..3:cpu, stream=0..3, keep=0..3, host=0..3:cpu1, system=1f1b, microbatch=2, or a knob such as head-start=1
    #[arg(long)]
    pub pin: Vec<String>,
    /// Find the largest value of this for which some plan fits
    #[arg(long, value_enum)]
    pub solve_for: Option<Unknown>,
    /// Also plan with 10 % more GPU memory, DRAM, bandwidth of links and arithmetic, and say what each would gain
    #[arg(long)]
    pub sensitivity: bool,
    /// How long to search; with --solve-for also for each value that is tried, with --sensitivity for each resource
    #[arg(long, default_value = "60s")]
    pub time_limit: Seconds,
    /// Stop when no other plan can be faster by more than this
    #[arg(long, default_value = "0.5%", allow_hyphen_values = true)]
    pub gap: String,
    /// Threads to search with, no more than there are cores; all of these if not given
    #[arg(long)]
    pub threads: Option<usize>,
    /// The plan to write, - for stdout
    #[arg(short, long)]
    pub output: Option<String>,
}

/// What pipelines are compared with.
#[derive(Debug, Subcommand)]
pub enum Baseline {
    /// Tensor and data parallelism over the GPUs of a machine
    TensorData(TensorData),
}

/// A model to spread over GPUs.
#[derive(Debug, Group)]
pub struct TensorData {
    /// A model file or the name of a shipped model
    #[arg(long)]
    pub model: String,
    /// A hardware profile or the name of a shipped one
    #[arg(long)]
    pub hardware: String,
    /// GPUs that share each layer; if not given, every number that uses all GPUs
    #[arg(long)]
    pub tensor: Option<u64>,
    /// Groups of them that share the sequences; if not given, every number that uses all GPUs
    #[arg(long)]
    pub data: Option<u64>,
    /// Activations that are computed again in the backward; every choice if not given
    #[arg(long, value_enum)]
    pub recompute: Option<Again>,
    /// Tokens per sequence; the model's own if not given
    #[arg(long)]
    pub seq_len: Option<u64>,
    /// Sequences (images) per iteration
    #[arg(long)]
    pub global_batch: u64,
    /// Sequences per microbatch, or auto
    #[arg(long, default_value = "auto")]
    pub microbatch: String,
    /// train, infer (forward only) or generate (the next token of each sequence)
    #[arg(long, default_value = "train")]
    pub mode: Mode,
    /// Optimizer
    #[arg(long, default_value = "adamw")]
    pub optimizer: Optimizer,
    /// Data type of parameters and activations
    #[arg(long, default_value = "bf16")]
    pub precision: Precision,
    /// Assume attention that writes its scores to memory
    #[arg(long)]
    pub materialised_attention: bool,
}

/// What is computed again in the backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Again {
    /// Nothing
    None,
    /// What is large and cheap
    Selective,
    /// Everything but the layer's input
    Full,
}

impl From<Again> for Recompute {
    fn from(again: Again) -> Self {
        match again {
            Again::None => Self::None,
            Again::Selective => Self::Selective,
            Again::Full => Self::Full,
        }
    }
}
