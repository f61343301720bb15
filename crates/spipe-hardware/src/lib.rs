//! The machine: devices, memories, NUMA nodes, links and routes.
//!
//! ```text
//! gpu0 ─pcie0─ root0 ─root0-dram0─ dram0 (cpu0) ─upi─ dram1 (cpu1) ─dram1-root1─ root1 ─ …
//!                                    │                  │
//!                             dram0.channels      dram1.channels
//!
//! text ──read──► HardwareFile ──expand, check, build──► Hardware   (immutable: ids, all routes)
//! ```
//!
//! [`Hardware::from_toml`] refuses a file with all of its faults, each with its position. Memories
//! are `gpu0`, `dram0` (pinned host memory), `dram0-pageable` (the same bytes, slower to copy) and
//! `nvme0`. Links are directed: a file's link `pcie0` becomes `pcie0.up` and `pcie0.down`.
//!
//! A [`Runtime`] is what executes a plan on the machine; [`Hardware::under`] joins the two.

mod attention;
mod build;
mod check;
mod cluster;
mod collective;
mod device;
mod efficiency;
mod expand;
mod file;
mod fitted;
mod hardware;
mod interpolation;
mod load;
mod network;
mod profiles;
mod read;
mod report;
mod route;
mod runtime;
mod topology;
mod words;

pub use attention::{Attention, AttentionShape};
pub use check::MOST_NODES;
pub use collective::Collective;
pub use device::{Device, DeviceKind, Link, MeasuredLayer, Memory, MemoryKind, Provenance, Route};
pub use efficiency::{Efficiency, Saturation};
pub use file::{
    AttentionFile, CollectiveFile, CopyFile, DramFile, EfficiencyFile, ElementwisePoints, FORMAT_VERSION, GpuFile,
    HardwareFile, LayerTimeFile, LinkFile, MatmulPoints, MeasuredFile, NodeFile, NvmeFile, Peak, SocketFile, schema,
};
pub use fitted::FittedFile;
pub use hardware::Hardware;
pub use network::NetworkFile;
pub use profiles::shipped;
pub use runtime::{
    AttentionKernel, BackwardPrefetch, CollectiveKind, CollectiveRates, Constant, FactorsFile, HoldingsFile, HostFile,
    KernelsFile, LaunchesFile, LossKernel, NormKernel, ProductRates, Runtime, RuntimeFile, runtime_schema,
    shipped_runtimes,
};
pub use spipe_base::DataType;
pub use words::VectorExtension;
