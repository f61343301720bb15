//! CPU time as the kernel counts it.

/// Times since boot, or since the start of the process, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ticks {
    /// Of all cores, idle or not.
    pub all: u64,
    pub busy: u64,
    pub stolen: u64,
    /// Of all threads of this process, including those that have ended, and of processes that it started and
    /// waited for.
    pub own: u64,
}
