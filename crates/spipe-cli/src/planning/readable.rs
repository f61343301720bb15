//! The choice between equally good plans: the one that is easiest to read.

use super::{Evaluator, Request, watch::Watch};
use spipe_base::SimTime;
use spipe_cost::{CostTable, Workload};
use spipe_plan::{Context, Placement};
use spipe_planner::{Options, Problem, readable};
use std::time::Duration;

/// A plan may be slower than the fastest one by this fraction if it is easier to read: predictions
/// are not truer than that.
const WORSE: f64 = 0.01;

/// The plan with the fewest runs of layers with different choices among those within 1 % of the
/// fastest, none slower than `baseline`.
pub fn easiest(
    (request, watch): (&Request<'_>, &Watch),
    (workload, placement, fastest): (Workload, &Placement, SimTime),
    (baseline, time_limit): (Option<SimTime>, Duration),
) -> (Workload, SimTime, Placement) {
    let most = SimTime::ns((fastest.as_ns() as f64 * (1.0 + WORSE)) as u64);
    let most = baseline.map_or(most, |baseline| most.min(baseline)).max(fastest);
    let known = watch.plans(most).into_iter().next();
    let (simulated, workload, placement) = known.unwrap_or((fastest, workload, placement.clone()));
    let Ok(cost) = CostTable::new(request.model, request.hardware, &workload) else {
        return (workload, simulated, placement);
    };
    let context = Context { model: request.model, hardware: request.hardware, cost: &cost };
    let evaluator = Evaluator::new(context);
    let pins = request.pins.clone();
    let options = Options { time_limit, effort: request.effort, pins, ..Options::default() };
    let systems = request.systems.clone();
    let problem = Problem { context, systems, options, evaluator: &evaluator, stop: request.stop };
    let (simulated, placement) = readable(&problem, (simulated, placement), most);
    (workload, simulated, placement)
}
