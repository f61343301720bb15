//! Constructive heuristics: placements of each system, generated without simulation.

pub(crate) mod balanced;
pub(crate) mod cuts;
pub(crate) mod first_fit;
pub(crate) mod from_milp;
pub(crate) mod greedy;
pub(crate) mod merge;
pub(crate) mod mobius;
pub(crate) mod pipelines;
pub(crate) mod repair;
pub(crate) mod residency;
pub(crate) mod sharded;
pub(crate) mod streamed;

use crate::{
    costs::CostSums,
    feasibility::shortage,
    hosts::shared_out,
    problem::{Deadline, PlanError, Problem},
    space::rules::Family,
};
use rayon::prelude::*;
use spipe_cost::Mode;
use spipe_plan::{Context, Placement, System};

/// Returns the generated placements of `system`: with host state near each device, and where
/// sockets can be chosen also with that state shared among them.
pub fn candidates(context: &Context<'_>, system: System) -> Vec<Placement> {
    if context.workload().mode != Mode::Train && !system.infers() {
        return Vec::new();
    }
    let candidates = match Family::of(system) {
        Family::Pipeline => pipelines::candidates(context, system),
        Family::Streamed => streamed::candidates(context, system),
        Family::Sharded => sharded::candidates(context, system),
    };
    let near = candidates.unwrap_or_default();
    let shared: Vec<Placement> = near.par_iter().filter_map(|placement| shared_out(context, placement)).collect();
    let mut all = [near, shared].concat();
    pipelines::leaving_or_not(&mut all);
    all
}

/// Returns the deadline and the costs of a planner's search.
///
/// # Errors
///
/// The search is stopped, or a sum shows that nothing fits.
fn begin<'a>(problem: &Problem<'a>) -> Result<(Deadline<'a>, CostSums<'a>), PlanError> {
    let (deadline, costs) = (Deadline::new(problem), CostSums::new(problem.context, &problem.options));
    if deadline.stopped() {
        return Err(PlanError::StoppedWithoutPlan { examined: 0 });
    }
    shortage::obvious(&costs)?;
    Ok((deadline, costs))
}
