//! Enumeration of systems with few placements, which proves the best one optimal.

use crate::{
    costs::CostSums,
    problem::{Deadline, Problem, pins::Pins},
    score::judge::{Scored, busiest, faster, judge},
    space::enumerate::of_costs,
};
use rayon::prelude::*;
use spipe_plan::{Knob, Placement, System};

/// Number of placements that are simulated before their best limits the others. It must not depend on
/// the number of threads.
const BATCH: usize = 64;

/// Result of an enumeration.
#[derive(Default)]
pub(crate) struct Tried {
    /// The fastest placement below the limit.
    pub best: Option<Scored>,
    /// Number of simulated placements.
    pub examined: usize,
    /// Whether no placement is faster.
    pub complete: bool,
}

/// Returns whether the enumeration covers every value of the knobs that may vary. Larger groups of interleaved 1F1B than the
/// default hold more activations for nothing, unless a pin asks for them.
pub(crate) fn has_every_knob(pins: &Pins, system: System) -> bool {
    let limits = [Knob::MemoryLimit, Knob::Group];
    let pinned = [Knob::HeadStart, Knob::Resident, Knob::Swap, Knob::SynchronousOptimizer];
    let limited = system != System::Interleaved && limits.iter().any(|knob| knob.is_of(system));
    !limited && pinned.iter().all(|knob| pins.knob(*knob).is_none())
}

/// Simulates the placements of `system` that may take less than `limit` ms, in ascending order of
/// their busiest device. Incomplete if there are too many, or too little time.
pub(crate) fn fastest(
    (problem, costs): (&Problem<'_>, &CostSums<'_>),
    deadline: &Deadline<'_>,
    (system, limit): (System, f64),
) -> Tried {
    let options = &problem.options;
    let in_time = (!deadline.over()).then(|| of_costs(costs, &options.pins, (system, options.every_limit)));
    let Some(every) = in_time.flatten() else { return Tried::default() };
    let bounded = every.into_par_iter().map(|placement| (busiest(costs, &placement), placement));
    let mut list: Vec<(f64, Placement)> = bounded.filter(|(busy, _)| *busy < limit).collect();
    list.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut tried = Tried::default();
    for batch in list.chunks(BATCH) {
        let least = tried.best.as_ref().map_or(limit, |(time, _)| time.to_ms());
        let batch = &batch[..batch.partition_point(|(busy, _)| *busy < least)];
        if batch.is_empty() {
            break;
        }
        let one = |(_, placement): &(f64, Placement)| {
            if deadline.over() { None } else { judge(problem, placement.clone()) }
        };
        let scored: Vec<Option<Scored>> = batch.par_iter().map(one).collect();
        let faster_than_limit = |scored: &Scored| scored.0.to_ms() < limit;
        tried.best = scored.into_iter().map(|scored| scored.filter(faster_than_limit)).fold(tried.best, faster);
        tried.examined += batch.len();
        if deadline.over() {
            return tried;
        }
    }
    Tried { complete: has_every_knob(&options.pins, system), ..tried }
}
