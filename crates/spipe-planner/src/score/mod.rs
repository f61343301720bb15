//! The value of a placement: checked and simulated, estimated, or bounded from below.
//!
//! - [`judge`]: pins, checker and simulator, and the busiest device's time
//! - [`estimate`]: the iteration time of a pipeline in closed form, by which candidates are ordered
//! - [`event_graph`]: the exact period of a schedule without contention, and its critical cycles
//! - [`lane`]: the resources that placements load
//! - [`sharded`]: loads and estimates of sharded placements
//! - [`streamed`]: estimates of placements that stream parameters

pub(crate) mod estimate;
pub(crate) mod event_graph;
pub(crate) mod judge;
pub(crate) mod lane;
pub(crate) mod sharded;
pub(crate) mod streamed;
