//! The arguments, and nothing else.

use crate::solving::Unknown;
use clap::{Args as Group, Parser, Subcommand, ValueEnum};
use spipe_base::{Bytes, BytesPerSecond, Seconds};
use spipe_cost::{Mode, Optimizer};
use spipe_model::{Precision, Recompute};

/// Plans, predicts, draws and runs the training of models that do not fit in GPU memory.
#[derive(Debug, Parser)]
#[command(
    name = "spipe",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done; 1 bug; 2 wrong arguments; 3 unreadable or invalid input; 4 no feasible plan; 5 stopped at the limit with nothing feasible; 6 a check or comparison failed; 7 no suitable device"
)]
pub struct Args {
    /// What to print on stdout
    #[arg(long, global = true, value_enum, default_value_t = Format::Human)]
    pub format: Format,
    /// Say more on stderr; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Human,
    /// For programs
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure, plan, simulate, train and compare on this machine, in one go
    Demo(Demo),
    /// Show or import a model
    #[command(subcommand)]
    Model(Model),
    /// Show a machine, or when copies on it finish
    #[command(subcommand)]
    Hardware(Hardware),
    /// Measure this machine and write a hardware profile
    Calibrate(Calibrate),
    /// Find the best plan for a model on a machine
    Plan(Plan),
    /// Price a model without a pipeline, in closed form
    #[command(subcommand)]
    Baseline(Baseline),
    /// Predict the iteration of a plan
    Simulate(Simulate),
    /// Draw one trace, or two above each other
    Timeline(Timeline),
    /// Run a plan for real
    Run(Run),
    /// Compare a predicted with a measured trace
    Compare(Compare),
    /// Predict and measure the iteration of several systems on this machine
    PredictionError(PredictionError),
    /// Show the schedule of a system from stage times alone
    Schedule(Schedule),
    /// Compare published measurements with what this program predicts
    Reproduce(Reproduce),
    /// Print the JSON schema of a file format
    Schema(Schema),
    /// Print completions for a shell
    Completions(Completions),
    /// Print the manual page
    Man,
}

/// The main job.
#[derive(Debug, Group)]
pub struct Demo {
    /// Text to train on, byte by byte; without it, this repository's own sources
    #[arg(long)]
    pub data: Option<String>,
    /// Folder for the results
    #[arg(short, long, default_value = "reports/demo")]
    pub output: String,
    /// Training steps
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// CPU backend
    #[arg(long, default_value = "ndarray")]
    pub backend: String,
    /// Model to train: a Llama-style model file or the name of a shipped one
    #[arg(long, default_value = "demo")]
    pub model: String,
    /// Seed of the parameters and of the order of the data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
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
    /// CPU backend
    #[arg(long, default_value = "flex")]
    pub backend: String,
    /// Steps that count, after those that warm up
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Seed of the parameters and of the order of the data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Bandwidth of an emulated accelerator's link, each way
    #[arg(long, default_value = "2 GB/s")]
    pub emulated_link: BytesPerSecond,
    /// How long to measure each set of devices
    #[arg(long, default_value = "10 s")]
    pub time_limit: Seconds,
    /// The table to write, - for stdout
    #[arg(short, long, default_value = "reports/prediction-error.md")]
    pub output: String,
}

/// What can be done with models.
#[derive(Debug, Subcommand)]
pub enum Model {
    /// Show layers, parameters, FLOPs and bytes
    Show(ModelShow),
    /// Make a model file from a Hugging Face config.json
    Import(ModelImport),
    /// List the shipped models
    List,
}

/// A model and a batch.
#[derive(Debug, Group)]
pub struct ModelShow {
    /// A model file or the name of a shipped model
    pub model: String,
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
    /// The config.json
    pub config: String,
    /// The model file to write, - for stdout
    #[arg(short, long)]
    pub output: String,
}

/// What can be asked of machines.
#[derive(Debug, Subcommand)]
pub enum Hardware {
    /// Show devices, memories, links and routes
    Show(HardwareShow),
    /// Say when concurrent copies finish
    Transfer(HardwareTransfer),
    /// List the shipped profiles
    List,
}

/// A machine.
#[derive(Debug, Group)]
pub struct HardwareShow {
    /// A profile or the name of a shipped one
    pub profile: String,
}

/// Copies on a machine.
#[derive(Debug, Group)]
pub struct HardwareTransfer {
    /// A profile or the name of a shipped one
    pub profile: String,
    /// A copy as `FROM:TO:BYTES[@START][*WEIGHT][^PRIORITY]`, such as dram0:gpu0:2GiB@10ms
    #[arg(long = "flow", required = true)]
    pub flows: Vec<String>,
}

/// What to measure.
#[derive(Debug, Group)]
pub struct Calibrate {
    /// Devices, such as cpu:0,emulated:0
    #[arg(long, value_delimiter = ',', default_value = "cpu:0")]
    pub devices: Vec<String>,
    /// CPU backend
    #[arg(long, default_value = "ndarray")]
    pub backend: String,
    /// Also measure the layers of this model
    #[arg(long)]
    pub model: Option<String>,
    /// Tokens per sequence for those layers
    #[arg(long)]
    pub seq_len: Option<u64>,
    /// Sequences per microbatch for those layers
    #[arg(long, default_value_t = 1)]
    pub microbatch: u64,
    /// Memory of an emulated accelerator
    #[arg(long, default_value = "1 GiB")]
    pub emulated_memory: Bytes,
    /// Bandwidth of its link, each way
    #[arg(long, default_value = "2 GB/s")]
    pub emulated_link: BytesPerSecond,
    /// How long to measure
    #[arg(long, default_value = "20 s")]
    pub time_limit: Seconds,
    /// The profile to write, - for stdout
    #[arg(short, long)]
    pub output: String,
}

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
    #[arg(long, conflicts_with_all = ["model", "hardware", "global_batch", "seq_len", "solve_for"])]
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
    /// Training or inference
    #[arg(long, default_value = "train")]
    pub mode: Mode,
    /// A system, several with commas between them, or auto for all that suit
    #[arg(long, default_value = "auto")]
    pub system: String,
    /// ilp, dp, greedy, exhaustive or mobius-mip
    #[arg(long, default_value = "ilp")]
    pub planner: String,
    /// Optimizer
    #[arg(long, default_value = "adamw")]
    pub optimizer: Optimizer,
    /// Data type of parameters and activations
    #[arg(long, default_value = "bf16")]
    pub precision: Precision,
    /// Assume attention that writes its scores to memory
    #[arg(long)]
    pub materialised_attention: bool,
    /// Layers that are not trained, such as 0..3 or block.0..block.3
    #[arg(long)]
    pub freeze: Vec<String>,
    /// What the plan must hold: layer=0..3:cpu0, stage=0:gpu1, recompute=4..7, save=4..7, system=1f1b or microbatch=2
    #[arg(long)]
    pub pin: Vec<String>,
    /// Find the largest value of this for which some plan fits
    #[arg(long, value_enum)]
    pub solve_for: Option<Unknown>,
    /// Also plan with 10 % more GPU memory, DRAM, bandwidth of links and arithmetic, and say what each would gain
    #[arg(long)]
    pub sensitivity: bool,
    /// How long to search
    #[arg(long, default_value = "60s")]
    pub time_limit: Seconds,
    /// Stop when no other plan can be faster by more than this
    #[arg(long, default_value = "0.5%")]
    pub gap: String,
    /// Threads to search with; all cores if not given
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
    /// Training or inference
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

/// A plan to predict.
#[derive(Debug, Group)]
pub struct Simulate {
    /// The plan
    pub plan: String,
    /// The trace to write
    #[arg(short, long)]
    pub output: Option<String>,
}

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

/// Traces to draw.
#[derive(Debug, Group)]
pub struct Timeline {
    /// The trace
    pub trace: String,
    /// Another trace, drawn below it on the same time axis
    pub second: Option<String>,
    /// The picture: .svg, .png, .html, .txt or .perfetto.json
    #[arg(short, long)]
    pub output: String,
}

/// A plan to run.
#[derive(Debug, Group)]
pub struct Run {
    /// The plan
    pub plan: String,
    /// What to train on: a text, byte by byte; for models that read images a folder with a folder of images for each class,
    /// or `synthetic`. Plans that infer continue the text, turn images into vectors, or take noise from them
    #[arg(long)]
    pub data: String,
    /// Training steps; of plans that infer as many tokens for each sequence, batches of images, or steps of denoising
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Which executor device stands for which device of the plan, such as gpu0=emulated:0
    #[arg(long = "bind")]
    pub bindings: Vec<String>,
    /// CPU backend
    #[arg(long, default_value = "ndarray")]
    pub backend: String,
    /// Learning rate
    #[arg(long, default_value_t = 1e-3)]
    pub learning_rate: f64,
    /// Seed of the parameters and of the order of the data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Folder for checkpoints: one every few steps, one at the end, one at Ctrl-C
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
    /// Folder for the weights at the end, as transformers loads them
    #[arg(long)]
    pub save_weights: Option<String>,
    /// What a plan that infers has found, to be written as safetensors
    #[arg(long)]
    pub save_outputs: Option<String>,
    /// The measured trace to write
    #[arg(short, long)]
    pub output: Option<String>,
}

/// Two traces.
#[derive(Debug, Group)]
pub struct Compare {
    /// The prediction
    pub predicted: String,
    /// The measurement
    pub measured: String,
    /// Fail with exit code 6 if the iteration is off by more than this, such as 10%
    #[arg(long)]
    pub tolerance: Option<String>,
}

/// A schedule by itself.
#[derive(Debug, Group)]
pub struct Schedule {
    /// Such as 1f1b, interleaved-1f1b, zb-2p, gis, spipe or superpipeline; or custom, with a file
    pub system: String,
    /// The order of a custom schedule: one line per device, such as 0F0,0B0
    pub file: Option<String>,
    /// Devices
    #[arg(long, default_value_t = 4)]
    pub devices: usize,
    /// Microbatches
    #[arg(long, default_value_t = 8)]
    pub microbatches: usize,
    /// Chunks of the model on each device; each is a stage (interleaved-1f1b, gis, gis-h, po-h, po-f)
    #[arg(long)]
    pub chunks: Option<usize>,
    /// Microbatches that pass a chunk together (gis, gis-h)
    #[arg(long)]
    pub group: Option<usize>,
    /// The most activations that a device may hold (zb-1p, zb-2p, zb-v, zb-v-2p)
    #[arg(long)]
    pub memory_limit: Option<f64>,
    /// Chunks of each device whose activations are offloaded: by default half of them (po-h) or all (po-f)
    #[arg(long)]
    pub offload_chunks: Option<usize>,
    /// Time of an activation's way to the host and back over the time of its forward and backward; 1 if not given
    /// (po-h, po-f)
    #[arg(long)]
    pub offload_ratio: Option<f64>,
    /// Forward of one stage
    #[arg(long, default_value = "1 ms")]
    pub forward: Seconds,
    /// Forward stages of each device: 2 if not given (spipe), 1 (mobius)
    #[arg(long)]
    pub forward_chunks: Option<usize>,
    /// Backward stages of each device: three times as many if not given (spipe), the same (mobius)
    #[arg(long)]
    pub backward_chunks: Option<usize>,
    /// Backward of one stage with its recompute (spipe, mobius)
    #[arg(long)]
    pub backward: Option<Seconds>,
    /// Repeated layers (superpipeline)
    #[arg(long)]
    pub units: Option<usize>,
    /// k, the units on the device (superpipeline)
    #[arg(long)]
    pub resident: Option<usize>,
    /// k', the units exchanged at a time (superpipeline)
    #[arg(long)]
    pub swap: Option<usize>,
    /// Arithmetic of one unit (superpipeline)
    #[arg(long)]
    pub compute: Option<Seconds>,
    /// Its way to the device (superpipeline)
    #[arg(long)]
    pub load: Option<Seconds>,
    /// Its way back; 0 where the host keeps what it has (superpipeline)
    #[arg(long, default_value = "0 ms")]
    pub evict: Seconds,
    /// Gradient of its input
    #[arg(long, default_value = "1 ms")]
    pub backward_input: Seconds,
    /// Gradients of its weights
    #[arg(long, default_value = "1 ms")]
    pub backward_weight: Seconds,
    /// From one device to another
    #[arg(long, default_value = "0 ms")]
    pub latency: Seconds,
    /// Share of an activation that is kept until the backward-weight
    #[arg(long, default_value_t = 1.0)]
    pub weight_grad_memory: f64,
    /// More warm-up forwards (hybrid)
    #[arg(long, default_value_t = 0)]
    pub head_start: usize,
    /// Also draw it: .svg, .png, .html, .txt or .perfetto.json, or .json for the trace
    #[arg(short, long)]
    pub output: Option<String>,
}

/// A file format.
#[derive(Debug, Group)]
pub struct Schema {
    /// model, hardware, plan or trace
    pub name: String,
}

/// A shell.
#[derive(Debug, Group)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}
