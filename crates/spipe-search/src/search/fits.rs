//! Whether any plan is feasible.

use crate::{request::machine::Machine, setting::Setting};
use spipe_cost::Workload;
use spipe_model::Model;
use spipe_plan::System;
use spipe_planner::{Fit, Options, Problem};
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

/// Whether a placement of `systems` fits and runs, as far as that can be found out within the time limit of `options`.
pub fn fits(
    (model, machine): (&Arc<Model>, &Machine),
    (workload, systems): (&Workload, &[System]),
    options: &Options,
) -> Fit {
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    let mut all = Fit::Never;
    for (hardware, systems) in machine.among(systems) {
        let Ok(setting) = Setting::new(model, &hardware, workload) else { continue };
        let time_limit = options.time_limit.saturating_sub(start.elapsed());
        let (context, options) = (setting.context(), Options { time_limit, ..options.clone() });
        match spipe_planner::fits(&Problem { context, systems, options, evaluator: &setting.evaluator(), stop: &stop })
        {
            found @ Fit::Found(_) => return found,
            Fit::Late => all = Fit::Late,
            Fit::NotFound if all == Fit::Never => all = Fit::NotFound,
            Fit::NotFound | Fit::Never => {}
        }
    }
    all
}
