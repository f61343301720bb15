//! Judged placements: pins and the checker accept them, and the simulator times them.

use crate::{costs::CostSums, problem::Problem, score::sharded::busiest as busiest_of_shared};
use spipe_base::SimTime;
use spipe_plan::{Placement, check};

/// The simulated iteration time of a placement, and the placement.
pub(crate) type Scored = (SimTime, Placement);

/// Returns the simulated time of `placement`; `None` if it is not [`acceptable`] or does not run.
pub(crate) fn judge(problem: &Problem<'_>, placement: Placement) -> Option<Scored> {
    let placement = acceptable(problem, placement)?;
    problem.evaluator.iteration(&placement).map(|time| (time, placement))
}

/// Like [`judge`], but may return `None` for a placement that takes longer than `limit`.
pub(crate) fn judge_within(problem: &Problem<'_>, placement: Placement, limit: SimTime) -> Option<Scored> {
    let placement = acceptable(problem, placement)?;
    problem.evaluator.iteration_within(&placement, limit).map(|time| (time, placement))
}

/// Returns `placement` with the pinned knobs that any placement may have; `None` if it breaks
/// another pin or the checker refuses it.
pub(crate) fn acceptable(problem: &Problem<'_>, placement: Placement) -> Option<Placement> {
    let placement = problem.options.pins.with_common_knobs(placement);
    let allowed = problem.options.pins.allow(&problem.context, &placement);
    (allowed && check(&problem.context, &placement).is_ok()).then_some(placement)
}

/// Returns the time for which the busiest device computes per iteration, in ms; in sharded systems
/// that of the busiest resource. No iteration is shorter.
pub(crate) fn busiest(costs: &CostSums<'_>, placement: &Placement) -> f64 {
    if placement.shards_parameters() {
        return busiest_of_shared(&costs.context, placement);
    }
    let mut busy = vec![0.0; costs.devices.len()];
    let m = costs.microbatches as f64;
    for stage in &placement.stages {
        let device = &costs.devices[stage.lead().index()];
        for times in stage.layers.iter().filter_map(|layer| device.times[layer.index()]) {
            busy[stage.lead().index()] += m * times.forward;
        }
    }
    for stage in placement.backward_stages().iter().filter(|_| costs.training) {
        let device = &costs.devices[stage.lead().index()];
        for (index, layer) in stage.layers.iter().enumerate() {
            let times = device.times[layer.index()].unwrap_or_default();
            let again = if index < stage.recomputed && times.backward > 0.0 { times.forward } else { 0.0 };
            busy[stage.lead().index()] += m * (times.backward + again);
        }
    }
    busy.into_iter().fold(0.0, f64::max)
}

/// Returns the faster of two placements, and the first of two equally fast ones.
pub(crate) fn faster(first: Option<Scored>, second: Option<Scored>) -> Option<Scored> {
    match (first, second) {
        (Some(first), Some(second)) => Some(if second.0 < first.0 { second } else { first }),
        (first, second) => first.or(second),
    }
}
