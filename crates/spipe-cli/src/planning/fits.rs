//! Whether any plan is feasible.

use super::Evaluator;
use spipe_cost::{CostTable, Workload};
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Context, System};
use spipe_planner::{Fit, Options, Pins, Problem};
use std::{sync::atomic::AtomicBool, time::Duration};

/// Whether a placement of `systems` fits and runs, as far as that can be found out within `limit`.
pub fn fits(
    (model, hardware): (&Model, &Hardware),
    (workload, systems, pins): (&Workload, &[System], &Pins),
    limit: Duration,
) -> Fit {
    let Ok(cost) = CostTable::new(model, hardware, workload) else { return Fit::Never };
    let context = Context { model, hardware, cost: &cost };
    let evaluator = Evaluator::new(context);
    let stop = AtomicBool::new(false);
    let options = Options { pins: pins.clone(), time_limit: limit, ..Options::default() };
    let problem = Problem { context, systems: systems.to_vec(), options, evaluator: &evaluator, stop: &stop };
    spipe_planner::fits(&problem)
}
