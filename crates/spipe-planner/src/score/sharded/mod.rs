//! Placements that all GPUs share: how busy they keep each lane, and about how long an iteration takes.

pub(crate) mod load;
mod walk;

pub(crate) use load::busiest;
pub(crate) use walk::estimate;
