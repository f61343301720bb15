//! An evaluator whose results are recorded.

use crate::{evaluator::Evaluator, request::watch::Watch};
use spipe_base::SimTime;
use spipe_cost::Workload;
use spipe_plan::Placement;

/// An evaluator whose results are recorded.
pub struct Watched<'a> {
    pub evaluator: Evaluator<'a>,
    pub watch: Option<&'a Watch>,
    pub workload: Workload,
}

impl Watched<'_> {
    fn seen(&self, placement: &Placement, simulated: Option<SimTime>) -> Option<SimTime> {
        if let Some((watch, simulated)) = self.watch.zip(simulated) {
            watch.plan(&self.workload, placement, simulated);
        }
        simulated
    }
}

impl spipe_planner::Evaluator for Watched<'_> {
    fn iteration(&self, placement: &Placement) -> Option<SimTime> {
        self.seen(placement, self.evaluator.iteration(placement))
    }

    fn iteration_within(&self, placement: &Placement, limit: SimTime) -> Option<SimTime> {
        self.seen(placement, self.evaluator.iteration_within(placement, limit))
    }
}
