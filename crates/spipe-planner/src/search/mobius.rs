//! Mobius' partition as a planner: simulates the placements of its integer programs.

use crate::{
    bounds::to_time,
    candidates::mobius::candidates,
    costs::CostSums,
    formulation::assignment::least,
    problem::{Claim, Deadline, PlanError, Planner, Problem, Solution, in_pool},
    score::judge::{Scored, faster, judge},
    search::portfolio::generated,
};
use spipe_plan::{OutcomeStatus, System};

/// The planner `mobius-mip`.
pub(crate) struct Mobius;

impl Planner for Mobius {
    fn name(&self) -> &'static str {
        "mobius-mip"
    }

    fn claim(&self) -> Claim {
        Claim::Heuristic
    }

    fn plan(&self, problem: &Problem<'_>) -> Result<Solution, PlanError> {
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
        let best: Option<Scored> = placements.into_iter().map(|placement| judge(problem, placement)).fold(None, faster);
        let Some(best) = best else {
            // The balanced cuts report the shortage.
            let systems = vec![System::Mobius];
            let options = problem.options.clone();
            return generated(&Problem { context: problem.context, systems, options, ..*problem })
                .and(Err(PlanError::NothingRuns { examined }));
        };
        let bound = to_time(&costs, least((&costs, &problem.options.pins), System::Mobius, None));
        let status = if deadline.was_truncated() { OutcomeStatus::Stopped } else { OutcomeStatus::Feasible };
        Ok(Solution { examined, cases: examined, ..Solution::new(best, bound, status) })
    }
}
