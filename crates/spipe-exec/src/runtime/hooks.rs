//! The parts of a run that tests replace, to inject faults.

use crate::{
    device::pinning::Pin,
    host::available_memory,
    persist::checkpoint::{Disk, RealDisk},
};
use spipe_base::{ActionId, Bytes, LayerId};

/// The parts of a run that tests replace, to inject faults.
pub(crate) struct Hooks<'a> {
    /// Called before each action; may panic.
    pub before: &'a (dyn Fn(u32, ActionId) + Sync),
    /// Where checkpoints are written.
    pub disk: &'a dyn Disk,
    /// Whether the gradient of a layer becomes NaN in an iteration.
    pub inject_nan: fn(u32, LayerId) -> bool,
    /// Whether emulated accelerators count as devices with discrete memory.
    pub discrete_memory: bool,
    /// Memory of the host that nothing needs; none if it is unknown.
    pub available_memory: fn() -> Option<Bytes>,
    /// How host memory is pinned; none: as the drivers of the run's devices do it, if one does.
    pub pin: Option<&'a Pin<'a>>,
}

impl Hooks<'_> {
    /// The parts of every run outside of tests.
    pub const NONE: Self = Self {
        before: &|_, _| {},
        disk: &RealDisk,
        inject_nan: |_, _| false,
        discrete_memory: false,
        available_memory,
        pin: None,
    };
}
