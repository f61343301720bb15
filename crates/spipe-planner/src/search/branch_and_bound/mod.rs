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
//!
//! The plan does not depend on the number of threads.

mod tree;

use crate::{
    costs::CostSums,
    feasibility::shortage,
    problem::{Deadline, PlanError, Problem, Solution, in_pool},
    search::branch_and_bound::tree::Tree,
    space::{
        device_orders::{self, Coverage},
        subproblem::{Subproblem, cases},
    },
};

/// Number of device orders up to which all are searched at once, without a first search that prunes
/// them.
pub(crate) const FEW: usize = 100;

/// The planner `ilp`.
pub(crate) fn plan(problem: &Problem<'_>) -> Result<Solution, PlanError> {
    let deadline = Deadline::new(problem);
    let costs = CostSums::new(problem.context, &problem.options);
    shortage::obvious(&costs)?;
    in_pool(problem, || searched(problem, &costs, &deadline))
}

fn searched(problem: &Problem<'_>, costs: &CostSums<'_>, deadline: &Deadline<'_>) -> Result<Solution, PlanError> {
    let open = |list: &[Vec<usize>]| -> Vec<Subproblem> {
        cases(problem, costs, list).into_iter().map(|case| case.with_host_offload(costs, None)).collect()
    };
    let search = |list: &[Vec<usize>]| Tree::new(problem, costs, open(list), deadline);
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
    let all = device_orders::within(costs, (device_orders::MOST, limit), Some(deadline));
    search(&all.list).with(first).run(all.coverage)
}
