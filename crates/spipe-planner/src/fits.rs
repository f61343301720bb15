//! Whether anything fits at all, without looking for the best.

use crate::{
    Options, Problem, SYSTEMS,
    case::{Division, judge},
    figures::Figures,
    ilp,
    partition::Partitioner,
    reason, sequence,
    systems::candidates,
};
use spipe_cost::Mode;
use spipe_plan::{Placement, System, check};

/// A placement of one of the problem's systems that fits and runs, if there is one.
pub fn fits(problem: &Problem<'_>) -> Option<Placement> {
    let (planned, other): (Vec<System>, Vec<System>) =
        problem.systems.iter().partition(|system| SYSTEMS.contains(system));
    let stages = || (!planned.is_empty()).then(|| stages(problem, planned.clone())).flatten();
    stages().or_else(|| {
        let candidates = other.into_iter().flat_map(|system| candidates(&problem.context, system));
        candidates.filter_map(|placement| judge(problem, placement)).map(|(_, placement)| placement).next()
    })
}

/// The same for the systems whose stages are searched: the bounds of memory say no, or the search of the integer program, which
/// takes the first plan, has the last word.
fn stages(problem: &Problem<'_>, systems: Vec<System>) -> Option<Placement> {
    let options = Options { gap: 1.0, ..problem.options.clone() };
    // No stage has more microbatches in flight than under any of the others.
    let leanest = System::OneForwardOneBackward;
    let training = problem.context.workload().mode == Mode::Train;
    let systems = if training && systems.contains(&leanest) { vec![leanest] } else { systems };
    let problem = Problem { context: problem.context, systems, options, ..*problem };
    let figures = Figures::new(problem.context, &problem.options);
    reason::lonely_layers(&figures).ok()?;
    let sequences = sequence::sequences(&figures, problem.options.sequence_limit, None);
    let cases = ilp::cases(&problem, &figures, &sequences.list);
    let helped: Vec<_> = cases.iter().map(|case| case.clone().with_help(&figures, None)).collect();
    let mut partitioner = Partitioner::new(&figures, &cases);
    partitioner.extend(&helped);
    let division = |case| partitioner.division(case, f64::INFINITY);
    let accepted = |case: &crate::case::Case, division: &Division| {
        let placement = case.placement(&figures, division);
        check(&problem.context, &placement).is_ok().then_some(placement)
    };
    let plain = cases.iter().find_map(|case| accepted(case, &division(case)?));
    if plain.is_some() {
        return plain;
    }
    // Undecided, a stage has the memory of the help that suits it best.
    helped.iter().find_map(division)?;
    match crate::planner("ilp")?.plan(&problem) {
        Ok(solution) => Some(solution.placement),
        Err(_) => None,
    }
}
