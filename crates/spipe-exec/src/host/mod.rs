//! The machine that this process runs on: memory, and CPU time that others take.

mod contention;
mod memory;
#[cfg_attr(target_os = "linux", path = "linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "unknown.rs")]
mod system;
mod ticks;

pub use contention::{Contention, Watch};
pub(crate) use memory::Growth;
pub use memory::host_memory;
