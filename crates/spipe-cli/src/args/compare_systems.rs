//! The arguments of `spipe compare-systems`.

use super::{DataOptions, Mesh, Training};
use clap::Args as Group;
use spipe_base::Seconds;
use spipe_cost::{ClipNorm, Mode, Optimizer};
use spipe_model::Precision;

/// Systems to compare.
#[derive(Debug, Group)]
pub struct CompareSystems {
    /// A model file, or the name of a shipped model
    #[arg(long)]
    pub model: String,
    /// Tokens per sequence; the model's own if not given
    #[arg(long)]
    pub seq_len: Option<u64>,
    /// Sequences (or images) per iteration
    #[arg(long, default_value_t = 8)]
    pub global_batch: u64,
    /// Sequences per microbatch, or auto to search all sizes
    #[arg(long, default_value = "auto")]
    pub microbatch: String,
    /// train, infer (forward only) or generate (the next token of each sequence)
    #[arg(long, default_value = "train")]
    pub mode: Mode,
    /// Optimizer: adamw, adamw-8bit, paged-adamw, paged-adamw-8bit, adafactor, lion, sgd, muon
    #[arg(long, default_value = "adamw")]
    pub optimizer: Optimizer,
    /// Data type of parameters and activations
    #[arg(long, default_value = "bf16")]
    pub precision: Precision,
    /// Clip the gradients to this global norm: the optimizer waits for all of them
    #[arg(long)]
    pub clip_norm: Option<ClipNorm>,
    /// Assume attention that writes its scores to memory (not fused)
    #[arg(long)]
    pub materialised_attention: bool,
    /// The trained parameters and their formats
    #[command(flatten)]
    pub training: Training,
    /// The shape of the data
    #[command(flatten)]
    pub shape: DataOptions,
    /// A hardware profile, or the name of a shipped one
    #[arg(long)]
    pub hardware: String,
    /// The devices to plan for, such as gpu0,gpu1,cpu0 or gpu0..gpu3,cpu0; all if not given. Other sockets
    /// keep their memory
    #[arg(long, value_delimiter = ',')]
    pub devices: Vec<super::Devices>,
    /// The degrees of parallelism
    #[command(flatten)]
    pub mesh: Mesh,
    /// Runtime that executes the plans: the name of a shipped runtime (spipe, pytorch, pytorch-compiled,
    /// megatron, deepspeed) or a file; by default, for each system, the one that trains it on this machine
    #[arg(long)]
    pub runtime: Option<String>,
    /// The systems to compare, separated by commas; all, and the baseline `data-parallel`, if not given
    #[arg(long, value_delimiter = ',')]
    pub system: Vec<String>,
    /// Time to search the plan of each system
    #[arg(long, default_value = "3s")]
    pub time_limit: Seconds,
    /// Threads to search with, at most one per core; all cores if not given
    #[arg(long)]
    pub threads: Option<usize>,
    /// Bars of tokens per second to draw: .svg or .png
    #[arg(long)]
    pub plot: Option<String>,
    /// The page to write, with a small chart of each system: .html
    #[arg(short, long)]
    pub output: Option<String>,
}
