//! Runs programs on real devices, and measures those devices.
//!
//! ```text
//! Program ─► tasks ─┐                         ┌─ lane thread ─ begin ─ compute on its device ─ end ────┐
//! Plan, model ─► units ─► Interpreter ─► run ─┼─ lane thread ─ begin ─ copy, paced by its links ─ end ─┼─► Report, Trace
//! Binding ─► DeviceContext (device, cores) ───┘  └─ …       Monitor: who may start, memory, losses ────┘
//! ```
//!
//! [`run`] interprets a [`Program`](spipe_schedule::Program) with one thread per lane. It knows no
//! system by name: the kind of an action and the contents of its buffers say what the action
//! computes. [`reference()`] trains the same model without a pipeline; with the same backend and
//! the same number of threads per device, losses and gradients are equal bit for bit.
//! [`calibrate()`] measures this machine for the planner.
//!
//! Decoder-only transformers, image encoders and denoising networks can be trained and used for
//! inference. Accelerators store and send f32, bf16 or f16; CPU cores that emulate an accelerator
//! compute in f32 all the same. [`Executor::Cuda`] was run on one GPU, [`Executor::Wgpu`] on none.
//!
//! Modules import only from modules further down:
//!
//! ```text
//! reference   calibrate
//!     runtime     │         threads, memory ledger, traces
//!     actions     │         tasks, values of buffers, transfers
//!    inference    │
//!   report  options  error
//!        persist            checkpoints, weights
//!         stored             matrices in their storage type
//!       quantised            matrices of a quantised base
//!       optimizer
//!           nn              layers, kernels, forward and backward passes
//!   device  data  host  task_error
//! ```

mod actions;
mod calibrate;
mod data;
mod device;
mod error;
mod host;
mod inference;
mod nn;
mod optimizer;
mod options;
mod persist;
mod quantised;
mod reference;
mod report;
mod runtime;
mod stored;
mod task_error;
#[cfg(test)]
mod testing;

pub use calibrate::{
    Calibration, CalibrationRequest, Copies, Measured, MeasuredLayer, Progress, Unmeasured, calibrate, measured_machine,
};
pub use data::{Batch, Data, DataError, Draw, ImageBatch, ImageShape, Images, Tokens};
pub use device::{Backend, Binding, DeviceError, Executor, assign_cores, available};
pub use error::RunError;
pub use host::{Allocator, Contention, HostWork, Watch, host_memory};
pub use optimizer::{
    AdamW, Decay, Exchange, Extent, HalfMut, Numbers, Optimizer, Schedule, StepSettings, TensorState, UndoLog,
};
pub use options::Options;
pub use persist::{
    checkpoint::{Checkpoint, CheckpointError, Checkpoints, Newest},
    weights::{WeightsError, merge_adapter},
};
pub use reference::{Inferred, Reference, inferred, reference};
pub use report::{Gradient, MemoryUse, Outputs, Report, Step, ThreadWork};
pub use runtime::{check_plan, check_weights, run, save_initial_weights, save_weights};
pub use task_error::{NotFinite, TaskError};

#[cfg(test)]
extern crate self as spipe_exec;
