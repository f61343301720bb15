//! The machine that this process runs on: memory, the work of threads with it, and CPU time that others take.

mod allocator;
mod contention;
mod memory;
#[cfg_attr(target_os = "linux", path = "linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "unknown.rs")]
mod system;
mod ticks;
mod work;

pub use allocator::Allocator;
pub use contention::{Contention, Watch};
pub use memory::host_memory;
pub(crate) use memory::{Growth, available_memory};
pub use work::HostWork;
pub(crate) use work::{Tally, Watched, count_copied, count_moved, count_unpinned};
