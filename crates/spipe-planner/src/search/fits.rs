//! Feasibility: whether any placement fits, without a search for the best.

use crate::{
    candidates::{candidates, greedy, sharded::placements as shared_placements},
    costs::CostSums,
    feasibility::{
        capacity::{Capacity, capacity},
        shortage,
    },
    problem::{Deadline, Options, PlanError, Problem, SYSTEMS, budget},
    score::judge::judge,
    search::{branch_and_bound, exhaust::has_every_knob},
    space::{
        device_orders::{self, Coverage},
        enumerate::{few, of_costs},
        subproblem::{ScheduleKind, cases},
    },
};
use rayon::prelude::*;
use spipe_plan::{Placement, System};
use std::cmp::Reverse;

/// Result of the feasibility test.
#[derive(Clone, Debug, PartialEq)]
pub enum Fit {
    /// This placement fits and runs.
    Found(Placement),
    /// No placement fits.
    Never,
    /// None was found, without proof.
    NotFound,
    /// None was found, without proof, and more time might have found one.
    Late,
}

/// Tests whether a placement of one of the problem's systems fits and runs.
pub fn fits(problem: &Problem<'_>) -> Fit {
    let deadline = Deadline::new(problem);
    match decide(problem, &|system| candidates(&problem.context, system), &deadline) {
        Decision::Fits(placement) => Fit::Found(placement),
        Decision::Unfound | Decision::Open(_) if deadline.was_truncated() => Fit::Late,
        Decision::Never if all_are_few(problem) => Fit::Never,
        Decision::Never | Decision::Unfound => Fit::NotFound,
        Decision::Open(systems) => searched(problem, systems).map_or(Fit::NotFound, Fit::Found),
    }
}

/// Returns whether all placements of every system outside [`SYSTEMS`] were enumerated.
fn all_are_few(problem: &Problem<'_>) -> bool {
    let costs = CostSums::new(problem.context, &problem.options);
    let (pins, most) = (&problem.options.pins, problem.options.every_limit);
    let few = few(&costs, most) && !Deadline::new(problem).over();
    let all = |system: &System| has_every_knob(pins, *system) && of_costs(&costs, pins, (*system, most)).is_some();
    problem.systems.iter().all(|system| SYSTEMS.contains(system) || (few && all(system)))
}

/// Result of the feasibility test without a search.
pub(crate) enum Decision {
    /// This placement fits and runs.
    Fits(Placement),
    /// No placement with one or several stages per device fits, no generated one, and none of the
    /// enumerated systems.
    Never,
    /// None was found, and a search would find none either ([`Capacity::Unfound`]).
    Unfound,
    /// Undecided for stages of these systems.
    Open(Vec<System>),
}

/// Generates the candidates of a system.
pub(crate) type Candidates<'a> = dyn Fn(System) -> Vec<Placement> + Sync + 'a;

/// Decides feasibility without a search, with the generated candidates of each system outside
/// [`SYSTEMS`]. `deadline` is marked as truncated if more time might have decided more.
pub(crate) fn decide(problem: &Problem<'_>, candidates: &Candidates<'_>, deadline: &Deadline<'_>) -> Decision {
    let (planned, other): (Vec<System>, Vec<System>) =
        problem.systems.iter().partition(|system| SYSTEMS.contains(system));
    let of_stages = stages(problem, planned, deadline);
    if matches!(of_stages, Decision::Fits(_)) {
        return of_stages;
    }
    let scored = |placement: Placement| judge(problem, placement).map(|(_, placement)| Decision::Fits(placement));
    let held = |placement: Placement| problem.options.pins.hold(&problem.context, &placement);
    let found = other.par_iter().find_map_first(|system| candidates(*system).into_iter().map(held).find_map(scored));
    // If neither the GPUs nor the host can hold all layers, a mixture may fit.
    let found = found.or_else(|| {
        let costs = CostSums::new(problem.context, &problem.options);
        let shared = other.par_iter().filter(|system| system.shards_parameters());
        let (pins, deadline) = (&problem.options.pins, Deadline::new(problem));
        let counted = |system: &System| shared_placements((&costs, pins), (*system, f64::INFINITY), &deadline);
        shared.find_map_first(|system| counted(system).into_iter().find_map(scored))
    });
    found.or_else(|| every(problem, &other).map(Decision::Fits)).unwrap_or(of_stages)
}

/// Returns the first placement of one of `systems` that fits and runs, where there are few enough
/// to enumerate.
fn every(problem: &Problem<'_>, systems: &[System]) -> Option<Placement> {
    let (options, deadline) = (&problem.options, Deadline::new(problem));
    let costs = CostSums::new(problem.context, options);
    let of_system = |system: &System| {
        let list = of_costs(&costs, &options.pins, (*system, options.every_limit))?;
        let one = |placement| if deadline.over() { None } else { judge(problem, placement) };
        list.into_par_iter().find_map_first(one).map(|(_, placement)| placement)
    };
    systems.iter().filter(|_| few(&costs, options.every_limit)).find_map(of_system)
}

/// Decides feasibility of the systems in [`SYSTEMS`].
fn stages(problem: &Problem<'_>, systems: Vec<System>, deadline: &Deadline<'_>) -> Decision {
    let costs = CostSums::new(problem.context, &problem.options);
    // If a placement fits under any system, it fits under that with the fewest microbatches in flight.
    let leanest = System::OneForwardOneBackward;
    let systems = if costs.training && systems.contains(&leanest) { vec![leanest] } else { systems };
    if systems.is_empty() || shortage::lonely_layers(&costs).is_err() {
        return Decision::Never;
    }
    // With enough memory, the greedy placement fits.
    let pins = &problem.options.pins;
    let mut filled =
        greedy::placements(&costs, &systems).into_iter().map(|placement| pins.with_common_knobs(placement));
    if let Some(placement) = filled.find(|placement| pins.allow(&problem.context, placement)) {
        return Decision::Fits(placement);
    }
    let deadline = deadline.percent(budget::FEASIBILITY);
    let (mut open, mut unfound) = (Vec::new(), false);
    for system in systems {
        match capacity(&costs, ScheduleKind { system, head_start: 0 }, (pins, &deadline)) {
            Capacity::Fits(placement) => return Decision::Fits(placement),
            Capacity::Never => {}
            Capacity::Open => open.push(system),
            Capacity::Unfound => unfound = true,
        }
    }
    match (open.is_empty(), unfound) {
        (true, false) => Decision::Never,
        (true, true) => Decision::Unfound,
        (false, _) => Decision::Open(open),
    }
}

/// Returns the first plan that branch and bound finds.
fn searched(problem: &Problem<'_>, systems: Vec<System>) -> Option<Placement> {
    let time_limit = budget::share(problem.options.limit(), budget::FIRST_PLAN);
    let options = Options { gap: 1.0, time_limit, ..problem.options.clone() };
    let problem = Problem { systems, options, ..*problem };
    branch_and_bound::plan(&problem).ok().map(|solution| solution.placement)
}

/// Limit on ranges of layers over all device orders that are examined for their shortage.
const MOST_RANGES: usize = 5_000_000;

/// Returns the shortage of the closest stages of the problem's systems, where none fit.
pub(crate) fn shortage_of_stages(problem: &Problem<'_>, costs: &CostSums<'_>) -> PlanError {
    if let Err(error) = shortage::obvious(costs) {
        return error;
    }
    let few = device_orders::sequences(costs, branch_and_bound::FEW, None);
    let mut list = if few.coverage == Coverage::Exact { few.list } else { device_orders::natural(costs) };
    // Orders of more devices lack less.
    list.sort_by_key(|sequence| Reverse(sequence.len()));
    list.truncate(1 + MOST_RANGES / (costs.layers * costs.layers));
    let cases = cases(problem, costs, &list);
    if cases.is_empty() { PlanError::NoSystem } else { shortage::closest(costs, &cases) }
}
