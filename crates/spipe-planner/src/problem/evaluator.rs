//! The interface to the simulator: it times the placements that the planner proposes.

use spipe_base::SimTime;
use spipe_plan::Placement;

/// A source of iteration times of placements, usually a simulator. Every function from a placement
/// to its iteration time is one.
pub trait Evaluator: Sync {
    /// Returns the iteration time of `placement`; `None` if it does not run.
    fn iteration(&self, placement: &Placement) -> Option<SimTime>;

    /// Like [`Self::iteration`], but may stop early and return `None` for a placement that takes
    /// longer than `limit`.
    fn iteration_within(&self, placement: &Placement, _limit: SimTime) -> Option<SimTime> {
        self.iteration(placement)
    }
}

impl<F: Fn(&Placement) -> Option<SimTime> + Sync> Evaluator for F {
    fn iteration(&self, placement: &Placement) -> Option<SimTime> {
        self(placement)
    }
}
