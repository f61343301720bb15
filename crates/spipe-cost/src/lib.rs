//! Model times hardware: how long each layer takes on each device, and how many bytes it holds there.
//!
//! ```text
//! Model ────┐
//! Hardware ─┼─► CostTable ─┬─ time(layer, device)    forward, backward-input, backward-weight, optimizer step
//! Workload ─┘              └─ memory(layer, device)  parameters, gradients, optimizer, saved, boundary, workspace
//! ```
//!
//! Times come, in this order of trust, from a measurement of exactly this layer and batch in the hardware profile, from
//! the measured times of a profiled model, and from a roofline: each operation takes
//! `launch floor × kernels + max(FLOPs ÷ rate(FLOPs), bytes ÷ bandwidth(bytes))`, where both rates depend on the size of
//! the operation (Williams, Waterman, Patterson: Roofline, CACM 2009; the size dependence is the profile's curve).
//! [`Source`] says which it was.
//!
//! [`Parallelism`] is the baseline without a pipeline: tensor and data parallelism over the machine's GPUs.

mod memory;
mod parallel;
mod roofline;
mod table;
mod workload;

pub use memory::LayerMemory;
pub use parallel::{ParallelCost, ParallelError, Parallelism, all_reduce};
pub use table::{CostError, CostTable, LayerTime, Source};
pub use workload::{ClipNorm, MOST_TOKENS, Mode, Optimizer, Workload, check_batch, compute_type};
