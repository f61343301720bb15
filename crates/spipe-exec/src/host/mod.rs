//! The machine that this process runs on, as Linux describes it.

mod contention;
mod memory;

pub use contention::Contention;
pub(crate) use contention::Watch;
pub(crate) use memory::Growth;
pub use memory::host_memory;
