//! The ILP planner: proves a bound for every case, and simulates what may beat the best plan.
//!
//! 1. Every case (device sequence × discipline; what the host does for its stages is left open) is tested with the bounds of
//!    [`crate::bounds::partition_dp`]; a common search over the iteration time finds the cases of the least bound. Their divisions, and
//!    the plans of the heuristics, are simulated first.
//! 2. A case whose bound cannot beat the best simulated plan by more than the gap is done. The bounds of the others are raised, and
//!    the divisions that leave most room below the best plan simulated, until that finds nothing better.
//! 3. What is left is decided stage by stage, and goes, the most promising first, to its integer program, which is solved for
//!    iterations that would beat the best plan. Each solution teaches it: its critical cycles become cuts, and what has been simulated
//!    is excluded. When nothing is left below the limit, the case is done and the limit is its bound.
//!
//! Cases are searched in rounds of fixed size, each with what was known before the round, and merged in order: so the
//! plan does not depend on the number of threads.

mod tree;

#[cfg(test)]
mod tests;

use crate::formulation::solver::Solver;
use crate::problem::in_pool;
use crate::search::branch_and_bound::tree::Search;
use crate::space::subproblem::cases;
use crate::{
    costs::CostSums,
    feasibility::shortage,
    problem::{Claim, Deadline, PlanError, Planner, Problem, Solution},
    space::{
        device_orders::{self, Coverage},
        subproblem::Subproblem,
    },
};

/// The planner.
pub(crate) struct Ilp<'s> {
    solver: &'s Solver<'s>,
}

impl Default for Ilp<'static> {
    fn default() -> Self {
        Self { solver: &crate::formulation::solver::solve }
    }
}

impl Planner for Ilp<'_> {
    fn name(&self) -> &'static str {
        "ilp"
    }

    fn claim(&self) -> Claim {
        Claim::OptimalWithinGap
    }

    fn plan(&self, problem: &Problem<'_>) -> Result<Solution, PlanError> {
        let deadline = Deadline::new(problem);
        let costs = CostSums::new(problem.context, &problem.options);
        shortage::obvious(&costs)?;
        in_pool(problem, || plan(problem, &costs, &deadline, self.solver))
    }
}

/// Up to so many sequences are searched without looking first which of them may matter.
pub(crate) const FEW: usize = 100;

fn plan(
    problem: &Problem<'_>,
    costs: &CostSums<'_>,
    deadline: &Deadline<'_>,
    solver: &Solver<'_>,
) -> Result<Solution, PlanError> {
    let open = |list: &[Vec<usize>]| -> Vec<Subproblem> {
        cases(problem, costs, list).into_iter().map(|case| case.with_host_offload(costs, None)).collect()
    };
    let search = |list: &[Vec<usize>]| Search::new(problem, costs, open(list), deadline).solved_by(solver);
    let few = device_orders::sequences(costs, FEW, Some(deadline));
    if few.coverage == Coverage::Exact {
        return search(&few.list).run(few.coverage);
    }
    let natural = device_orders::natural(costs);
    let mut first = search(&natural);
    first.begin()?;
    // What all sequences could come to takes long to look up for long chains.
    if deadline.over() {
        return first.run(Coverage::Natural);
    }
    let limit = first.least_of_interest();
    let all = device_orders::within(costs, (problem.options.sequence_limit, limit), Some(deadline));
    search(&all.list).with(first).run(all.coverage)
}
