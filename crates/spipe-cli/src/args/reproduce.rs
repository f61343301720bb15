//! The arguments of `spipe reproduce` and `spipe prediction-error`.

use clap::Args as Group;
use spipe_base::{BytesPerSecond, Seconds};

/// Published tables to reproduce.
///
/// Each table is made from a TOML file of rows: published figures, their settings, and whether
/// constants are fitted on a row or the row is predicted. The built-in rows are in
/// crates/spipe-reproduce/data, one file per table; the first lines of a file explain its columns.
/// --rows takes other rows in the same format (other models, machines, counts). A file names its
/// table with `table = "NAME"`; without that, it is for the first table of the group. The tables by
/// group:
///
/// zero-bubble: bubble rates from profiled stage times.
///
/// pipeoffload: the ratio k; pipeoffload-peaks: activations and bubbles at unit times;
/// pipeoffload-runs: utilisation and memory, and which runs are out of memory; pipeoffload-tensor:
/// beside tensor parallelism.
///
/// spipe: spipe-figure-14, -9, -10 and -12: iteration times of SPipe and Mobius; spipe-tails:
/// serial optimizers.
///
/// superpipeline: time and memory by k and k'; superpipeline-training: memory by batch.
///
/// spipe-article: five claimed configurations.
#[derive(Debug, Group)]
pub struct Reproduce {
    /// A group: zero-bubble, pipeoffload, spipe, superpipeline or spipe-article; one of its tables;
    /// all; planner: our plans beside the baselines'; or runs: measured runs beside predictions, all
    /// or one group of them, such as bigscience
    pub name: String,
    /// Folder for the tables (Markdown, JSON) and pictures (SVG, PNG)
    #[arg(short, long)]
    pub output: String,
    /// A file of other rows
    #[arg(long)]
    pub rows: Option<String>,
}

/// The cases to predict and to measure.
#[derive(Debug, Group)]
pub struct PredictionError {
    /// Text to train on, byte by byte; this repository's own sources if not given
    #[arg(long)]
    pub data: Option<String>,
    /// Model to train: a Llama-style model file, or the name of a shipped one
    #[arg(long, default_value = "demo")]
    pub model: String,
    /// CPU backend: ndarray
    #[arg(long, default_value = "ndarray")]
    pub backend: String,
    /// Rounds: in each, the devices of each system are measured and the system is run; the round
    /// with the median error is reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Only the systems whose titles contain this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Measured steps of a round, after the warm-up
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Seed of the parameters and of the order of the data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Bandwidth of an emulated accelerator's link, each way
    #[arg(long, default_value = "2 GB/s")]
    pub emulated_link: BytesPerSecond,
    /// Time to measure the devices of a system in a round
    #[arg(long, default_value = "10 s")]
    pub time_limit: Seconds,
    /// The table to write, - for stdout; reports/prediction-error.md if not given, or none with
    /// --only
    #[arg(short, long)]
    pub output: Option<String>,
}
