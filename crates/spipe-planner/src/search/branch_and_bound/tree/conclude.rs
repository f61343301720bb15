//! Conclusion of the search: its solution or error.

use crate::bounds::to_time;
use crate::problem::bound::Bound;
use crate::problem::tolerances::ROUNDING;
use crate::search::branch_and_bound::tree::Tree;
use crate::{
    problem::{PlanError, Solution},
    space::device_orders::Coverage,
};
use spipe_plan::OutcomeStatus;

impl Tree<'_, '_> {
    /// Returns a lower bound of every placement.
    fn least(&self) -> Bound {
        match self.coverage {
            Coverage::Exact | Coverage::UpToLinks => {
                self.known.iter().map(|known| known.bound).fold(self.left_out, Bound::min)
            }
            Coverage::Natural => self.floor,
        }
    }

    /// Returns the solution; `ended` says whether the search ran to its end.
    pub(crate) fn conclude(self, ended: bool) -> Result<Solution, PlanError> {
        let target = self.limit(self.found.best.as_ref());
        let least = self.least();
        let Some(best) = self.found.best else {
            let examined = self.found.examined;
            if self.problem.options.incumbent.is_some() {
                return Err(PlanError::NothingBetter { bound: to_time(self.costs, least), examined, stopped: !ended });
            }
            // Placements that were not examined may run, unless the search has come to its end.
            let all = ended && self.coverage != Coverage::Natural && self.known.iter().all(|known| !known.open);
            return Err(if all {
                PlanError::NothingRuns { examined }
            } else {
                PlanError::StoppedWithoutPlan { examined }
            });
        };
        let status = match (least >= target / (1.0 + ROUNDING), ended) {
            (true, _) => OutcomeStatus::Optimal,
            (false, true) => OutcomeStatus::Feasible,
            (false, false) => OutcomeStatus::Stopped,
        };
        let bound = to_time(self.costs, least);
        let (examined, cases) = (self.found.examined, self.cases.len());
        Ok(Solution { examined, cases, ..Solution::new(best, bound, status) })
    }
}
