//! Devices: how a binding names one, how it is opened, and copies between its memory and the
//! host's.

mod binding;
mod context;
mod cpu;
mod error;
pub(crate) mod simd;
pub(crate) mod transfer;

pub use binding::{Backend, Binding, Executor};
pub(crate) use context::DeviceContext;
pub use context::{assign_cores, available};
pub(crate) use cpu::{Cores, cores, numbers};
pub use error::DeviceError;
