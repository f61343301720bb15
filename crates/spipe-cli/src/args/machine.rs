//! The arguments of `spipe hardware` and `spipe calibrate`.

use clap::{Args as Group, Subcommand, ValueEnum};
use spipe_base::{Bytes, BytesPerSecond, Seconds};

/// The commands on machines.
#[derive(Debug, Subcommand)]
pub enum Hardware {
    /// Show devices, memories, links and routes
    Show(HardwareShow),
    /// Simulate concurrent copies
    Transfer(HardwareTransfer),
    /// List the shipped profiles
    List,
    /// Write a profile of a machine from what nvidia-smi, lscpu and numactl print about it
    Import(HardwareImport),
}

/// A machine as its tools print it.
#[derive(Debug, Group)]
pub struct HardwareImport {
    /// The output of `nvidia-smi topo -m`
    #[arg(long)]
    pub topo: String,
    /// The output of `lscpu`
    #[arg(long)]
    pub lscpu: Option<String>,
    /// The output of `numactl --hardware`
    #[arg(long)]
    pub numactl: Option<String>,
    /// A profile with the same GPU, whose rates are taken: the tools print none
    #[arg(long, required_unless_present = "gpu", conflicts_with = "gpu")]
    pub like: Option<String>,
    /// The GPU in the catalogue, whose rates are taken
    #[arg(long, requires = "platform")]
    pub gpu: Option<String>,
    /// The CPU in the catalogue
    #[arg(long, requires = "gpu")]
    pub platform: Option<String>,
    /// The memory modules of the whole machine in the catalogue, such as 8xddr4-rdimm-32g
    #[arg(long, requires = "gpu")]
    pub dram: Option<String>,
    /// The network cards that training uses, by number and line rate, such as 8x400Gb: those of the matrix that are nearest
    /// to GPUs. `plan --nodes N` then plans for several such computers
    #[arg(long, value_name = "CARDS")]
    pub network: Option<String>,
    /// The profile to write, - for stdout
    #[arg(short, long)]
    pub output: String,
}

/// A machine.
#[derive(Debug, Group)]
pub struct HardwareShow {
    /// A hardware profile, or the name of a shipped one
    pub profile: String,
}

/// Copies on a machine.
#[derive(Debug, Group)]
pub struct HardwareTransfer {
    /// A hardware profile, or the name of a shipped one
    pub profile: String,
    /// A copy as `FROM:TO:BYTES[@START][*WEIGHT][^PRIORITY]`, such as dram0:gpu0:2GiB@10ms
    #[arg(long = "flow", required = true)]
    pub flows: Vec<String>,
}

/// The runtime that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CalibratedRuntime {
    /// The executor of this program
    Spipe,
    /// PyTorch
    Pytorch,
}

/// The devices to measure.
#[derive(Debug, Group)]
pub struct Calibrate {
    /// Devices, such as cpu:0,emulated:0
    #[arg(long, value_delimiter = ',', default_value = "cpu:0")]
    pub devices: Vec<String>,
    /// The engine that measures: the executor of this program, or PyTorch, whose processes run exported plans
    #[arg(long, value_enum, default_value_t = CalibratedRuntime::Spipe)]
    pub runtime: CalibratedRuntime,
    /// The Python that has PyTorch
    #[arg(long, default_value = "python3")]
    pub python: String,
    /// The runtime file to write, with PyTorch's time per launch and iteration; for `plan --runtime`
    #[arg(long)]
    pub runtime_output: Option<String>,
    /// CPU backend: ndarray
    #[arg(long, default_value = "ndarray")]
    pub backend: String,
    /// A model whose layers are measured too
    #[arg(long)]
    pub model: Option<String>,
    /// Tokens per sequence for these layers; the model's own if not given
    #[arg(long)]
    pub seq_len: Option<u64>,
    /// Sequences per microbatch for these layers
    #[arg(long, default_value_t = 1)]
    pub microbatch: u64,
    /// Memory of each accelerator in the profile: of an emulated one all, of a GPU a cap
    #[arg(long, default_value = "1 GiB")]
    pub emulated_memory: Bytes,
    /// Bandwidth of an emulated accelerator's link, each way
    #[arg(long, default_value = "2 GB/s")]
    pub emulated_link: BytesPerSecond,
    /// Time to measure
    #[arg(long, default_value = "20 s")]
    pub time_limit: Seconds,
    /// The profile to write, - for stdout
    #[arg(short, long)]
    pub output: String,
}
