//! Whether any plan is feasible.

use crate::setting::Setting;
use spipe_plan::System;
use spipe_planner::{Fit, Options, Problem};
use std::sync::atomic::AtomicBool;

/// Whether a placement of `systems` fits and runs, as far as that can be found out within the time limit of `options`.
pub fn fits(setting: &Setting, systems: &[System], options: Options) -> Fit {
    let evaluator = setting.evaluator();
    let stop = AtomicBool::new(false);
    let context = setting.context();
    spipe_planner::fits(&Problem { context, systems: systems.to_vec(), options, evaluator: &evaluator, stop: &stop })
}
