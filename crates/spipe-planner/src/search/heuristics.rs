//! Plans of simple heuristics, with which the search starts, so that no plan is worse than theirs
//! under any time limit.

use crate::{
    candidates::{balanced, greedy},
    costs::CostSums,
    problem::{Deadline, Options, Problem, SYSTEMS},
    score::judge::{Scored, busiest, judge},
    space::device_orders,
};
use rayon::prelude::*;
use spipe_cost::Mode;
use spipe_plan::{Placement, System};

/// Returns the greedy placements of the problem's systems that run, including the fastest.
pub(crate) fn filled(problem: &Problem<'_>, costs: &CostSums<'_>) -> Vec<Scored> {
    let systems = with_stages(problem);
    if systems.is_empty() { Vec::new() } else { those_that_run((problem, costs), greedy::placements(costs, &systems)) }
}

/// Returns the best-balanced plan of these systems, if it may take less than `most` ms: over all device orders, or at
/// low effort over all GPUs.
pub(crate) fn balanced(
    problem: &Problem<'_>,
    costs: &CostSums<'_>,
    (most, deadline): (f64, &Deadline<'_>),
) -> Option<Scored> {
    let systems = Some(with_stages(problem)).filter(|systems| !systems.is_empty())?;
    // It takes little time except on machines with many devices, and may use as much as the planner
    // alone.
    let options = Options { time_limit: deadline.left(), ..problem.options.clone() };
    let staged = Problem { systems, options, ..*problem };
    let deadline = Deadline::new(&staged);
    let orders = if problem.options.has_programs() {
        device_orders::sequences(costs, device_orders::MOST, Some(&deadline)).list
    } else {
        device_orders::all_gpus(costs)
    };
    balanced::best(&staged, costs, (&orders, most), &deadline)
}

/// Returns the problem's systems that suit its mode; empty if none of [`SYSTEMS`] is among them.
fn with_stages(problem: &Problem<'_>) -> Vec<System> {
    let suits = |system: &System| problem.context.workload().mode == Mode::Train || system.infers();
    let systems: Vec<System> = problem.systems.iter().copied().filter(suits).collect();
    if systems.iter().any(|system| SYSTEMS.contains(system)) { systems } else { Vec::new() }
}

/// Simulates `placements` and returns those that run. The one with the least busy device is first,
/// and others whose busiest device exceeds its time are left out.
fn those_that_run((problem, costs): (&Problem<'_>, &CostSums<'_>), placements: Vec<Placement>) -> Vec<Scored> {
    let of = |placement: Placement| (busiest(costs, &placement), placement);
    let mut list: Vec<(f64, Placement)> = placements.into_iter().map(of).collect();
    list.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut list = list.into_iter();
    let first: Option<Scored> = list.by_ref().find_map(|(_, placement)| judge(problem, placement));
    let most = first.as_ref().map_or(f64::INFINITY, |(time, _)| time.to_ms());
    let others: Vec<Placement> = list.filter(|(busy, _)| *busy < most).map(|(_, placement)| placement).collect();
    let others = others.into_par_iter().filter_map(|placement| judge(problem, placement)).collect::<Vec<_>>();
    first.into_iter().chain(others).collect()
}
