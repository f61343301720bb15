//! Planners: algorithms that choose a system, and for each layer a device and a treatment of its
//! memory, and that prove how far the plan may be from the best.
//!
//! ```text
//!            ┌ greedy       fills GPUs in layer order, spills to sockets     heuristic
//! Problem ──►┤ dp           balances the stages of each device order         heuristic
//!            │ ilp          proves a lower bound, simulates contenders       within the stated gap
//!            ├ exhaustive   simulates every placement of a small problem     optimal
//!            └ mobius-mip   cuts Mobius' stages by its integer program       heuristic
//! ```
//!
//! The space of a planner: contiguous stages, at most one per device, on any of the machine's
//! devices in any order. Each stage recomputes some layers at its front and, on a GPU, may offload
//! the optimizer, the activations or both to the host. The system is GPipe, 1F1B, or the hybrid
//! with a head start of up to [`LARGEST_HEAD_START`] where a CPU socket has a stage. A plan must
//! fit by the memory count of [`spipe_plan::footprint`], and is judged by the iteration time that
//! the problem's [`Evaluator`] returns, usually by simulation.
//!
//! The ILP planner is a branch and bound:
//!
//! ```text
//! device orders up to symmetry × schedules = subproblems
//!   └─► lower bound of each ─┬─ no better than the best plan: skipped
//!                            └─ its partitions ─► score ─► best plan
//! ```
//!
//! [`fits`] decides before any search whether anything fits. The bytes that layers need on a device
//! depend on the number of devices after it, not on which these are. So a dynamic program over
//! counts of devices finds stages that fit, or shows that there are none.
//!
//! [`plan_all`] searches all systems. It bounds each by a linear program over the layers by run,
//! device and mode; leaves GPipe, 1F1B and the hybrid to a planner; generates and simulates
//! candidates of the others; improves the best by local search; and enumerates systems with few
//! placements. With integer variables the program also yields tighter bounds, and candidates with
//! several stages per device. The bound of a planner holds for one stage per device, that of
//! [`plan_all`] for any number.
//!
//! Results are the same for any number of threads, unless the time limit or the stop signal ends
//! the search.
//!
//! The modules, lowest first:
//!
//! - `bisect`: bisection on monotone predicates
//! - `hosts`: the NUMA nodes of stages' host data
//! - `problem`: the problem with options and pins, the solution, errors, and deadlines
//! - `costs`: time and memory of any range of layers on any device, as prefix sums
//! - `space`: the decision space of each system, device orders, subproblems, enumeration
//! - `score`: the checked and simulated time of a placement, estimates, event graphs
//! - `formulation`: the integer programs, and the solver
//! - `bounds`: the dynamic program over partitions: is there one within a given period?
//! - `feasibility`: the capacity of the memories for stages, and the bytes that are missing
//! - `candidates`: constructive heuristics, among them the planners greedy and dp, and repair
//! - `improve`: local search
//! - `search`: the portfolio of all systems, branch and bound, exhaustive search

mod bisect;
mod bounds;
mod candidates;
mod costs;
mod feasibility;
mod formulation;
mod hosts;
mod improve;
mod problem;
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
pub use feasibility::closest::refusal_of;
pub use feasibility::shortage::enough_in_total;
pub use improve::readable::{readable, runs_of_layers};
pub use problem::{
    Claim, Considered, Effort, Evaluator, LARGEST_HEAD_START, MOST_OFFLOAD_SLOTS, Options, PlanError, Planner, Problem,
    SYSTEMS, Solution,
    pins::{Contradiction, Named, Pin, Pins},
};
pub use search::{
    PLANNERS,
    fits::{Fit, fits},
    given_stages::plan_stages,
    least::least_iteration,
    planner,
    portfolio::{generated, plan_all},
};
pub use space::enumerate::every;
