//! Scores of sharded placements, whose stages all GPUs share.
//!
//! - [`load`]: the time for which each resource is busy, a lower bound
//! - [`walk`]: an estimate of the iteration time, step by step

pub(crate) mod load;
mod walk;

pub(crate) use load::busiest;
pub(crate) use walk::estimate;
