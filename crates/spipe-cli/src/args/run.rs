//! The arguments of `spipe demo` and `spipe run`.

use clap::{Args as Group, ValueEnum};

/// The demo.
#[derive(Debug, Group)]
pub struct Demo {
    /// Text to train on, byte by byte; this repository's own sources if not given
    #[arg(long)]
    pub data: Option<String>,
    /// Folder for the results
    #[arg(short, long, default_value = "demo")]
    pub output: String,
    /// Training steps
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// CPU backend: ndarray
    #[arg(long, default_value = "ndarray")]
    pub backend: String,
    /// Model to train: a Llama-style model file, or the name of a shipped one
    #[arg(long, default_value = "demo")]
    pub model: String,
    /// Seed of the parameters and of the order of the data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// A plan to run.
#[derive(Debug, Group)]
pub struct Run {
    /// The plan
    pub plan: String,
    /// The data: a text, or a .safetensors file with the tokens of each step; for models that read
    /// images a folder with a folder of images for each class, or `synthetic`. Inference continues
    /// the text, encodes the images, or denoises
    #[arg(long)]
    pub data: String,
    /// The tokenizer of the text: a tokenizer.json of Hugging Face, or a folder with one; bytes if
    /// not given
    #[arg(long)]
    pub tokenizer: Option<String>,
    /// Training steps; in inference tokens per sequence, batches of images, or denoising steps
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// The executor of a device of the plan, such as gpu0=emulated:0; may be repeated
    #[arg(long = "bind")]
    pub bindings: Vec<String>,
    /// The folder for the file that stands for a drive of the plan, such as nvme0=/mnt/nvme; may be
    /// repeated. The file holds optimizer state while the plan runs
    #[arg(long = "drive", value_name = "NAME=FOLDER")]
    pub drives: Vec<String>,
    /// CPU backend: ndarray
    #[arg(long, default_value = "ndarray")]
    pub backend: String,
    /// Learning rate of the plan's optimizer
    #[arg(long, default_value_t = 1e-3, allow_negative_numbers = true, value_parser = rate)]
    pub learning_rate: f64,
    /// Steps over which the learning rate rises from 0
    #[arg(long, default_value_t = 0)]
    pub warmup_steps: u32,
    /// Decay of the learning rate after the warm-up, until the end of the run
    #[arg(long, value_enum, default_value_t = Decay::Constant)]
    pub decay: Decay,
    /// Weight decay, as a multiple of the learning rate
    #[arg(long, default_value_t = 0.01, allow_negative_numbers = true, value_parser = rate)]
    pub weight_decay: f64,
    /// Seed of the parameters and of the order of the data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Folder for checkpoints: one every --checkpoint-every steps, one at the end, one at Ctrl-C or
    /// SIGTERM
    #[arg(long)]
    pub checkpoint_dir: Option<String>,
    /// Steps between checkpoints
    #[arg(long, default_value_t = 100, requires = "checkpoint_dir", value_parser = clap::value_parser!(u32).range(1..))]
    pub checkpoint_every: u32,
    /// Resume from the newest intact checkpoint in --checkpoint-dir
    #[arg(long, requires = "checkpoint_dir")]
    pub resume: bool,
    /// Weights to start from, in the format of transformers: a .safetensors file, or a folder with
    /// model.safetensors or its index
    #[arg(long)]
    pub weights: Option<String>,
    /// Folder with the adapter to start from, as PEFT writes it: adapter_config.json and
    /// adapter_model.safetensors
    #[arg(long)]
    pub adapter: Option<String>,
    /// Folder for the weights at the end, in the format of transformers; configuration and
    /// tokenizer are copied from a folder of --weights
    #[arg(long)]
    pub save_weights: Option<String>,
    /// Folder for the adapter at the end, in the format of PEFT
    #[arg(long)]
    pub save_adapter: Option<String>,
    /// The outputs of inference to write, as safetensors
    #[arg(long)]
    pub save_outputs: Option<String>,
    /// The measured trace to write
    #[arg(short, long)]
    pub output: Option<String>,
}

/// The decay of a learning rate after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Decay {
    /// None
    Constant,
    /// Linear to 0
    Linear,
    /// Half a cosine to 0
    Cosine,
}

impl From<Decay> for spipe_exec::Decay {
    fn from(decay: Decay) -> Self {
        match decay {
            Decay::Constant => Self::Constant,
            Decay::Linear => Self::Linear,
            Decay::Cosine => Self::Cosine,
        }
    }
}

/// A learning rate.
fn rate(given: &str) -> Result<f64, String> {
    let rate = given.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate >= 0.0);
    rate.ok_or_else(|| "a rate is a number of at least 0, such as 1e-3".into())
}
