//! A run: training by one program, inference by one or two.

use crate::{
    data::Data,
    error::RunError,
    options::Options,
    report::{Report, Step},
    runtime::{hooks::Hooks, infer::infer, job::Job, lanes::perform},
};
use spipe_cost::Mode;
use spipe_plan::Plan;
use spipe_schedule::Program;
use std::{ops::ControlFlow, time::Instant};

/// Runs `program`, which was lowered from `plan`, and calls `on_step` on this thread after each
/// iteration; it can end the run.
///
/// # Errors
/// Every kind of [`RunError`]. No thread is left behind.
pub fn run(
    plan: &Plan,
    program: &Program,
    data: &Data,
    options: &Options,
    on_step: &mut dyn FnMut(&Step) -> ControlFlow<()>,
) -> Result<Report, RunError> {
    run_with((plan, program), data, options, on_step, &Hooks::NONE)
}

/// The same as [`run`], with faults injected.
pub(crate) fn run_with(
    (plan, program): (&Plan, &Program),
    data: &Data,
    options: &Options,
    on_step: &mut dyn FnMut(&Step) -> ControlFlow<()>,
    hooks: &Hooks<'_>,
) -> Result<Report, RunError> {
    let job = Job { plan, program, data, options, hooks };
    match plan.context().workload().mode {
        Mode::Train => {
            let (report, interpreter) = perform(&job, None, on_step)?;
            let began = Instant::now();
            drop(interpreter);
            tracing::info!(seconds = began.elapsed().as_secs_f64(), "the interpreter has returned its memory");
            Ok(report)
        }
        Mode::Infer | Mode::Generate => infer(&job, on_step),
    }
}
