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
    candidates::{balanced::Balanced, greedy::Greedy},
    problem::Planner,
};

/// Names that [`planner`] knows.
pub const NAMES: [&str; 5] = ["ilp", "dp", "greedy", "exhaustive", "mobius-mip"];

/// Returns the planner with that name.
pub fn planner(name: &str) -> Option<Box<dyn Planner>> {
    Some(match name {
        "ilp" => Box::new(branch_and_bound::Ilp),
        "dp" => Box::new(Balanced),
        "greedy" => Box::new(Greedy),
        "exhaustive" => Box::new(exhaustive::Exhaustive),
        "mobius-mip" => Box::new(mobius::Mobius),
        _ => return None,
    })
}
