//! Integer programs: the variables, rows and objective of each, and the one module that calls the
//! solver.
//!
//! - [`assignment`] decides the layers per run, position, device class and mode. It serves bounds
//!   and candidates of every system but the sharded ones.
//! - [`sharded`] decides the layers per run and mode, shared by all GPUs. It serves bounds and
//!   candidates of FSDP and ZeRO-Infinity.

pub(crate) mod assignment;
pub(crate) mod sharded;
pub(crate) mod solver;
