//! Mobius' partition as a planner: simulates the placements of its integer programs.

use crate::{
    bounds::to_time,
    candidates::mobius::candidates,
    costs::CostSums,
    formulation::assignment::least,
    problem::{Deadline, PlanError, Problem, Solution, in_pool, status},
    score::judge::{faster, judge},
    search::portfolio::generated,
};
use spipe_plan::System;

/// The planner `mobius-mip`.
pub(crate) fn plan(problem: &Problem<'_>) -> Result<Solution, PlanError> {
    let deadline = Deadline::new(problem);
    if deadline.stopped() {
        return Err(PlanError::StoppedWithoutPlan { examined: 0 });
    }
    if !problem.systems.contains(&System::Mobius) {
        return Err(PlanError::NoSystem);
    }
    let costs = CostSums::new(problem.context, &problem.options);
    let placements = in_pool(problem, || Ok(candidates(&costs, &deadline)))?;
    let examined = placements.len();
    let best = placements.into_iter().map(|placement| judge(problem, placement)).fold(None, faster);
    let Some(best) = best else {
        // The balanced cuts report the shortage.
        let (systems, options) = (vec![System::Mobius], problem.options.clone());
        return generated(&Problem { systems, options, ..*problem }).and(Err(PlanError::NothingRuns { examined }));
    };
    let bound = to_time(&costs, least((&costs, &problem.options.pins), System::Mobius, None));
    let status = status(false, deadline.was_truncated());
    Ok(Solution { examined, cases: examined, ..Solution::new(best, bound, status) })
}
