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
//! Bytes and the work of steps follow from the [`groups()`] of a layer's parameters, each with its storage,
//! its gradients and its optimizer's state: full training, frozen layers, adapters and quantised bases
//! are rows of one table.
//!
//! Under a [`Mesh`], the figures of a device are those of each member of the team that it leads.
//!
//! [`Parallelism`] is the closed form without a pipeline: tensor and data parallelism over the
//! machine's GPUs.
//!
#![doc = include_str!("../README.md")]
#![doc = include_str!("../ADAPTERS.md")]

mod added;
mod all_to_all;
mod bound;
pub mod collectives;
mod data;
mod divided;
mod error;
pub mod exchanges;
mod formats;
mod groups;
mod launches;
mod lengths;
mod memory;
mod mesh;
mod optimizer;
mod parallel;
mod roofline;
mod shaped;
mod shard_groups;
mod shared_links;
mod steps;
mod table;
mod times;
mod training;
mod words;
mod workload;

pub use all_to_all::AllToAll;
pub use bound::{BOUND_ROUNDING, layer_time, least_iteration, least_time};
pub use collectives::Rings;
pub use data::{DataShape, PaddingShare};
pub use error::CostError;
pub use formats::{Base, BaseFormat, Formats, GradientFormat, Master, StateFormat};
pub use groups::{Group, Training, groups};
pub use lengths::{LengthShare, Lengths};
pub use memory::LayerMemory;
pub use mesh::{Mesh, Sharding, Team};
pub use optimizer::{ADAMW_STEP_BYTES, Optimizer};
pub use parallel::{ParallelCost, ParallelError, Parallelism, all_reduce};
pub use shard_groups::ShardGroups;
pub use shared_links::SharedLinks;
pub use table::CostTable;
pub use times::{LayerTime, Source};
pub use training::check_training;
pub use workload::{ClipNorm, MOST_TOKENS, Mode, Workload, check_batch, compute_type, product_type};
