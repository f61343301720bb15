//! Devices: how a binding names one, how it is opened, and copies between its memory and the
//! host's.

pub(crate) mod arena;
mod binding;
mod context;
mod cpu;
mod error;
#[cfg(feature = "cube")]
mod kernel_cache;
#[cfg(feature = "cube")]
pub(crate) mod launches;
pub(crate) mod pinning;
pub(crate) mod simd;
pub(crate) mod transfer;

pub use binding::{Backend, Binding, Executor};
pub(crate) use context::DeviceContext;
pub use context::{assign_cores, available};
pub(crate) use cpu::{Cores, cores, numbers, with_numbers};
pub use error::DeviceError;
use std::collections::BTreeMap;

/// Kernels that this process has launched on GPUs since the last call; none where it has not opened
/// any.
#[cfg(feature = "cube")]
pub(crate) fn recent_launches() -> Option<u64> {
    launches::is_observing().then(launches::take)
}

/// Kernels that this process has launched on GPUs, which are not compiled in.
#[cfg(not(feature = "cube"))]
pub(crate) const fn recent_launches() -> Option<u64> {
    None
}

/// The choices of the tuner of GPUs that are known here, each by the checksum of its question.
#[cfg(feature = "cube")]
pub(crate) fn tuned() -> BTreeMap<String, u64> {
    if launches::is_observing() { kernel_cache::choices() } else { BTreeMap::new() }
}

/// The choices of the tuner of GPUs, which are not compiled in.
#[cfg(not(feature = "cube"))]
pub(crate) const fn tuned() -> BTreeMap<String, u64> {
    BTreeMap::new()
}
