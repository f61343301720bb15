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
    /// The placement that is simulated and recorded instead of one of the search, if the search has another machine.
    pub instead: Option<&'a Instead<'a>>,
}

/// The placement on the real machine for one of the search; `None` if it is no plan there.
pub type Instead<'a> = dyn Fn(&Placement) -> Option<Placement> + Sync + 'a;

impl Watched<'_> {
    fn seen(&self, placement: &Placement, time: impl Fn(&Placement) -> Option<SimTime>) -> Option<SimTime> {
        let real = match self.instead {
            Some(instead) => &instead(placement)?,
            None => placement,
        };
        let simulated = time(real)?;
        if let Some(watch) = self.watch {
            watch.plan(&self.workload, real, simulated);
        }
        Some(simulated)
    }
}

impl spipe_planner::Evaluator for Watched<'_> {
    fn iteration(&self, placement: &Placement) -> Option<SimTime> {
        self.seen(placement, |real| self.evaluator.iteration(real))
    }

    fn iteration_within(&self, placement: &Placement, limit: SimTime) -> Option<SimTime> {
        self.seen(placement, |real| self.evaluator.iteration_within(real, limit))
    }
}
