//! The search over the sizes of microbatches.

use super::{
    Ended, Evaluator, Found, OnDrives, Request, by_layer,
    drives::{self, Moved, RefusedOnDrives},
    gap, readable, refusal, remedies,
    sizes::{ROUNDING, Sizes},
    watch::Watched,
};
use crate::Failure;
use spipe_base::SimTime;
use spipe_cost::{CostTable, Workload};
use spipe_plan::{Context, OutcomeStatus, Placement, System};
use spipe_planner::{Claim, Effort, Options, PlanError, Planner, Problem, Solution};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// The part of the time limit that the short searches over all sizes take together: each takes the
/// same part of the time that the searches before it have left.
const SHORT: u32 = 3;

/// The share of the time limit, in percent, that the search itself takes where its plan is to be
/// read: the rest is for a plan that is easier to read, and for the least memory.
const SEARCHING: u32 = 90;

/// A search that ends with less than this part of its time limit left has ended at the limit:
/// planners poll the clock between steps.
const NEARLY: u32 = 50;

/// The quarters of the remaining time that go to the size with the fastest plan, while other sizes
/// may have a faster one.
const FASTEST: u32 = 3;

/// The plan with the fastest simulated iteration over all sizes of microbatches.
///
/// At an effort, each size is searched once ([`Search::with_effort`]). Otherwise:
///
/// 1. Each size is searched at low effort without local search, and the best of them with it, which
///    gives a plan at once.
/// 2. Each size is searched for a short time.
/// 3. The sizes whose search was cut short, and whose bound leaves room for a faster plan, are
///    searched again, the one with the fastest plan first. Each takes three quarters of the
///    remaining time, the last one all of it.
/// 4. Time that is left goes to the size with the fastest plan, starting from that plan.
///
/// Where no plan fits the memories, and the machine has drives, optimizer state may be on them.
/// Activations are on drives that are named only.
pub fn search(request: &Request<'_>) -> Result<Found, Failure> {
    let named = request.drive_for;
    let refused = if named.is_none() {
        match in_memory(request) {
            Ok(found) => return Ok(found),
            Err(Unsuccessful::Failed(failure)) => return Err(failure),
            Err(Unsuccessful::Refused(refused)) => refused,
        }
    } else {
        Refused { error: refusal::no_drive(named), left: request.time_limit, settled: false }
    };
    let systems: Vec<System> = request.systems.iter().copied().filter(|system| named.suits(*system)).collect();
    if let Some(roomy) = drives::roomy(request, named).filter(|_| !systems.is_empty()) {
        let refused = RefusedOnDrives::default();
        let on_drives = Some(OnDrives { machine: request.hardware, named, refused: &refused });
        match in_memory(&Request { hardware: &roomy, systems, on_drives, start: None, ..request.clone() }) {
            Ok(found) => return Ok(found),
            Err(Unsuccessful::Failed(failure)) => return Err(failure),
            Err(Unsuccessful::Refused(Refused { error, left, settled })) if !named.is_none() => {
                let error = refused.closest().unwrap_or_else(|| match error {
                    error if settled => refusal::with_room(error, (request.hardware, named)),
                    error @ PlanError::Infeasible { .. } => error,
                    _ => refusal::no_drive(named),
                });
                // Remedies are sought without drives, and know nothing of what is missing with them.
                let of_no_memory = matches!(error, PlanError::Infeasible { missing: None, certain: true, .. });
                return Err(if of_no_memory {
                    remedies::refusal(request, &error, left)
                } else {
                    refusal::failure(&error)
                });
            }
            Err(Unsuccessful::Refused(_)) => {}
        }
    }
    let Refused { error, left, settled } = refused;
    Err(if settled { remedies::settled(request, &error) } else { remedies::refusal(request, &error, left) })
}

/// Why a search has no plan.
enum Unsuccessful {
    Refused(Refused),
    Failed(Failure),
}

/// A request that no plan satisfies.
struct Refused {
    error: PlanError,
    /// The time that is left for remedies.
    left: Duration,
    /// Whether a sum settles it.
    settled: bool,
}

impl From<Failure> for Unsuccessful {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The plan with the fastest simulated iteration among those that the machine's memories hold.
fn in_memory(request: &Request<'_>) -> Result<Found, Unsuccessful> {
    let mut search =
        Search { request, planner: planner(request.planner)?, start: Instant::now(), sizes: Sizes::default() };
    if let Err(error) = enough_in_total(request) {
        return Err(Unsuccessful::Refused(Refused { error, left: search.left(), settled: true }));
    }
    if !request.systems.iter().any(|system| request.pins.suit(*system)) {
        return Err(Unsuccessful::Refused(Refused { error: no_pinned(), left: search.left(), settled: false }));
    }
    if let Some(fault) = refusal::nowhere_to_offload(request) {
        return Err(Failure::Infeasible(fault).into());
    }
    search.all_sizes()?;
    search.sizes.keep_start(request);
    search.conclude()
}

/// Refuses at once a model that all memories of the machine together cannot hold.
fn enough_in_total(request: &Request<'_>) -> Result<(), PlanError> {
    for workload in request.workloads.iter().take(1) {
        // A model without times is refused later.
        let Ok(cost) = CostTable::new(request.model, request.hardware, workload) else { continue };
        let context = Context { model: request.model, hardware: request.hardware, cost: &cost };
        spipe_planner::enough_in_total(&context)?;
    }
    Ok(())
}

/// A running search.
struct Search<'a> {
    request: &'a Request<'a>,
    planner: &'static Planner,
    start: Instant,
    sizes: Sizes,
}

impl Search<'_> {
    /// The time left for searching; where the search is watched, some remains for what follows it.
    fn left(&self) -> Duration {
        let all = self.request.time_limit;
        let searching = if self.request.watch.is_some() { all / 100 * SEARCHING } else { all };
        searching.saturating_sub(self.start.elapsed())
    }

    fn is_interrupted(&self) -> bool {
        self.request.stop.load(Ordering::Relaxed)
    }

    fn all_sizes(&mut self) -> Result<(), Failure> {
        let (workloads, given) = (&self.request.workloads, self.request.start.as_ref());
        if let Some(effort) = self.request.effort {
            return self.with_effort(effort);
        }
        if self.planner.claim == Claim::OptimalWithinGap {
            self.with_effort(Effort::Low)?;
        }
        for (index, workload) in workloads.iter().enumerate() {
            if !self.sizes.has(workload.microbatch) || self.is_open(workload) {
                let others = (workloads.len() - index) as u32;
                let part = if workloads.len() == 1 { 1 } else { SHORT * others };
                self.size(*workload, (self.left() / part, None), given)?;
            }
        }
        if workloads.len() == 1 {
            return Ok(());
        }
        let mut again = self.sizes.stopped_at(workloads);
        again.reverse();
        while let Some(workload) = again.pop() {
            if self.is_open(&workload) {
                let left = self.left();
                let limit = if again.is_empty() { left } else { left / 4 * FASTEST };
                self.size(workload, (limit, None), given)?;
            }
        }
        let best = self.sizes.best.as_ref().map(|(workload, best)| (*workload, best.placement.clone()));
        if let Some((workload, placement)) = best.filter(|(workload, _)| self.is_open(workload)) {
            self.size(workload, (self.left(), None), Some(&placement))?;
        }
        Ok(())
    }

    /// Searches the sizes at an effort, the one with the least compute time first, and skips those that are not
    /// faster than the best plan by more than the gap even if they only compute. At low effort, local search
    /// starts from the fastest plan alone.
    fn with_effort(&mut self, effort: Effort) -> Result<(), Failure> {
        let request = self.request;
        let bound = |workload: &Workload| {
            CostTable::new(request.model, request.hardware, workload)
                .map_or(SimTime::ZERO, |table| spipe_cost::least_iteration(&table, request.hardware))
        };
        let mut order: Vec<(SimTime, Workload)> =
            request.workloads.iter().map(|workload| (bound(workload), *workload)).collect();
        order.sort_by_key(|(bound, _)| *bound);
        let several = effort == Effort::Low && order.len() > 1;
        for (bound, workload) in order {
            let best = self.sizes.best.as_ref().map(|(_, best)| best.simulated);
            if best.is_some_and(|best| gap(best, bound) <= request.gap) {
                let nothing = PlanError::NothingBetter { bound, examined: 0, stopped: false };
                self.sizes.take((workload, false), Err(nothing))?;
            } else {
                let options = self.options((self.end_of_steps(), Some(effort)), request.start.as_ref());
                let refinements = if several { 0 } else { options.refinements };
                self.size_with(workload, Options { refinements, ..options })?;
            }
        }
        let best = self.sizes.best.as_ref().map(|(workload, best)| (*workload, best.placement.clone()));
        match best.filter(|_| several) {
            Some((workload, placement)) => self.size(workload, (self.end_of_steps(), Some(effort)), Some(&placement)),
            None => Ok(()),
        }
    }

    /// The time limit of searches that count steps: none where only steps are counted.
    fn end_of_steps(&self) -> Duration {
        if self.request.effort.is_some() { Duration::MAX } else { self.left() }
    }

    /// Whether there is time for another search of a size that may still have a faster plan.
    fn is_open(&self, workload: &Workload) -> bool {
        !self.is_interrupted()
            && self.left() > Duration::ZERO
            && self.sizes.is_open(workload.microbatch, self.request.gap)
    }

    /// Searches one size.
    fn size(
        &mut self,
        workload: Workload,
        limits: (Duration, Option<Effort>),
        start: Option<&Placement>,
    ) -> Result<(), Failure> {
        let options = self.options(limits, start);
        self.size_with(workload, options)
    }

    fn options(&self, (time_limit, effort): (Duration, Option<Effort>), start: Option<&Placement>) -> Options {
        Options {
            time_limit,
            effort,
            gap: self.request.gap,
            threads: self.request.threads,
            incumbent: self.sizes.best.as_ref().map(|(_, best)| best.simulated),
            pins: self.request.pins.clone(),
            start: start.cloned(),
            host_help: self.request.host_help,
            ..Options::default()
        }
    }

    fn size_with(&mut self, workload: Workload, options: Options) -> Result<(), Failure> {
        let partial = options.effort.is_some() && self.request.effort.is_none();
        let found = one_size(self.request, self.planner, &workload, options);
        self.sizes.take((workload, partial), found)?;
        if let Some(watch) = self.request.watch.filter(|_| self.sizes.are(self.request.workloads.len())) {
            watch.bound(self.sizes.bound());
        }
        Ok(())
    }

    /// The best plan with the bound over all sizes, or why there is none.
    fn conclude(self) -> Result<Found, Unsuccessful> {
        let (request, left) = (self.request, self.left());
        let Sizes { best, .. } = &self.sizes;
        let Some((workload, solution)) = best else {
            let refused = |error| Unsuccessful::Refused(Refused { error, left, settled: false });
            return Err(match self.sizes.refusal() {
                None => Failure::Bug("a search without sizes of microbatches".into()).into(),
                Some(error @ (PlanError::Infeasible { .. } | PlanError::NothingRuns { .. })) => refused(error),
                Some(PlanError::NoSystem) if !request.pins.is_empty() => refused(no_pinned()),
                Some(PlanError::StoppedWithoutPlan { examined }) if !request.drive_for.is_none() => {
                    let closest = request.on_drives.and_then(|on| on.refused.closest());
                    closest
                        .map_or_else(|| refusal::stopped(request.drive_for, examined), |error| refusal::failure(&error))
                        .into()
                }
                Some(error) => refusal::failure(&error).into(),
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
        } else if let Some(effort) = request.effort {
            Ended::Effort(effort)
        } else if self.sizes.stopped() && left <= request.time_limit / NEARLY {
            Ended::Limit(request.time_limit)
        } else {
            Ended::Exhausted
        };
        solution.status = match ended {
            Ended::Gap(_) => OutcomeStatus::Optimal,
            Ended::Interrupted | Ended::Limit(_) => OutcomeStatus::Stopped,
            Ended::Exhausted | Ended::Effort(_) => OutcomeStatus::Feasible,
        };
        if request.on_drives.is_some() {
            return Ok(Found::new(request, workload, (solution, ended, None))?);
        }
        // A heuristic's plan is given as it is.
        let chooses = self.planner.claim == Claim::OptimalWithinGap;
        let Some(watch) = request.watch.filter(|_| chooses) else {
            let found = (solution.simulated, solution.placement);
            (solution.simulated, solution.placement) = by_layer::least_memory(request, &workload, found);
            solution.gap = gap(solution.simulated, solution.bound);
            return Ok(Found::new(request, workload, (solution, ended, None))?);
        };
        let fastest = solution.simulated;
        let limits = (self.sizes.baseline, request.time_limit.saturating_sub(self.start.elapsed()));
        let (workload, simulated, placement) =
            readable::easiest((request, watch), (workload, &solution.placement, fastest), limits);
        let (simulated, placement) = by_layer::least_memory(request, &workload, (simulated, placement));
        solution.gap = gap(simulated, solution.bound);
        (solution.simulated, solution.placement) = (simulated, placement);
        let fastest = Some(fastest).filter(|fastest| *fastest < simulated);
        Ok(Found::new(request, workload, (solution, ended, fastest))?)
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

fn planner(name: &str) -> Result<&'static Planner, Failure> {
    spipe_planner::planner(name).ok_or_else(|| {
        let names = spipe_planner::PLANNERS.each_ref().map(|planner| planner.name).join(", ");
        Failure::argument(format!("there is no planner `{name}`"), format!("use one of {names}"))
    })
}

fn one_size(
    request: &Request<'_>,
    planner: &Planner,
    workload: &Workload,
    options: Options,
) -> Result<Solution, PlanError> {
    let table = |hardware| {
        CostTable::new(request.model, hardware, workload).map_err(|error| PlanError::Infeasible {
            reason: error.to_string(),
            hint: "add its times for one of the devices to the model file".into(),
            missing: None,
            certain: true,
        })
    };
    let cost = table(request.hardware)?;
    let context = Context { model: request.model, hardware: request.hardware, cost: &cost };
    let Some(OnDrives { machine, named, refused }) = request.on_drives else {
        let evaluator = Watched { evaluator: Evaluator::new(context), watch: request.watch, workload: *workload };
        return solved((request, planner), context, (options, &evaluator));
    };
    let cost = table(machine)?;
    let evaluator = Evaluator::new(Context { model: request.model, hardware: machine, cost: &cost });
    let moved = Moved { evaluator, named, refused, watch: request.watch, workload: *workload };
    let found = solved((request, planner), context, (options, &moved))?;
    match moved.placement(&found.placement) {
        Some(placement) => Ok(Solution { placement, ..found }),
        None => Err(refused.closest().unwrap_or_else(|| refusal::no_drive(named))),
    }
}

fn solved(
    (request, planner): (&Request<'_>, &Planner),
    context: Context<'_>,
    (options, evaluator): (Options, &dyn spipe_planner::Evaluator),
) -> Result<Solution, PlanError> {
    let systems = request.systems.iter().copied().filter(|system| request.pins.suit(*system)).collect();
    let problem = Problem { context, systems, options, evaluator, stop: request.stop };
    if request.pins.given_stages().is_some() {
        spipe_planner::plan_stages(&problem)
    } else if planner.claim == Claim::OptimalWithinGap {
        spipe_planner::plan_all(&problem, planner)
    } else {
        planner.plan(&problem)
    }
}
