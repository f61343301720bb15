//! The suite that crosses the crates, with what its tests share. The tests are in `tests/tests/`, one
//! file per subject.

use spipe_base::SimTime;
use spipe_plan::{Context, Placement, System};
use spipe_planner::{Options, Problem};
use spipe_schedule::lower;
use spipe_search::Evaluator;
use std::sync::atomic::AtomicBool;

/// The simulated iteration of `placement`; none if it does not run.
pub fn simulated(context: &Context<'_>, placement: &Placement) -> Option<SimTime> {
    spipe_sim::iteration_time(&lower(context, placement).ok()?)
}

/// Calls `ask` with a planning problem as the command poses it.
pub fn with_problem<T>(
    context: Context<'_>,
    systems: &[System],
    options: Options,
    ask: impl FnOnce(&Problem<'_>) -> T,
) -> T {
    let evaluator = Evaluator::new(context);
    let stop = AtomicBool::new(false);
    ask(&Problem { context, systems: systems.to_vec(), options, evaluator: &evaluator, stop: &stop })
}

/// Calls `ask` with the same problem, where every placement is simulated to its end.
pub fn without_early_stops<T>(
    context: Context<'_>,
    systems: &[System],
    options: Options,
    ask: impl FnOnce(&Problem<'_>) -> T,
) -> T {
    let evaluator = |placement: &Placement| simulated(&context, placement);
    let stop = AtomicBool::new(false);
    ask(&Problem { context, systems: systems.to_vec(), options, evaluator: &evaluator, stop: &stop })
}
