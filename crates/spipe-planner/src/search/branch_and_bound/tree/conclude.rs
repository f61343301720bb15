//! Conclusion of the search: its solution or error.

use crate::bounds::to_time;
use crate::problem::bound::Bound;
use crate::problem::tolerances::ROUNDING;
use crate::search::branch_and_bound::tree::{SubproblemState, Tree};
use crate::{
    problem::{PlanError, Solution},
    space::device_orders::Coverage,
};
use spipe_plan::OutcomeStatus;

impl Tree<'_, '_> {
    /// Returns a lower bound of every placement.
    fn least(&self) -> Bound {
        let least = |of: fn(&SubproblemState) -> Bound| self.known.iter().map(of).fold(Bound::Infeasible, Bound::min);
        match self.coverage {
            Coverage::Exact => least(|known| known.bound.min(known.untried)).min(self.left_out),
            Coverage::UpToLinks => least(|known| known.bound.min(known.excluded)).min(self.left_out),
            Coverage::Natural => self.floor,
        }
    }

    /// Returns the solution; `ended` says whether the search ran to its end.
    pub(crate) fn conclude(self, ended: bool) -> Result<Solution, PlanError> {
        let target = self.limit(self.found.best.as_ref());
        let least = self.least();
        let Some(best) = self.found.best else {
            let examined = self.found.examined;
            if self.problem.options.incumbent.is_some() && self.known.iter().all(|known| known.trouble.is_none()) {
                return Err(PlanError::NothingBetter { bound: to_time(self.costs, least), examined, stopped: !ended });
            }
            let trouble = self.known.iter().zip(&self.cases).find_map(|(known, case)| {
                let what = known.trouble.clone()?;
                Some(PlanError::Numerical { devices: case.names(self.costs), what })
            });
            // Placements that were not examined may run.
            let all = ended && self.coverage != Coverage::Natural && self.known.iter().all(|known| !known.open);
            return Err(match trouble {
                Some(error) => error,
                None if !all => PlanError::StoppedWithoutPlan { examined },
                None => PlanError::NothingRuns { examined },
            });
        };
        let status = match (least >= target / (1.0 + ROUNDING), ended) {
            (true, _) => OutcomeStatus::Optimal,
            (false, true) => OutcomeStatus::Feasible,
            (false, false) => OutcomeStatus::Stopped,
        };
        let bound = to_time(self.costs, least);
        let (examined, solves, cases) = (self.found.examined, self.found.solves, self.cases.len());
        Ok(Solution { examined, solves, cases, ..Solution::new(best, bound, status) })
    }
}
