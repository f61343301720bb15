//! Portfolio over systems: each is bounded, tried in ascending order of its bound, and the best
//! placements are improved.
//!
//! ```text
//! greedy stages, balanced stages if greedy is near the compute bound ─► incumbent
//! systems ─► lower bound of each ─┬─ cannot beat the incumbent: skipped
//!                                 ├─ generated candidates, programs of Mobius ──────┐
//!                                 └─ one stage per device (planner), then several ──┴─► best few
//! best few ─► local search ─► enumeration of systems with few placements ─► best plan
//! ```

//!
//! Each stage takes the value of the one before, with the results so far (`Standing`) in it: `Feasible`, `Bounded`,
//! `Simulated`, `Improved`, and the `Solution`.

mod bounded;
mod feasible;
mod generate;
mod improve;
mod improved;
mod several;
mod simulated;
mod standing;

use crate::problem::{PlanError, Planner, Problem, Solution, in_pool};
use feasible::Feasible;
use simulated::Simulated;

/// Factor above a lower bound from which a plan counts as far from it.
const FAR: f64 = 3.0;

/// Factor above the incumbent up to which placements are improved to the end.
const PROMISING: f64 = 1.02;

/// Placements of the integer program with several stages per device are improved up to this factor
/// above the best plan: the program knows no order of the microbatches, and local search gains a
/// third on some of them.
const NEARBY: f64 = 1.5;

/// Returns the best plan of all systems that `problem` allows. Those of [`crate::problem::SYSTEMS`] are planned by
/// `planner`, the others generated. None of the heuristics' plans is better.
///
/// # Errors
/// Returns why no system has a plan, with the shortage of the closest candidate.
pub fn plan_all(problem: &Problem<'_>, planner: &Planner) -> Result<Solution, PlanError> {
    let bounded = in_pool(problem, || Ok(Feasible::of(problem)?.bounded()))?;
    bounded.simulated(planner)?.improved()?.conclude()
}

/// Returns the best generated placement of the problem's systems.
///
/// # Errors
/// Returns why there is none.
pub fn generated(problem: &Problem<'_>) -> Result<Solution, PlanError> {
    in_pool(problem, || Ok(Simulated::alone(problem)))?.improved()?.conclude()
}
