//! Planners: who gets which layers, and how sure we are.
//!
//! ```text
//!            ┌ greedy       fills GPUs in layer order, spills to sockets     heuristic
//! Problem ──►┤ dp           balances the stages of each device order         heuristic
//!            │ ilp          proves a lower bound, simulates what may win     optimal within the gap
//!            ├ exhaustive   simulates everything, on small cases             optimal
//!            └ mobius-mip   cuts Mobius' stages by its integer program       heuristic
//! ```
//!
//! The space of placements: contiguous stages, at most one per device, any of the machine's devices in any order, per
//! stage the number of its first layers that are recomputed and what the host does for it on a GPU (the optimizer,
//! the activations between the passes, both, or nothing), and a system: GPipe, 1F1B, or the hybrid with a head start
//! of up to [`LARGEST_HEAD_START`] where a CPU socket has a stage. A plan is judged by the iteration time that the
//! problem's [`Score`] returns for it (a simulation), under the memory count of [`spipe_plan::footprint`].
//!
//! How the ILP planner works:
//!
//! ```text
//! device sequences, up to symmetry ─► × systems = cases ─► bound over all choices ─┬─ cannot beat the best plan: skipped
//!                                                                                  └─ ILP of the case ◄── critical-path cuts, no-goods
//!                                                                                     └─► candidate ─► score ─► best plan
//! ```
//!
//! Whether anything fits at all, [`fits`] decides before any search: what the layers of a device need, however they are cut into stages
//! there, depends on how many devices are behind it and not on which, so that a dynamic program over counts of devices finds stages that
//! fit, or shows that none do.
//!
//! [`plan_all`] searches over all systems: it bounds each, leaves stages to the ILP, generates and simulates placements of
//! the others, improves the best few by single changes, tries everything of systems that have few placements, and anneals the best
//! pipeline. The bound is a linear program over layers by their run, device, and what is chosen for them. With whole layers it bounds more
//! tightly, and decides how many are streamed, kept, recomputed, offloaded and stepped on the host where a device has several stages;
//! these are no faster than a single one that steps, saves and recomputes nothing, which bounds them too. What the ILP proves is about one
//! stage per device; what [`plan_all`] claims is about all placements, with any number of stages on a device.
//!
//! Results are the same for any number of threads, unless the time limit or the stop signal struck.

mod bisect;
mod bounds;
mod candidates;
mod costs;
mod feasibility;
mod formulation;
mod hosts;
mod improve;
mod problem;
mod remedies;
mod score;
mod search;
mod space;

#[cfg(test)]
#[path = "../tests/common/instances.rs"]
mod common;
#[cfg(test)]
#[path = "../tests/common/runner.rs"]
mod runner;

pub use candidates::candidates;
pub use feasibility::shortage::listed;
pub use problem::{
    Claim, Considered, Insight, LARGEST_HEAD_START, MOST_OFFLOAD_SLOTS, Options, PlanError, Planner, Problem, SYSTEMS,
    Score, Solution, Waits, Within,
    pins::{Contradiction, Named, Pin, Pins},
};
pub use remedies::{Fits, Refused, Remedy, remedies};
pub use search::{
    NAMES,
    fits::{Fit, fits},
    planner,
    portfolio::{generated, plan_all},
};
pub use space::enumerate::every;
