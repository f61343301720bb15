//! The suite that crosses the crates, with what its tests share. The tests are in `tests/tests/`, one
//! file per subject.

use spipe_base::SimTime;
use spipe_plan::{Context, Placement, System};
use spipe_planner::{Evaluator, Options, Problem};
use spipe_schedule::{Program, lower};
use std::sync::atomic::AtomicBool;

/// The simulated iteration of `placement`; none if it does not run.
pub fn simulated(context: &Context<'_>, placement: &Placement) -> Option<SimTime> {
    spipe_sim::iteration_time(&program(context, placement)?)
}

fn program(context: &Context<'_>, placement: &Placement) -> Option<Program> {
    lower(context, placement).ok()
}

/// The evaluator of the command: it stops a simulation early where it takes longer than the limit.
struct Simulator<'a>(Context<'a>);

impl Evaluator for Simulator<'_> {
    fn iteration(&self, placement: &Placement) -> Option<SimTime> {
        simulated(&self.0, placement)
    }

    fn iteration_within(&self, placement: &Placement, limit: SimTime) -> Option<SimTime> {
        spipe_sim::iteration_time_within(&program(&self.0, placement)?, limit)
    }
}

/// Calls `ask` with a planning problem as the command poses it.
pub fn with_problem<T>(
    context: Context<'_>,
    systems: &[System],
    options: Options,
    ask: impl FnOnce(&Problem<'_>) -> T,
) -> T {
    let evaluator = Simulator(context);
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
