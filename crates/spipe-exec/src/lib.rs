//! Programs carried out on real devices, and measurements of those devices.
//!
//! ```text
//! Program ─► tasks ─┐                         ┌─ lane thread ─ begin ─ compute on its Site ─ end ─┐
//! Plan, model ─► units ─► Interpreter ─► run ─┼─ lane thread ─ begin ─ copy, paced by its links ──┼─► Report, Trace
//! Binding ─► Site (device, cores) ─┘          └─ …          Board: who may start, memory, losses ─┘
//! ```
//!
//! [`run`] interprets a [`Program`](spipe_schedule::Program) with one thread per lane. It knows no systems' names: what an
//! action computes follows from its kind and from what its buffers hold. [`reference()`] trains the same model without a
//! pipeline; on one backend with as many threads per device, losses and gradients are equal bit for bit. [`calibrate`]
//! measures what the planner needs to know about the machine it runs on.
//!
//! What is executed: training and inference of decoder-only transformers, image encoders and denoising networks. Accelerators
//! hold and send f32, bf16 or f16; those that CPU cores play compute in f32 all the same. [`Executor::Cuda`] and
//! [`Executor::Wgpu`] are untested on a GPU.

mod account;
#[cfg(test)]
mod apart;
mod binding;
mod board;
mod calibrate;
mod checkpoint;
mod contention;
mod data;
mod error;
#[cfg(test)]
mod failures;
mod infer;
mod inference;
mod interpreter;
mod kernels;
mod layers;
mod optimizer;
mod pacer;
mod passes;
mod preparation;
mod reference;
#[cfg(test)]
mod rollback;
mod rules;
mod run;
mod site;
mod state;
mod steps;
mod store;
mod stored;
mod system;
mod task;
mod tensor_file;
mod trace;
mod transfer;
mod weights;
mod width;

pub use binding::{Backend, Binding, Executor};
pub use calibrate::{
    Calibration, CalibrationRequest, Copies, Measured, MeasuredLayer, Progress, Unmeasured, calibrate, measured_machine,
};
pub use checkpoint::{Checkpoint, CheckpointError, Checkpoints, Newest};
pub use contention::Contention;
pub use data::{Batch, Data, DataError, Draw, ImageBatch, ImageShape, Images, Tokens};
pub use error::{MemoryUse, RunError};
pub use infer::Outputs;
pub use optimizer::{AdamW, Decay, Exchange, Moments, NarrowMut, Numbers, Schedule, UndoLog};
pub use reference::{Inferred, Reference, inferred, reference};
pub use run::{Gradient, Options, Report, Step, run, save_weights};
pub use site::{assign_cores, available};
pub use system::host_memory;
pub use weights::WeightsError;

#[cfg(test)]
extern crate self as spipe_exec;
