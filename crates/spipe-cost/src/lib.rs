//! The cost of each layer of a model on each device of a machine: time and memory.
//!
//! ```text
//! Model ────┐
//! Hardware ─┼─► CostTable ─┬─ time(layer, device)    of forward, backward-input, backward-weight
//! Workload ─┘              └─ memory(layer, device)  of parameters, gradients, optimizer,
//!                                                    saved activations, boundary, workspace
//! ```
//!
//! The source of a time is, in order of preference:
//!
//! - a measurement of exactly this layer and batch in the hardware profile;
//! - the measured times of a profiled model;
//! - a roofline (Williams, Waterman, Patterson: Roofline, CACM 2009): each operation takes
//!   `launch floor × kernels + max(FLOPs ÷ rate(FLOPs), bytes ÷ bandwidth(bytes))`, where both
//!   rates depend on the size of the operation as the hardware profile states.
//!
//! [`Source`] names the one used. Under a runtime that states kernel launches, a roofline's time is at
//! least the host's ([`Hardware::runtime`](spipe_hardware::Hardware::runtime)).
//!
//! [`Parallelism`] is the baseline without a pipeline: tensor and data parallelism over the
//! machine's GPUs.

mod error;
mod launches;
mod memory;
mod parallel;
mod roofline;
mod table;
mod workload;

pub use error::CostError;
pub use memory::LayerMemory;
pub use parallel::{ParallelCost, ParallelError, Parallelism, all_reduce};
pub use table::{CostTable, LayerTime, Source};
pub use workload::{ClipNorm, MOST_TOKENS, Mode, Optimizer, Workload, check_batch, compute_type};
