//! Problems about memory alone: every placement that fits runs, in the same time.

use proptest::prelude::*;
use spipe_base::SimTime;
use spipe_plan::{Context, Placement, System};
use spipe_planner::{Options, Problem, SYSTEMS};
use std::sync::atomic::AtomicBool;

static NEVER: AtomicBool = AtomicBool::new(false);

fn runs(_: &Placement) -> Option<SimTime> {
    Some(SimTime::ms(1))
}

pub fn with_problem<T>(context: Context<'_>, systems: &[System], ask: impl FnOnce(&Problem<'_>) -> T) -> T {
    let (systems, options) = (systems.to_vec(), Options::default());
    ask(&Problem { context, systems, options, evaluator: &runs, stop: &NEVER })
}

/// One of the systems whose stages are searched exactly, or all of them.
pub fn systems() -> impl Strategy<Value = Vec<System>> {
    prop::sample::select(vec![
        vec![System::OneForwardOneBackward],
        vec![System::Gpipe],
        vec![System::Hybrid],
        SYSTEMS.to_vec(),
    ])
}
