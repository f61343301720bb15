//! The arguments of `spipe export`.

use clap::{Args as Group, Subcommand, ValueEnum};

/// The engines that run exported plans.
#[derive(Debug, Subcommand)]
pub enum Export {
    /// PyTorch's pipeline runtime: a folder that torchrun starts, one process per device
    Torch(ExportTorch),
    /// FSDP2 of PyTorch: plans of fsdp and zero-infinity
    Fsdp(ExportFolder),
    /// DeepSpeed: plans of zero-offload, zero-infinity and fsdp
    Deepspeed(ExportDeepspeed),
    /// Megatron-LM: arguments of pretrain_gpt.py, and values of Megatron Core's configurations
    Megatron(ExportPlan),
    /// torchtitan: a Python module with the configuration of its trainer
    Torchtitan(ExportPlan),
    /// Execution traces of MLCommons Chakra, for ASTRA-sim and its kin: one iteration of any plan
    Chakra(ExportPlan),
}

/// An export of a plan alone.
#[derive(Debug, Group)]
pub struct ExportPlan {
    /// The plan
    pub plan: String,
    /// The folder to write, whole or not at all; it must be new or empty
    #[arg(short, long)]
    pub output: String,
}

/// An export to PyTorch's pipelines.
#[derive(Debug, Group)]
pub struct ExportTorch {
    /// The plan and the folder
    #[command(flatten)]
    pub folder: ExportFolder,
    /// Another order of the plan's stages, one line per device, such as 0F0,0B0
    #[arg(long)]
    pub order: Option<String>,
}

/// An export to DeepSpeed.
#[derive(Debug, Group)]
pub struct ExportDeepspeed {
    /// The plan and the folder
    #[command(flatten)]
    pub folder: ExportFolder,
    /// Mount point of the drive for what the plan keeps on one, or else for all shards of ZeRO-Infinity
    #[arg(long)]
    pub nvme: Option<String>,
}

/// The classes of the layers of an exported model.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Modules {
    /// Short ones in the folder: Llama and its kin, Mistral, Qwen2, Qwen3, GPT-2
    #[default]
    Own,
    /// The classes of the transformers that is installed where the folder runs: any decoder
    Transformers,
}

impl From<Modules> for spipe_export::Modules {
    fn from(modules: Modules) -> Self {
        match modules {
            Modules::Own => Self::Own,
            Modules::Transformers => Self::Transformers,
        }
    }
}

/// A plan, and the folder of its export.
#[derive(Debug, Group)]
pub struct ExportFolder {
    /// The plan
    pub plan: String,
    /// The folder to write, whole or not at all; it must be new or empty
    #[arg(short, long)]
    pub output: String,
    /// The classes of the model's layers
    #[arg(long, value_enum, default_value_t)]
    pub modules: Modules,
    /// The model's config.json, or a folder with one, for the classes of transformers; that of the
    /// weights if not given
    #[arg(long)]
    pub config: Option<String>,
    /// Weights to start from, in the format of transformers: a folder, whose safetensors files are
    /// linked or copied into the export
    #[arg(long)]
    pub weights: Option<String>,
    /// A text, whose tokens for each step are written to tokens.safetensors; `spipe run --data`
    /// reads them too
    #[arg(long)]
    pub data: Option<String>,
    /// The tokenizer of the text: a tokenizer.json of Hugging Face, or a folder with one; bytes if
    /// not given
    #[arg(long, requires = "data")]
    pub tokenizer: Option<String>,
    /// Steps whose tokens are written
    #[arg(long, default_value_t = 100, requires = "data", value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Write the random weights with which `spipe run --seed` starts, in f32; without them the
    /// scripts draw their own
    #[arg(long, conflicts_with = "weights")]
    pub initial_weights: bool,
    /// Seed of the initial weights and of the order of the data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}
