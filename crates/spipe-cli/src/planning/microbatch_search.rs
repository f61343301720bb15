//! The search over the sizes of microbatches.

use super::{
    Ended, Evaluator, Found, Request, gap, refusal, remedies,
    sizes::{ROUNDING, Sizes},
};
use crate::Failure;
use spipe_base::SimTime;
use spipe_cost::{CostTable, Workload};
use spipe_plan::{Context, OutcomeStatus, Placement};
use spipe_planner::{Claim, Options, PlanError, Planner, Problem, Solution};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// The part of the time limit that the short searches over all sizes take together: each takes the
/// same part of the time that the searches before it have left.
const SHORT: u32 = 3;

/// A search that ends with less than this part of its time limit left has ended at the limit:
/// planners poll the clock between steps.
const NEARLY: u32 = 50;

/// The quarters of the remaining time that go to the size with the fastest plan, while other sizes
/// may have a faster one.
const FASTEST: u32 = 3;

/// The plan with the fastest simulated iteration over all sizes of microbatches.
///
/// 1. Each size is searched for a short time.
/// 2. The sizes whose search was cut short, and whose bound leaves room for a faster plan, are
///    searched again, the one with the fastest plan first. Each takes three quarters of the
///    remaining time, the last one all of it.
/// 3. Time that is left goes to the size with the fastest plan, starting from that plan.
pub fn search(request: &Request<'_>) -> Result<Found, Failure> {
    let mut search =
        Search { request, planner: planner(request.planner)?, start: Instant::now(), sizes: Sizes::default() };
    if !request.systems.iter().any(|system| request.pins.suit(*system)) {
        return Err(remedies::refusal(request, &no_pinned(), search.left()));
    }
    if let [only] = request.workloads[..] {
        search.size(only, request.time_limit, request.start.as_ref())?;
    } else {
        search.all_sizes()?;
    }
    search.sizes.keep_start(request);
    search.conclude()
}

/// A running search.
struct Search<'a> {
    request: &'a Request<'a>,
    planner: Box<dyn Planner>,
    start: Instant,
    sizes: Sizes,
}

impl Search<'_> {
    fn left(&self) -> Duration {
        self.request.time_limit.saturating_sub(self.start.elapsed())
    }

    fn is_interrupted(&self) -> bool {
        self.request.stop.load(Ordering::Relaxed)
    }

    fn all_sizes(&mut self) -> Result<(), Failure> {
        let (workloads, given) = (&self.request.workloads, self.request.start.as_ref());
        for (index, workload) in workloads.iter().enumerate() {
            let others = (workloads.len() - index) as u32;
            self.size(*workload, self.left() / (SHORT * others), given)?;
        }
        let mut again = self.sizes.stopped_at(workloads);
        again.reverse();
        while let Some(workload) = again.pop() {
            if self.is_open(&workload) {
                let left = self.left();
                self.size(workload, if again.is_empty() { left } else { left / 4 * FASTEST }, given)?;
            }
        }
        let best = self.sizes.best.as_ref().map(|(workload, best)| (*workload, best.placement.clone()));
        if let Some((workload, placement)) = best.filter(|(workload, _)| self.is_open(workload)) {
            self.size(workload, self.left(), Some(&placement))?;
        }
        Ok(())
    }

    /// Whether there is time for another search of a size that may still have a faster plan.
    fn is_open(&self, workload: &Workload) -> bool {
        !self.is_interrupted()
            && self.left() > Duration::ZERO
            && self.sizes.is_open(workload.microbatch, self.request.gap)
    }

    /// Searches one size.
    fn size(&mut self, workload: Workload, time_limit: Duration, start: Option<&Placement>) -> Result<(), Failure> {
        let options = Options {
            time_limit,
            gap: self.request.gap,
            threads: self.request.threads,
            incumbent: self.sizes.best.as_ref().map(|(_, best)| best.simulated),
            pins: self.request.pins.clone(),
            start: start.cloned(),
            host_help: self.request.host_help,
            ..Options::default()
        };
        let found = one_size(self.request, self.planner.as_ref(), &workload, options);
        self.sizes.take(workload, found)
    }

    /// The best plan with the bound over all sizes, or why there is none.
    fn conclude(self) -> Result<Found, Failure> {
        let (request, left) = (self.request, self.left());
        let Sizes { best, .. } = &self.sizes;
        let Some((workload, solution)) = best else {
            return Err(match self.sizes.refusal() {
                None => Failure::Bug("a search without sizes of microbatches".into()),
                Some(error @ (PlanError::Infeasible { .. } | PlanError::NothingRuns { .. })) => {
                    remedies::refusal(request, &error, left)
                }
                Some(PlanError::NoSystem) if !request.pins.is_empty() => remedies::refusal(request, &no_pinned(), left),
                Some(error) => refusal::failure(&error),
            });
        };
        let (workload, mut solution) = (*workload, solution.clone());
        // A bound of all systems at this size, perhaps from another search, is one of each system.
        let of_size = self.sizes.bound_of(workload.microbatch);
        for considered in &mut solution.considered {
            let most = considered.simulated.unwrap_or(SimTime::MAX);
            considered.bound = considered.bound.map(|bound| bound.max(of_size).min(most));
        }
        solution.bound = self.sizes.bound().min(solution.simulated);
        solution.gap = gap(solution.simulated, solution.bound);
        let ended = if self.sizes.proven() || solution.gap <= request.gap + ROUNDING {
            Ended::Gap(request.gap)
        } else if self.is_interrupted() {
            Ended::Interrupted
        } else if self.sizes.stopped() && left <= request.time_limit / NEARLY {
            Ended::Limit(request.time_limit)
        } else {
            Ended::Exhausted
        };
        solution.status = match ended {
            Ended::Gap(_) => OutcomeStatus::Optimal,
            Ended::Interrupted | Ended::Limit(_) => OutcomeStatus::Stopped,
            Ended::Exhausted => OutcomeStatus::Feasible,
        };
        Found::new(request, workload, (solution, ended))
    }
}

/// The refusal of pins that no allowed system can satisfy, with any amount of memory.
fn no_pinned() -> PlanError {
    PlanError::Infeasible {
        reason: "no placement of the allowed systems satisfies all pins".into(),
        hint: "drop a pin, or use `--system auto`".into(),
        missing: None,
        certain: true,
    }
}

fn planner(name: &str) -> Result<Box<dyn Planner>, Failure> {
    spipe_planner::planner(name).ok_or_else(|| {
        let names = spipe_planner::NAMES.join(", ");
        Failure::argument(format!("there is no planner `{name}`"), format!("use one of {names}"))
    })
}

fn one_size(
    request: &Request<'_>,
    planner: &dyn Planner,
    workload: &Workload,
    options: Options,
) -> Result<Solution, PlanError> {
    let cost = CostTable::new(request.model, request.hardware, workload).map_err(|error| PlanError::Infeasible {
        reason: error.to_string(),
        hint: "add its times for one of the devices to the model file".into(),
        missing: None,
        certain: true,
    })?;
    let context = Context { model: request.model, hardware: request.hardware, cost: &cost };
    let evaluator = Evaluator::new(context);
    let systems = request.systems.iter().copied().filter(|system| request.pins.suit(*system)).collect();
    let problem = Problem { context, systems, options, evaluator: &evaluator, stop: request.stop };
    if planner.claim() == Claim::OptimalWithinGap {
        spipe_planner::plan_all(&problem, planner)
    } else {
        planner.plan(&problem)
    }
}
