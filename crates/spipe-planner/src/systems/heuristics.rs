//! What the search begins with: the plans of the heuristics, so that no plan is worse than theirs, whatever the time limit.

use super::{counted, pipelines};
use crate::{
    Options, Problem, SYSTEMS, balanced,
    case::{Scored, faster, judge},
    deadline::Deadline,
    figures::Figures,
    greedy, mobius,
};
use rayon::prelude::*;
use spipe_cost::Mode;
use spipe_plan::{Placement, System};

/// The best plan of each heuristic for those of the problem's systems that it knows.
pub(super) fn plans(problem: &Problem<'_>, figures: &Figures<'_>, deadline: &Deadline<'_>) -> Vec<Scored> {
    let suits = |system: &System| problem.context.workload().mode == Mode::Train || system.infers();
    let systems: Vec<System> = problem.systems.iter().copied().filter(suits).collect();
    let mut plans: Vec<Scored> = Vec::new();
    // First, because its programs get a part of the time that is left.
    if systems.contains(&System::Mobius) {
        plans.extend(all(problem, mobius::candidates(figures, deadline)));
    }
    if systems.iter().any(|system| SYSTEMS.contains(system)) {
        plans.extend(all(problem, greedy::placements(figures, &systems)));
        // It needs little of the time, but for machines of many devices, and may take as much of it as by itself.
        let options = Options { time_limit: deadline.left(), ..problem.options.clone() };
        let staged = Problem { context: problem.context, systems: systems.clone(), options, ..*problem };
        plans.extend(balanced::best(&staged, figures, &Deadline::new(&staged)));
    }
    plans
}

/// Placements with several stages on each GPU.
fn short_stages(problem: &Problem<'_>, figures: &Figures<'_>, deadline: &Deadline<'_>) -> Vec<Placement> {
    let trains = problem.context.workload().mode == Mode::Train && problem.options.host_help;
    let allowed = |system: &System| problem.systems.contains(system);
    let system = [System::OneForwardOneBackward, System::Gpipe].into_iter().find(allowed).filter(|_| trains);
    system.map_or_else(Vec::new, |system| {
        let mut list = pipelines::in_short_stages(&problem.context, system);
        list.extend(counted::placements(figures, system, (f64::INFINITY, deadline.left() / counted::PART)).placements);
        list
    })
}

/// The best plan with several stages on each GPU, of which the planners of stages have one.
pub(super) fn in_short_stages(problem: &Problem<'_>, figures: &Figures<'_>, deadline: &Deadline<'_>) -> Option<Scored> {
    let list = short_stages(problem, figures, deadline);
    let judged: Vec<Option<Scored>> =
        list.into_par_iter().map(|placement| if deadline.over() { None } else { judge(problem, placement) }).collect();
    judged.into_iter().fold(None, faster)
}

/// Those of `placements` that run.
fn all(problem: &Problem<'_>, placements: Vec<Placement>) -> Vec<Scored> {
    placements.into_par_iter().filter_map(|placement| judge(problem, placement)).collect()
}
