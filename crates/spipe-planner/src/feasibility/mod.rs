//! Feasibility: whether stages fit the memories, and the bytes that are missing if they do not.
//!
//! - [`capacity`]: exact feasibility of pipelines, one or several stages per device
//! - [`shortage`]: reasons before any search and over all partitions of subproblems
//! - [`closest`]: the generated candidate that lacks the fewest bytes

pub(crate) mod capacity;
pub(crate) mod closest;
pub(crate) mod shortage;
