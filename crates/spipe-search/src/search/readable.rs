//! The choice between equally good plans: the one that is easiest to read.

use crate::{
    request::{
        Request,
        watch::{Seen, Watch},
    },
    setting::Setting,
};
use spipe_base::SimTime;
use spipe_plan::System;
use spipe_planner::{Options, Problem, readable};
use std::time::Duration;

/// A plan may be slower than the fastest one by this fraction if it is easier to read: predictions
/// are not truer than that.
const WORSE: f64 = 0.01;

/// The plan with the fewest runs of layers with different choices among those within 1 % of the
/// fastest, none slower than `baseline`.
pub fn easiest(
    request: &Request,
    watch: &Watch,
    fastest: Seen,
    (baseline, time_limit): (Option<SimTime>, Duration),
) -> Seen {
    let most = SimTime::ns((fastest.0.as_ns() as f64 * (1.0 + WORSE)) as u64);
    let most = baseline.map_or(most, |baseline| most.min(baseline)).max(fastest.0);
    let (simulated, workload, placement) = watch.plans(most).into_iter().next().unwrap_or(fastest);
    let hardware = request.machine.of(placement.system);
    let Ok(setting) = Setting::of(&request.model, hardware, &workload, &placement) else {
        return (simulated, workload, placement);
    };
    let evaluator = setting.evaluator();
    let pins = request.pins.clone();
    let options = Options { time_limit, effort: request.effort, pins, ..Options::default() };
    let alike = |system: &&System| std::ptr::eq(request.machine.of(**system), hardware);
    let systems = request.systems.iter().filter(alike).copied().collect();
    let problem = Problem { context: setting.context(), systems, options, evaluator: &evaluator, stop: &request.stop };
    let (simulated, placement) = readable(&problem, (simulated, placement), most);
    (simulated, workload, placement)
}
