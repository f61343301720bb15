//! Devices: how a binding names one, how it is opened, and copies between its memory and the
//! host's.

pub(crate) mod arena;
mod binding;
mod context;
mod cpu;
mod error;
pub(crate) mod simd;
pub(crate) mod transfer;

pub use binding::{Backend, Binding, Executor};
pub(crate) use context::DeviceContext;
pub use context::{assign_cores, available};
pub(crate) use cpu::{Cores, cores, numbers, with_numbers};
pub use error::DeviceError;
