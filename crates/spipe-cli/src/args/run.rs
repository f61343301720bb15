//! What `spipe demo` and `spipe run` take.

use clap::{Args as Group, ValueEnum};

/// The main job.
#[derive(Debug, Group)]
pub struct Demo {
    /// Text to train on, byte by byte; without it, this repository's own sources
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
    /// Model to train: a Llama-style model file or the name of a shipped one
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
    /// What to train on: a text, byte by byte or as `--tokenizer` reads it; for models that read images a folder with a folder
    /// of images for each class, or `synthetic`. Plans that infer continue the text, turn images into vectors, or take noise from them
    #[arg(long)]
    pub data: String,
    /// The tokenizer of the text: a tokenizer.json as Hugging Face's libraries save it, or a folder that has one
    #[arg(long)]
    pub tokenizer: Option<String>,
    /// Training steps; of plans that infer as many tokens for each sequence, batches of images, or steps of denoising
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Which executor device stands for which device of the plan, such as gpu0=emulated:0
    #[arg(long = "bind")]
    pub bindings: Vec<String>,
    /// CPU backend: ndarray
    #[arg(long, default_value = "ndarray")]
    pub backend: String,
    /// Learning rate
    #[arg(long, default_value_t = 1e-3, allow_negative_numbers = true, value_parser = rate)]
    pub learning_rate: f64,
    /// Steps in which the learning rate rises to that
    #[arg(long, default_value_t = 0)]
    pub warmup_steps: u32,
    /// What the learning rate does afterwards, to the end of the run
    #[arg(long, value_enum, default_value_t = Decay::Constant)]
    pub decay: Decay,
    /// Share of each parameter, times the learning rate, that it loses in each step
    #[arg(long, default_value_t = 0.01, allow_negative_numbers = true, value_parser = rate)]
    pub weight_decay: f64,
    /// Seed of the parameters and of the order of the data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Folder for checkpoints: one every few steps, one at the end, one at Ctrl-C or SIGTERM
    #[arg(long)]
    pub checkpoint_dir: Option<String>,
    /// Steps from one checkpoint to the next
    #[arg(long, default_value_t = 100, requires = "checkpoint_dir", value_parser = clap::value_parser!(u32).range(1..))]
    pub checkpoint_every: u32,
    /// Go on from the newest checkpoint in that folder that is whole
    #[arg(long, requires = "checkpoint_dir")]
    pub resume: bool,
    /// Weights to start from, as transformers saves them: a .safetensors file, or a folder with model.safetensors or its index
    #[arg(long)]
    pub weights: Option<String>,
    /// Folder for the weights at the end, as transformers loads them; the configuration and tokenizer of a folder of `--weights` come along
    #[arg(long)]
    pub save_weights: Option<String>,
    /// What a plan that infers has found, to be written as safetensors
    #[arg(long)]
    pub save_outputs: Option<String>,
    /// The measured trace to write
    #[arg(short, long)]
    pub output: Option<String>,
}

/// What a learning rate does after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Decay {
    /// It stays
    Constant,
    /// It falls to nothing, by as much in each step
    Linear,
    /// It falls to nothing along half a wave
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
