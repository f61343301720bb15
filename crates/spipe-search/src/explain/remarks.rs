//! Remarks on a plan from its simulation.

use spipe_base::{Diagnostic, LaneId, LaneRole, SimTime, readable::percent};
use spipe_plan::Plan;
use spipe_trace::{Metrics, Status, Trace};

/// The share of idle time above which a plan gets a remark.
const MUCH: f64 = 0.2;

/// Remarks on a plan: choices that cost time, and imbalance if much time is idle.
pub fn remarks(plan: &Plan, trace: &Trace) -> Vec<Diagnostic> {
    let (context, placement) = (plan.context(), plan.placement());
    let mut all: Vec<Diagnostic> = spipe_plan::precision_remark(&context, placement).into_iter().collect();
    all.extend(spipe_plan::hybrid_remarks(&context, placement));
    let metrics = Metrics::of(trace);
    // Only GPUs: a layer that takes little time on a GPU keeps a socket busy for long.
    let is_gpu = |name: &str| plan.context().hardware.device(name).is_some_and(|device| !plan.context().is_cpu(device));
    let computes = |(lane, _): &(&LaneId, &SimTime)| {
        let lane = &trace.lanes[lane.index()];
        lane.role == LaneRole::Compute && lane.name.split('.').next().is_some_and(is_gpu)
    };
    let mut busy: Vec<(&LaneId, &SimTime)> = metrics.busy.iter().filter(computes).collect();
    busy.sort_by_key(|(_, time)| **time);
    let (Some((least, low)), Some((most, high))) = (busy.first(), busy.last()) else { return all };
    if trace.status == Status::Ok && metrics.bubble_fraction > MUCH && low != high {
        let share = |time: &SimTime| percent(time.to_ms() / metrics.iteration.to_ms().max(f64::MIN_POSITIVE));
        let (least, most) = (&trace.lanes[least.index()].name, &trace.lanes[most.index()].name);
        let message = format!(
            "{} of the time is idle: `{most}` is busy {} of it, `{least}` {}",
            percent(metrics.bubble_fraction),
            share(high),
            share(low)
        );
        let hint = format!("move a layer or two from `{most}` to `{least}`, or use more microbatches");
        all.push(Diagnostic::warning(message).hint(hint));
    }
    all
}
