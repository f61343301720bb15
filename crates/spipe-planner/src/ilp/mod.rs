//! The ILP planner: proves a bound for every case, and simulates what may beat the best plan.
//!
//! 1. Every case (device sequence × discipline; what the host does for its stages is left open) is tested with the bounds of
//!    [`crate::divide`]; a common search over the iteration time finds the cases of the least bound. Their divisions, and
//!    the plans of the heuristics, are simulated first.
//! 2. A case whose bound cannot beat the best simulated plan by more than the gap is done. The bounds of the others are raised, and
//!    the divisions that leave most room below the best plan simulated, until that finds nothing better.
//! 3. What is left is decided stage by stage, and goes, the most promising first, to its integer program, which is solved for
//!    iterations that would beat the best plan. Each solution teaches it: its critical cycles become cuts, and what has been simulated
//!    is excluded. When nothing is left below the limit, the case is done and the limit is its bound.
//!
//! Cases are searched in rounds of fixed size, each with what was known before the round, and merged in order: so the
//! plan does not depend on the number of threads.

mod families;
mod master;
pub(crate) mod search;
pub(crate) mod solve;
#[cfg(test)]
mod tests;

use crate::{
    Claim, PlanError, Planner, Problem, Solution,
    case::{Case, Discipline, disciplines},
    deadline::Deadline,
    figures::Figures,
    reason,
    sequence::{self, Coverage},
};
use search::Search;
use solve::Solver;

/// The planner.
pub(crate) struct Ilp<'s> {
    solver: &'s Solver<'s>,
}

impl Default for Ilp<'static> {
    fn default() -> Self {
        Self { solver: &solve::solve }
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
        let figures = Figures::new(problem.context, &problem.options);
        reason::obvious(&figures)?;
        in_pool(problem, || plan(problem, &figures, &deadline, self.solver))
    }
}

/// Up to so many sequences are searched without looking first which of them may matter.
pub(crate) const FEW: usize = 100;

fn plan(
    problem: &Problem<'_>,
    figures: &Figures<'_>,
    deadline: &Deadline<'_>,
    solver: &Solver<'_>,
) -> Result<Solution, PlanError> {
    let open = |list: &[Vec<usize>]| -> Vec<Case> {
        cases(problem, figures, list).into_iter().map(|case| case.with_help(figures, None)).collect()
    };
    let search = |list: &[Vec<usize>]| Search::new(problem, figures, open(list), deadline).solved_by(solver);
    let few = sequence::sequences(figures, FEW, Some(deadline));
    if few.coverage == Coverage::Exact {
        return search(&few.list).run(few.coverage);
    }
    let natural = sequence::natural(figures);
    let mut first = search(&natural);
    first.begin()?;
    // What all sequences could come to takes long to look up for long chains.
    if deadline.over() {
        return first.run(Coverage::Natural);
    }
    let limit = first.least_of_interest();
    let all = sequence::within(figures, (problem.options.sequence_limit, limit), Some(deadline));
    search(&all.list).with(first).run(all.coverage)
}

/// Every sequence under every discipline that suits it, without help.
pub(crate) fn cases(problem: &Problem<'_>, figures: &Figures<'_>, sequences: &[Vec<usize>]) -> Vec<Case> {
    let pins = &problem.options.pins;
    let of_sequence = |devices: &Vec<usize>| {
        let has_cpu = devices.iter().any(|device| figures.devices[*device].is_cpu);
        let case = |discipline| Case::new(figures, devices, discipline);
        let disciplines = disciplines(&problem.systems, has_cpu).into_iter();
        let knobs = |discipline: &Discipline| pins.common_knobs(discipline.system, discipline.knobs());
        let allowed = |discipline: &Discipline| pins.allows_knobs(discipline.system, &knobs(discipline));
        disciplines.filter(allowed).map(case).collect::<Vec<_>>()
    };
    sequences.iter().filter(|devices| pins.allows_devices(devices)).flat_map(of_sequence).collect()
}

/// Runs `work` where `rayon` uses as many threads as the problem allows.
pub(crate) fn in_pool<T: Send>(
    problem: &Problem<'_>,
    work: impl FnOnce() -> Result<T, PlanError> + Send,
) -> Result<T, PlanError> {
    let threads = problem.options.threads.max(1);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|error| PlanError::Threads { threads, what: error.to_string() })?.install(work)
}
