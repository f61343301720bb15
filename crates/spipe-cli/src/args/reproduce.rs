//! What `spipe reproduce` and `spipe prediction-error` take.

use clap::Args as Group;
use spipe_base::{BytesPerSecond, Seconds};

/// Published tables to reproduce.
///
/// Each table is made from a TOML file of rows: published figures, what they were measured with, and whether a row is there to fit
/// constants on or to be predicted. The rows that are built in are in crates/spipe-cli/data, one file per table, whose first lines
/// explain its columns; a file of other rows in the same format (other models, machines, counts) goes to --rows and needs no code. It
/// names its table with `table = "NAME"`; without that it is for the first table of the name that is asked for. Tables by name:
///
/// zero-bubble: bubble rates from profiled stage times.
/// pipeoffload: the ratio k; pipeoffload-peaks: activations and bubbles at unit times; pipeoffload-runs: utilisation, memory and what
/// ran out of it; pipeoffload-tensor: the same beside tensor parallelism. spipe: spipe-figure-14, -9, -10 and -12: iteration times of SPipe and Mobius; spipe-tails: serial optimizers.
/// superpipeline: time and memory by k and k'; superpipeline-training: memory by batch. spipe-article: five claimed configurations.
#[derive(Debug, Group)]
pub struct Reproduce {
    /// zero-bubble, pipeoffload, spipe, superpipeline, spipe-article, or one of their tables; or all; or planner: our plans beside
    /// the baselines'
    pub name: String,
    /// Folder for the tables (Markdown, JSON) and their pictures (SVG, PNG)
    #[arg(short, long)]
    pub output: String,
    /// Other rows in the format of the table
    #[arg(long)]
    pub rows: Option<String>,
}

/// What to predict and to measure.
#[derive(Debug, Group)]
pub struct PredictionError {
    /// Text to train on, byte by byte; without it, this repository's own sources
    #[arg(long)]
    pub data: Option<String>,
    /// Model to train: a Llama-style model file or the name of a shipped one
    #[arg(long, default_value = "demo")]
    pub model: String,
    /// CPU backend: ndarray
    #[arg(long, default_value = "ndarray")]
    pub backend: String,
    /// How often the devices of each system are measured and the system run; the round whose error is the median is shown
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Only the systems whose titles contain this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Steps of a round that count, after those that warm up
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Seed of the parameters and of the order of the data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Bandwidth of an emulated accelerator's link, each way
    #[arg(long, default_value = "2 GB/s")]
    pub emulated_link: BytesPerSecond,
    /// How long to measure the devices of a system in a round
    #[arg(long, default_value = "10 s")]
    pub time_limit: Seconds,
    /// The table to write, - for stdout; without it reports/prediction-error.md, or with --only none
    #[arg(short, long)]
    pub output: Option<String>,
}
