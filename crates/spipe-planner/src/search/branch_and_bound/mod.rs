//! Branch and bound over device orders (planner `ilp`): proves a bound for every subproblem, and
//! simulates partitions that may beat the incumbent.
//!
//! 1. A subproblem is a device order with a schedule; the host offload of its stages is undecided.
//!    [`crate::bounds::partition_dp`] bounds each, and a common bisection over the iteration time
//!    finds the lowest bounds. Their partitions, and the plans of the heuristics, are simulated
//!    first.
//! 2. A subproblem whose bound does not beat the incumbent by more than the gap is pruned. The
//!    bounds of the others are raised, and the partitions furthest below the incumbent are
//!    simulated until no better plan is found.
//! 3. The remaining subproblems are branched on the host offload of their stages. Each then goes,
//!    in ascending order of bound, to its integer program, restricted to iterations that beat the
//!    incumbent. The critical cycles of each solution become cuts, and simulated partitions become
//!    no-goods. When the program is infeasible, the subproblem is closed with the limit as its
//!    bound.
//!
//! Subproblems are solved in rounds of fixed size, each with the incumbent from before the round,
//! and merged in order: the plan does not depend on the number of threads.

mod tree;

#[cfg(test)]
mod tests;

use crate::formulation::solver::Solver;
use crate::problem::in_pool;
use crate::search::branch_and_bound::tree::Tree;
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

/// The planner `ilp`.
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

/// Number of device orders up to which all are searched at once, without a first search that prunes
/// them.
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
    let search = |list: &[Vec<usize>]| Tree::new(problem, costs, open(list), deadline).solved_by(solver);
    let few = device_orders::sequences(costs, FEW, Some(deadline));
    if few.coverage == Coverage::Exact {
        return search(&few.list).run(few.coverage);
    }
    let natural = device_orders::natural(costs);
    let mut first = search(&natural);
    first.begin()?;
    // The bounds of all device orders take long to compute for long chains.
    if deadline.over() {
        return first.run(Coverage::Natural);
    }
    let limit = first.least_of_interest();
    let all = device_orders::within(costs, (problem.options.sequence_limit, limit), Some(deadline));
    search(&all.list).with(first).run(all.coverage)
}
