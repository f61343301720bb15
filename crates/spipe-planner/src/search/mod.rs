//! Searches: branch and bound over device orders, the portfolio over all systems, exhaustive
//! search, the feasibility test, and bounds alone.

mod branch_and_bound;
mod exhaust;
mod exhaustive;
pub(crate) mod fits;
pub(crate) mod given_stages;
mod heuristics;
pub(crate) mod least;
mod mobius;
pub(crate) mod portfolio;

use crate::{
    candidates::{balanced, greedy},
    problem::{Claim, Planner},
};

/// All planners.
pub static PLANNERS: [Planner; 5] = [
    Planner { name: "ilp", claim: Claim::OptimalWithinGap, search: branch_and_bound::plan },
    Planner { name: "dp", claim: Claim::Heuristic, search: balanced::plan },
    Planner { name: "greedy", claim: Claim::Heuristic, search: greedy::plan },
    Planner { name: "exhaustive", claim: Claim::OptimalSimulated, search: exhaustive::plan },
    Planner { name: "mobius-mip", claim: Claim::Heuristic, search: mobius::plan },
];

/// Returns the planner with that name.
pub fn planner(name: &str) -> Option<&'static Planner> {
    PLANNERS.iter().find(|planner| planner.name == name)
}
