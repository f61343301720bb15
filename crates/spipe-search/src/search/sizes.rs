//! The results of the searches so far, by the size of microbatches.

use super::{found::gap, refusal::missing};
use crate::{request::Request, setting::Setting};
use spipe_base::SimTime;
use spipe_cost::Workload;
use spipe_plan::OutcomeStatus;
use spipe_planner::{PlanError, Solution};
use std::collections::BTreeMap;

/// Slack of the gap for rounding: the bound of a size that another size's plan beats is that plan's
/// time less the gap, in whole nanoseconds.
pub(super) const ROUNDING: f64 = 1e-5;

/// The result for one size.
#[derive(Clone, Copy)]
struct Size {
    /// No plan of this size is faster.
    bound: SimTime,
    proven: bool,
    stopped: bool,
    /// The fastest plan.
    simulated: SimTime,
}

/// The results for all sizes.
#[derive(Default)]
pub(super) struct Sizes {
    /// The fastest plan of all sizes.
    pub best: Option<(Workload, Solution)>,
    sizes: BTreeMap<u64, Size>,
    /// The refusal of each size without a plan.
    refusals: BTreeMap<u64, PlanError>,
    /// The fastest plan of the heuristics.
    pub baseline: Option<SimTime>,
}

impl Sizes {
    /// Keeps the plan to start from, if no faster one was found.
    pub fn keep_start(&mut self, request: &Request) {
        let Some(placement) = request.start.as_ref().filter(|start| request.systems.contains(&start.system)) else {
            return;
        };
        for workload in &request.workloads {
            let Ok(setting) = Setting::new(&request.model, &request.hardware, workload) else { continue };
            if !request.pins.allow(&setting.context(), placement) {
                continue;
            }
            let found = self.best.as_ref().map_or(SimTime::MAX, |(_, best)| best.simulated);
            let simulated = setting.evaluator().checked_iteration(placement);
            let Some(simulated) = simulated.filter(|time| *time < found) else { continue };
            let unknown = Size { bound: SimTime::ZERO, proven: false, stopped: true, simulated };
            self.sizes.entry(workload.microbatch).or_insert(unknown);
            let none = Solution {
                placement: placement.clone(),
                status: OutcomeStatus::Stopped,
                bound: SimTime::ZERO,
                simulated,
                gap: 1.0,
                examined: 1,
                cases: 1,
                baseline: None,
                considered: Vec::new(),
            };
            let found = self.best.take().map_or(none, |(_, found)| found);
            self.best = Some((*workload, Solution { placement: placement.clone(), simulated, ..found }));
        }
    }

    /// The refusal to report: an undecided one before an infeasible one, and of these the one with
    /// the smallest shortage.
    pub fn refusal(&self) -> Option<PlanError> {
        let open = |error: &&PlanError| matches!(error, PlanError::StoppedWithoutPlan { .. });
        // A reason that holds for every placement of one size, such as a layer that is larger than
        // any memory, may not hold for others.
        let certain = |error: &PlanError| matches!(error, PlanError::Infeasible { certain: true, .. });
        let closest = || self.refusals.values().min_by_key(|error| (certain(error), missing(error)));
        self.refusals.values().find(open).or_else(closest).cloned()
    }

    /// The lower bound of every plan with any size of microbatches.
    pub fn bound(&self) -> SimTime {
        self.sizes.values().map(|size| size.bound).min().unwrap_or(SimTime::MAX)
    }

    /// The lower bound of every plan with this size.
    pub fn bound_of(&self, microbatch: u64) -> SimTime {
        self.sizes.get(&microbatch).map_or(SimTime::ZERO, |size| size.bound)
    }

    /// Whether a size has a result.
    pub fn has(&self, microbatch: u64) -> bool {
        self.sizes.contains_key(&microbatch) || self.refusals.contains_key(&microbatch)
    }

    /// Whether all of `count` sizes have a result.
    pub fn are(&self, count: usize) -> bool {
        let refused = self.refusals.keys().filter(|size| !self.sizes.contains_key(size));
        self.sizes.len() + refused.count() == count
    }

    /// Whether all searches have proven their plans.
    pub fn proven(&self) -> bool {
        self.sizes.values().all(|size| size.proven)
    }

    /// Whether the limit has cut any search short.
    pub fn stopped(&self) -> bool {
        self.sizes.values().any(|size| size.stopped)
    }

    /// Whether the search of a size was cut short, and its bound leaves room for a plan faster by
    /// more than `worth`.
    pub fn is_open(&self, microbatch: u64, worth: f64) -> bool {
        let best = self.best.as_ref().map_or(SimTime::MAX, |(_, best)| best.simulated);
        self.sizes.get(&microbatch).is_some_and(|size| size.stopped && gap(best, size.bound) > worth + ROUNDING)
    }

    /// The workloads whose search was cut short, the one with the fastest plan first.
    pub fn stopped_at(&self, workloads: &[Workload]) -> Vec<Workload> {
        let simulated = |workload: &Workload| self.sizes.get(&workload.microbatch).map(|size| size.simulated);
        let stopped = |workload: &&Workload| self.sizes.get(&workload.microbatch).is_some_and(|size| size.stopped);
        let mut list: Vec<Workload> = workloads.iter().filter(stopped).copied().collect();
        list.sort_by_key(simulated);
        list
    }

    /// Takes the result of a search of one size in; a partial search has not tried everything. An error that is no
    /// answer is returned.
    pub fn take(
        &mut self,
        (workload, partial): (Workload, bool),
        found: Result<Solution, PlanError>,
    ) -> Result<(), PlanError> {
        let best = self.best.as_ref().map(|(_, best)| best.simulated);
        let known = self.sizes.get(&workload.microbatch);
        let (before, fastest) = known.map_or((SimTime::ZERO, SimTime::MAX), |size| (size.bound, size.simulated));
        let simulated = found.as_ref().map_or(SimTime::MAX, |solution| solution.simulated).min(fastest);
        let mut know = |bound: SimTime, proven: bool, stopped: bool| {
            let stopped = stopped || (partial && !proven);
            self.sizes.insert(workload.microbatch, Size { bound: bound.max(before), proven, stopped, simulated });
        };
        match &found {
            Ok(solution) => tracing::info!(
                "microbatch {}: {} simulated, {} at least, {:?}",
                workload.microbatch,
                solution.simulated,
                solution.bound,
                solution.status
            ),
            Err(error) => tracing::info!("microbatch {}: {error}", workload.microbatch),
        }
        self.refusals.remove(&workload.microbatch);
        match found {
            Ok(solution) => {
                self.baseline = self.baseline.into_iter().chain(solution.baseline).min();
                let (optimal, stopped) =
                    (solution.status == OutcomeStatus::Optimal, solution.status == OutcomeStatus::Stopped);
                know(solution.bound, optimal, stopped);
                if best.is_none_or(|best| solution.simulated < best) {
                    self.best = Some((workload, solution));
                }
            }
            Err(PlanError::NothingBetter { bound, stopped, .. }) => {
                let beaten = bound >= best.unwrap_or(SimTime::ZERO);
                know(bound, beaten, stopped && !beaten);
            }
            Err(error @ (PlanError::Infeasible { .. } | PlanError::NothingRuns { .. } | PlanError::NoSystem)) => {
                // An earlier, shorter search may have left the size open.
                self.sizes.remove(&workload.microbatch);
                self.refusals.insert(workload.microbatch, error);
            }
            Err(error @ PlanError::StoppedWithoutPlan { .. }) => {
                know(SimTime::ZERO, false, true);
                self.refusals.insert(workload.microbatch, error);
            }
            Err(other) => return Err(other),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spipe_plan::{Placement, System};

    /// An undecided refusal.
    fn cut_short() -> PlanError {
        PlanError::StoppedWithoutPlan { examined: 3 }
    }

    #[test]
    fn a_failed_size_leaves_the_others() {
        let mut sizes = Sizes::default();
        let workload = Workload {
            mode: spipe_cost::Mode::Train,
            seq_len: 1,
            microbatch: 1,
            microbatches: 1,
            precision: spipe_model::Precision::Bf16,
            ..Workload::PLAIN
        };
        assert!(sizes.take((workload, false), Err(cut_short())).is_ok());
        let other = Workload { microbatch: 2, ..workload };
        assert!(sizes.take((other, false), Err(PlanError::NothingRuns { examined: 1 })).is_ok());
        assert_eq!(sizes.refusal(), Some(cut_short()), "an undecided refusal comes before an infeasible one");
        assert_eq!((sizes.proven(), sizes.stopped(), sizes.bound()), (false, true, SimTime::ZERO));
        // A search that has come to its end was not stopped, even if it found nothing better.
        let solution = Solution {
            placement: Placement::new(System::GpuOnly, []),
            status: OutcomeStatus::Feasible,
            bound: SimTime::ZERO,
            simulated: SimTime::ns(1),
            gap: 1.0,
            examined: 1,
            cases: 0,
            baseline: None,
            considered: Vec::new(),
        };
        let mut sizes = Sizes { best: Some((workload, solution)), ..Sizes::default() };
        for stopped in [true, false] {
            let nothing = PlanError::NothingBetter { bound: SimTime::ZERO, examined: 1, stopped };
            assert!(sizes.take((workload, false), Err(nothing)).is_ok());
            assert_eq!(sizes.stopped(), stopped);
        }
    }
}
