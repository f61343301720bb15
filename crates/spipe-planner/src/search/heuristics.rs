//! What the search begins with: the plans of heuristics for stages, so that no plan is worse than theirs, whatever the time limit.

use crate::candidates::{from_milp, pipelines};
use crate::{
    candidates::{balanced, greedy},
    costs::CostSums,
    problem::{Deadline, Options, Problem, SYSTEMS},
    score::judge::{Scored, busiest, faster, judge, judge_within},
};
use rayon::prelude::*;
use spipe_base::SimTime;
use spipe_cost::Mode;
use spipe_plan::{Placement, System};

/// What is filled greedily, of those of the problem's systems whose stages are planned, the best of it among them.
pub(crate) fn filled(problem: &Problem<'_>, costs: &CostSums<'_>) -> Vec<Scored> {
    let systems = with_stages(problem);
    if systems.is_empty() { Vec::new() } else { those_that_run((problem, costs), greedy::placements(costs, &systems)) }
}

/// The best-balanced plan of the same, if it may take less than `most` ms.
pub(crate) fn balanced(
    problem: &Problem<'_>,
    costs: &CostSums<'_>,
    (most, deadline): (f64, &Deadline<'_>),
) -> Option<Scored> {
    let systems = Some(with_stages(problem)).filter(|systems| !systems.is_empty())?;
    // It needs little of the time, but for machines of many devices, and may take as much of it as by itself.
    let options = Options { time_limit: deadline.left(), ..problem.options.clone() };
    let staged = Problem { context: problem.context, systems, options, ..*problem };
    balanced::best(&staged, costs, most, &Deadline::new(&staged))
}

/// Those of the problem's systems that suit it, where heuristics know one of them.
fn with_stages(problem: &Problem<'_>) -> Vec<System> {
    let suits = |system: &System| problem.context.workload().mode == Mode::Train || system.infers();
    let systems: Vec<System> = problem.systems.iter().copied().filter(suits).collect();
    if systems.iter().any(|system| SYSTEMS.contains(system)) { systems } else { Vec::new() }
}

/// Placements with several stages on each GPU.
fn short_stages((problem, costs): (&Problem<'_>, &CostSums<'_>), most: f64, deadline: &Deadline<'_>) -> Vec<Placement> {
    let trains = problem.context.workload().mode == Mode::Train && problem.options.host_help;
    let allowed = |system: &System| problem.systems.contains(system);
    let system = [System::OneForwardOneBackward, System::Gpipe].into_iter().find(allowed).filter(|_| trains);
    system.map_or_else(Vec::new, |system| {
        let mut list = pipelines::in_short_stages(&problem.context, system);
        let until = deadline.percent(from_milp::PERCENT);
        list.extend(from_milp::placements(costs, system, (most, &until)).placements);
        list
    })
}

/// The best plan with several stages on each GPU, of which the planners of stages have one, if it may take less than `most` ms.
pub(crate) fn in_short_stages(
    (problem, costs): (&Problem<'_>, &CostSums<'_>),
    most: f64,
    deadline: &Deadline<'_>,
) -> Option<Scored> {
    let mut list = short_stages((problem, costs), most, deadline);
    list.retain(|placement| busiest(costs, placement) < most);
    let limit = SimTime::ns((most * 1e6) as u64);
    let within = |placement| if deadline.over() { None } else { judge_within(problem, placement, limit) };
    let judged: Vec<Option<Scored>> = list.into_par_iter().map(within).collect();
    judged.into_iter().fold(None, faster)
}

/// Those of `placements` that run, but for some that take no less than another of them: the one whose busiest device has least to do is
/// simulated first.
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
