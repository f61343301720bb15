//! The ILP planner: proves a bound for every case, and simulates what may beat the best plan.
//!
//! 1. Every case (device sequence × discipline) is tested with the partition bounds; a common search over the iteration
//!    time finds the cases of the least bound. Their divisions, and the plans of the heuristics, are simulated first.
//! 2. A case whose bound cannot beat the best simulated plan by more than the gap is done.
//! 3. The others, the most promising first, go to their integer program, which is solved for iterations that would beat
//!    the best plan. Each solution teaches it: its critical cycles become cuts, and what has been simulated is excluded.
//!    When nothing is left below the limit, the case is done and the limit is its bound.
//!
//! A case also says what the host does for each of its GPU stages. Where too many combinations of that are to be told apart,
//! a case stands for all of them, with the least memory and time of each: if that cannot beat the best plan, none of them
//! can; otherwise it is decided stage by stage.
//!
//! Cases are searched in rounds of fixed size, each with what was known before the round, and merged in order: so the
//! plan does not depend on the number of threads.

mod families;
mod master;
pub(crate) mod search;
pub(crate) mod solve;

use crate::{
    Claim, PlanError, Planner, Problem, Solution,
    case::{Case, disciplines},
    deadline::Deadline,
    figures::{Figures, Help},
    reason, sequence,
};

/// The planner.
pub(crate) struct Ilp;

impl Planner for Ilp {
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
        let sequences = sequence::sequences(&figures, problem.options.sequence_limit);
        let cases = cases(problem, &figures, &sequences.list);
        if cases.is_empty() {
            return Err(PlanError::NoSystem);
        }
        let cases = helped(problem, &figures, cases);
        in_pool(problem, || search::Search::new(problem, &figures, cases, &deadline).run(sequences.coverage))
    }
}

/// Beyond this many cases, only those without help are searched from the start; the others wait until they are decided.
const FEW: usize = 1000;

/// `cases`, the same with one kind of help for all stages, and where stages may have different help, one in which that is
/// undecided.
fn helped(problem: &Problem<'_>, figures: &Figures<'_>, cases: Vec<Case>) -> Vec<Case> {
    if !problem.options.host_help {
        return cases;
    }
    let few = cases.len() <= FEW;
    let mut undecided = Vec::new();
    let mut helped = Vec::new();
    for case in &cases {
        let open = case.clone().with_help(figures, None);
        let stages = open.seats.iter().filter(|seat| seat.help.is_none()).count();
        if stages > 0 && few {
            helped.extend(Help::ALL[1..].iter().map(|help| case.clone().with_help(figures, Some(*help))));
        }
        if stages > 1 || (stages == 1 && !few) {
            undecided.push(open);
        }
    }
    cases.into_iter().chain(helped).chain(undecided).collect()
}

/// Every sequence under every discipline that suits it, without help.
pub(crate) fn cases(problem: &Problem<'_>, figures: &Figures<'_>, sequences: &[Vec<usize>]) -> Vec<Case> {
    let of_sequence = |devices: &Vec<usize>| {
        let has_cpu = devices.iter().any(|device| figures.devices[*device].is_cpu);
        let case = |discipline| Case::new(figures, devices, discipline);
        disciplines(&problem.systems, has_cpu).into_iter().map(case).collect::<Vec<_>>()
    };
    let pins = &problem.options.pins;
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
