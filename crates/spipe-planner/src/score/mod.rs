//! What a placement is worth: checked and simulated, or estimated in closed form.

pub(crate) mod estimate;
pub(crate) mod event_graph;
pub(crate) mod judge;
pub(crate) mod sharded;
