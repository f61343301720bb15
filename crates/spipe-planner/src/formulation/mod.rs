//! Integer programs: the variables, rows and objective of each, and the one module that calls the
//! solver.
//!
//! | module | decides | serves |
//! |---|---|---|
//! | [`assignment`] | layers per run, position, device class and mode | bounds and candidates of every system but the sharded ones |
//! | [`sharded`] | layers per run and mode, shared by all GPUs | bounds and candidates of FSDP and ZeRO-Infinity |
//! | [`stage_milp`] | stage boundaries and modes of one device order | branch and bound over device orders |

pub(crate) mod assignment;
pub(crate) mod sharded;
pub(crate) mod solver;
pub(crate) mod stage_milp;
pub(crate) mod valid_inequalities;
