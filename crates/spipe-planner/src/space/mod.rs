//! The placements there are: what each system may do, the device orders, and how a stage is changed.

pub(crate) mod device_orders;
pub(crate) mod enumerate;
mod pinned;
pub(crate) mod rules;
pub(crate) mod sharded;
pub(crate) mod stage_edits;
pub(crate) mod subproblem;
