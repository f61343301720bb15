//! Faults that tests inject into a run.

use crate::persist::checkpoint::{Disk, RealDisk};
use spipe_base::{ActionId, LayerId};

/// Faults that tests inject into a run.
pub(crate) struct Hooks<'a> {
    /// Called before each action; may panic.
    pub before: &'a (dyn Fn(u32, ActionId) + Sync),
    /// Where checkpoints are written.
    pub disk: &'a dyn Disk,
    /// Whether the gradient of a layer becomes NaN in an iteration.
    pub inject_nan: fn(u32, LayerId) -> bool,
    /// Whether emulated accelerators count as devices with discrete memory.
    pub discrete_memory: bool,
}

impl Hooks<'_> {
    /// No faults.
    pub const NONE: Self =
        Self { before: &|_, _| {}, disk: &RealDisk, inject_nan: |_, _| false, discrete_memory: false };
}
