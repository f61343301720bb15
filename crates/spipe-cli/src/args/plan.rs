//! The arguments of `spipe plan` and `spipe baseline`.

use super::{DataOptions, Devices, Mesh, Training};
use clap::{Args as Group, Subcommand, ValueEnum};
use serde::Serialize;
use spipe_base::Seconds;
use spipe_cost::{ClipNorm, Mode, Optimizer};
use spipe_model::{Precision, Recompute};
use spipe_planner::Effort;

/// A plan to find.
#[derive(Debug, Group)]
pub struct Plan {
    /// A model file, a Hugging Face config or its folder, or the name of a shipped model
    #[arg(long, required_unless_present = "improve")]
    pub model: Option<String>,
    /// The part of the model, if it is a folder with a model_index.json, such as unet
    #[arg(long)]
    pub component: Option<String>,
    /// A plan file to improve, with its model, machine and workload
    #[arg(long, conflicts_with_all = [
        "model", "component", "hardware", "devices", "global_batch", "seq_len", "solve_for", "mode", "optimizer", "precision", "clip_norm",
        "materialised_attention", "freeze", "lora", "adapter", "base", "state", "gradients", "master", "optimizer_in_backward",
        "packing", "bucketing", "padding", "lengths", "recompute_ops", "loss", "tensor_parallel", "sequence_parallel",
        "pipeline_parallel", "data_parallel", "sharding", "shard_group", "nodes", "network",
    ])]
    pub improve: Option<String>,
    /// Tokens per sequence; the model's own if not given
    #[arg(long)]
    pub seq_len: Option<u64>,
    /// Sequences (or images) per iteration
    #[arg(long, required_unless_present_any = ["improve", "solve_for"])]
    pub global_batch: Option<u64>,
    /// Sequences per microbatch, or auto to search all sizes
    #[arg(long, default_value = "auto")]
    pub microbatch: String,
    /// train, infer (forward only) or generate (the next token of each sequence)
    #[arg(long, default_value = "train")]
    pub mode: Mode,
    /// Find the largest value of this for which a plan fits
    #[arg(long, value_enum)]
    pub solve_for: Option<Unknown>,
    /// Also report the gain from 10 % more GPU memory, DRAM, DRAM bandwidth, link bandwidth and
    /// arithmetic
    #[arg(long)]
    pub sensitivity: bool,
    /// Optimizer: adamw, adamw-8bit, paged-adamw, paged-adamw-8bit, adafactor, lion, sgd, muon
    #[arg(long, default_value = "adamw")]
    pub optimizer: Optimizer,
    /// Data type of parameters and activations. With fp16, losses are scaled, and the optimizer
    /// waits until all gradients are known to be finite. fp8 is bf16 with the products of blocks in 8 bits
    #[arg(long, default_value = "bf16")]
    pub precision: Precision,
    /// Clip the gradients to this global norm: the optimizer waits for all of them
    #[arg(long)]
    pub clip_norm: Option<ClipNorm>,
    /// Assume attention that writes its scores to memory (not fused)
    #[arg(long)]
    pub materialised_attention: bool,
    /// Layers that are not trained, such as 0..3 or block.0..block.3
    #[arg(long)]
    pub freeze: Vec<String>,
    /// The trained parameters and their formats
    #[command(flatten)]
    pub training: Training,
    /// The shape of the data
    #[command(flatten)]
    pub shape: DataOptions,
    /// A hardware profile, or the name of a shipped one
    #[arg(long, required_unless_present = "improve")]
    pub hardware: Option<String>,
    /// The devices to plan for, such as gpu0,gpu1,cpu0 or gpu0..gpu3,cpu0; all if not given. Other sockets
    /// keep their memory
    #[arg(long, value_delimiter = ',')]
    pub devices: Vec<Devices>,
    /// The degrees of parallelism
    #[command(flatten)]
    pub mesh: Mesh,
    /// Runtime that executes the plan: the name of a shipped runtime (spipe, pytorch, pytorch-compiled,
    /// megatron, deepspeed) or a file; by default, for each system, the one that trains it on this machine
    #[arg(long)]
    pub runtime: Option<String>,
    /// Leave this share of each memory free, such as 10%
    #[arg(long)]
    pub head_room: Option<String>,
    /// A system, several separated by commas, or auto: all that suit and train with the same losses
    /// as a single device
    #[arg(long, default_value = "auto")]
    pub system: String,
    /// The stages as a layout of Megatron (--pipeline-model-parallel-layout), such as Et*3|(tt|)*4,tL:
    /// stage i runs on device i mod P of --devices, or of the machine's GPUs
    #[arg(long, conflicts_with_all = ["improve", "solve_for", "planner"])]
    pub layout: Option<String>,
    /// A condition on the plan, may be repeated: layer=0..3:cpu0, stage=0:gpu1, recompute=4..7,
    /// save=4..7, offload=4..7, optimizer=0..3:cpu, stream=0..3, keep=0..3, host=0..3:cpu1,
    /// system=1f1b, microbatch=2, or a knob such as head-start=1
    #[arg(long)]
    pub pin: Vec<String>,
    /// Microbatches that pass through one stage of a GPU before its next, in interleaved-1f1b, gis and gis-h; short for
    /// --pin group=N
    #[arg(long, value_name = "N")]
    pub group: Option<u64>,
    /// Keep the optimizer state of all steps on the CPU on this drive, such as nvme0; without it, drives
    /// hold what DRAM does not
    #[arg(long, value_name = "DRIVE", conflicts_with = "improve")]
    pub state_on: Option<String>,
    /// Stream parameters from this drive, such as nvme0, in a system that streams them
    #[arg(long, value_name = "DRIVE", conflicts_with = "improve")]
    pub parameters_on: Option<String>,
    /// Keep the activations that GPUs offload on this drive, such as nvme0, in a plan that offloads some
    #[arg(long, value_name = "DRIVE", conflicts_with = "improve")]
    pub activations_on: Option<String>,
    /// Planner: ilp, dp, greedy, exhaustive or mobius-mip
    #[arg(long, default_value = "ilp")]
    pub planner: String,
    /// Time to search; also for each value of --solve-for and each resource of --sensitivity
    #[arg(long, default_value = "20s")]
    pub time_limit: Seconds,
    /// Count steps instead of the time: the same plan on any machine and under any load
    #[arg(long, value_enum, conflicts_with = "time_limit")]
    pub effort: Option<EffortChoice>,
    /// Where nothing fits, do not look for what would help
    #[arg(long)]
    pub no_hint: bool,
    /// Stop when no other plan can be faster by more than this fraction
    #[arg(long, default_value = "0.5%", allow_hyphen_values = true)]
    pub gap: String,
    /// Threads to search with, at most one per core; all cores if not given
    #[arg(long)]
    pub threads: Option<usize>,
    /// A picture of what fills each memory, .svg or .png
    #[arg(long, value_name = "FILE")]
    pub plot: Option<String>,
    /// The plan to write, - for stdout
    #[arg(short, long)]
    pub output: Option<String>,
}

/// The extent of a search, in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EffortChoice {
    /// A plan at once
    Low,
    /// A plan in seconds
    High,
}

impl From<EffortChoice> for Effort {
    fn from(choice: EffortChoice) -> Self {
        match choice {
            EffortChoice::Low => Self::Low,
            EffortChoice::High => Self::High,
        }
    }
}

/// The baselines of pipelines.
#[derive(Debug, Subcommand)]
pub enum Baseline {
    /// Tensor, pipeline and data parallelism with equal stages over the GPUs of a machine
    TensorData(TensorData),
}

/// A model on several GPUs.
#[derive(Debug, Group)]
pub struct TensorData {
    /// A model file, a Hugging Face config or its folder, or the name of a shipped model
    #[arg(long)]
    pub model: String,
    /// Tokens per sequence; the model's own if not given
    #[arg(long)]
    pub seq_len: Option<u64>,
    /// Sequences (or images) per iteration
    #[arg(long)]
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
    /// The devices to use, such as gpu0,gpu1 or gpu0..gpu3; all if not given
    #[arg(long, value_delimiter = ',')]
    pub devices: Vec<Devices>,
    /// Runtime that executes it: the name of a shipped runtime (spipe, pytorch, pytorch-compiled,
    /// megatron, deepspeed) or a file; by default the one that trains on this machine
    #[arg(long)]
    pub runtime: Option<String>,
    /// The degrees of parallelism. Without a pipeline degree there is one stage
    #[command(flatten)]
    pub mesh: Mesh,
    /// Activations recomputed in the backward; every choice if not given
    #[arg(long, value_enum)]
    pub recompute: Option<RecomputeChoice>,
    /// Write the best one that fits as a plan
    #[arg(short, long)]
    pub output: Option<String>,
}

/// The activations that are recomputed in the backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RecomputeChoice {
    /// None
    None,
    /// The large and cheap ones, as of attention
    Selective,
    /// All but the input of each layer
    Full,
}

impl From<RecomputeChoice> for Recompute {
    fn from(choice: RecomputeChoice) -> Self {
        match choice {
            RecomputeChoice::None => Self::None,
            RecomputeChoice::Selective => Self::Selective,
            RecomputeChoice::Full => Self::Full,
        }
    }
}

/// A value to solve for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unknown {
    /// Sequences per microbatch, among the sizes that divide the global batch
    Microbatch,
    /// Tokens per sequence
    SeqLen,
    /// Repeated layers of the model
    Layers,
    /// Sequences per iteration
    GlobalBatch,
    /// The rank of the adapters of --lora or --adapter
    Rank,
}
