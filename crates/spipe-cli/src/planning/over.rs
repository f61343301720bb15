//! What is known over all microbatch sizes so far.

use super::{ROUNDING, Request, gap, refuse, timed};
use crate::Failure;
use spipe_base::{Bytes, SimTime};
use spipe_cost::{CostTable, Workload};
use spipe_plan::{Context, OutcomeStatus};
use spipe_planner::{PlanError, Solution};
use std::collections::BTreeMap;

/// What is known of one microbatch size.
#[derive(Clone, Copy)]
pub(super) struct Size {
    /// No plan takes less.
    pub bound: SimTime,
    proven: bool,
    stopped: bool,
    /// The fastest plan.
    simulated: SimTime,
}

/// What is known over all microbatch sizes so far.
pub(super) struct Over {
    pub best: Option<(Workload, Solution)>,
    pub sizes: BTreeMap<u64, Size>,
    /// Why there is nothing, of the sizes for which there is nothing.
    pub refusals: BTreeMap<u64, PlanError>,
}

impl Over {
    /// Keeps the plan to begin with, if nothing faster was found.
    pub fn keep(&mut self, request: &Request<'_>) {
        let Some(placement) = request.start.as_ref().filter(|start| request.systems.contains(&start.system)) else {
            return;
        };
        for workload in &request.workloads {
            let Ok(cost) = CostTable::new(request.model, request.hardware, workload) else { continue };
            let context = Context { model: request.model, hardware: request.hardware, cost: &cost };
            if !request.pins.allow(&context, placement) {
                continue;
            }
            let found = self.best.as_ref().map_or(SimTime::MAX, |(_, best)| best.simulated);
            let Some(simulated) = timed(&context, placement).filter(|time| *time < found) else { continue };
            let unknown = Size { bound: SimTime::ZERO, proven: false, stopped: true, simulated };
            self.sizes.entry(workload.microbatch).or_insert(unknown);
            let none = Solution {
                placement: placement.clone(),
                status: OutcomeStatus::Stopped,
                bound: SimTime::ZERO,
                simulated,
                gap: 1.0,
                examined: 1,
                solves: 0,
                cases: 1,
                considered: Vec::new(),
            };
            let found = self.best.take().map_or(none, |(_, found)| found);
            self.best = Some((*workload, Solution { placement: placement.clone(), simulated, ..found }));
        }
    }

    /// Why there is nothing: what was not found out comes before what does not fit, and of that what lacks least.
    pub fn refusal(&self) -> Option<PlanError> {
        let open =
            |error: &&PlanError| matches!(error, PlanError::StoppedWithoutPlan { .. } | PlanError::Numerical { .. });
        // What is certain of one size, such as a layer that is larger than any memory, says nothing of the others.
        let certain = |error: &PlanError| matches!(error, PlanError::Infeasible { certain: true, .. });
        let closest = || self.refusals.values().min_by_key(|error| (certain(error), missing(error)));
        self.refusals.values().find(open).or_else(closest).cloned()
    }

    /// No plan takes less, whatever its microbatch.
    pub fn bound(&self) -> SimTime {
        self.sizes.values().map(|size| size.bound).min().unwrap_or(SimTime::MAX)
    }

    pub fn proven(&self) -> bool {
        self.sizes.values().all(|size| size.proven)
    }

    pub fn stopped(&self) -> bool {
        self.sizes.values().any(|size| size.stopped)
    }

    /// Whether the time was too short for a size that may still have the best plan.
    pub fn open(&self, microbatch: u64, worth: f64) -> bool {
        let best = self.best.as_ref().map_or(SimTime::MAX, |(_, best)| best.simulated);
        self.sizes.get(&microbatch).is_some_and(|size| size.stopped && gap(best, size.bound) > worth + ROUNDING)
    }

    /// Those of `workloads` for which the time was too short, the one with the fastest plan first.
    pub fn stopped_at(&self, workloads: &[Workload]) -> Vec<Workload> {
        let simulated = |workload: &Workload| self.sizes.get(&workload.microbatch).map(|size| size.simulated);
        let stopped = |workload: &&Workload| self.sizes.get(&workload.microbatch).is_some_and(|size| size.stopped);
        let mut list: Vec<Workload> = workloads.iter().filter(stopped).copied().collect();
        list.sort_by_key(simulated);
        list
    }

    pub fn take(&mut self, workload: Workload, found: Result<Solution, PlanError>) -> Result<(), Failure> {
        let best = self.best.as_ref().map(|(_, best)| best.simulated);
        let before = self.sizes.get(&workload.microbatch).map_or(SimTime::ZERO, |size| size.bound);
        let simulated = found.as_ref().map_or(SimTime::MAX, |solution| solution.simulated);
        let mut know = |bound: SimTime, proven: bool, stopped: bool| {
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
                // A shorter search may have left it open.
                self.sizes.remove(&workload.microbatch);
                self.refusals.insert(workload.microbatch, error);
            }
            Err(error @ (PlanError::StoppedWithoutPlan { .. } | PlanError::Numerical { .. })) => {
                know(SimTime::ZERO, false, true);
                self.refusals.insert(workload.microbatch, error);
            }
            Err(other) => return Err(refuse(&other)),
        }
        Ok(())
    }
}

/// What a refusal says is missing; more than anything where it does not say.
fn missing(error: &PlanError) -> Bytes {
    match error {
        PlanError::Infeasible { missing: Some(missing), .. } => *missing,
        _ => Bytes::new(u64::MAX),
    }
}
