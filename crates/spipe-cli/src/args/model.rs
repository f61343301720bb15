//! The arguments of `spipe model`.

use clap::{Args as Group, Subcommand};
use spipe_model::Precision;

/// The commands on models.
#[derive(Debug, Subcommand)]
pub enum Model {
    /// Show layers, parameters, FLOPs and bytes
    Show(ModelShow),
    /// Make a model file from a Hugging Face config.json
    Import(ModelImport),
    /// Add an adapter to the weights that it was trained on
    Merge(ModelMerge),
    /// List the shipped models
    List,
}

/// A model and a batch.
#[derive(Debug, Group)]
pub struct ModelShow {
    /// A model file, a Hugging Face config or its folder, or the name of a shipped model
    pub model: String,
    /// The part of a folder with a model_index.json; without it, the parts are listed
    #[arg(long)]
    pub component: Option<String>,
    /// Tokens per sequence; the model's own if not given
    #[arg(long)]
    pub seq_len: Option<u64>,
    /// Sequences per microbatch
    #[arg(long, default_value_t = 1)]
    pub microbatch: u64,
    /// Data type of parameters and activations
    #[arg(long, default_value = "bf16")]
    pub precision: Precision,
}

/// A Hugging Face config.
#[derive(Debug, Group)]
pub struct ModelImport {
    /// The config.json, or its folder
    pub config: String,
    /// The part of a folder with a model_index.json
    #[arg(long)]
    pub component: Option<String>,
    /// The model file to write, - for stdout
    #[arg(short, long)]
    pub output: String,
}

/// Weights and an adapter.
#[derive(Debug, Group)]
pub struct ModelMerge {
    /// The weights in the format of transformers: a .safetensors file, or a folder with model.safetensors or its
    /// index
    pub weights: String,
    /// Folder with the adapter, as PEFT writes it
    #[arg(long)]
    pub adapter: String,
    /// Folder for the merged weights; configuration and tokenizer are copied from a folder of weights
    #[arg(short, long)]
    pub output: String,
}
