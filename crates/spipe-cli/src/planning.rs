//! One search over microbatch sizes with the planner that was asked for.

use crate::{Failure, remedies};
use spipe_base::{Bytes, Diagnostic, SimTime};
use spipe_cost::{CostTable, Workload};
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Context, Outcome, OutcomeStatus, Placement, Plan, System};
use spipe_planner::{Claim, Options, Pins, PlanError, Planner, Problem, Solution};
use std::{
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

/// What to search.
#[derive(Clone)]
pub struct Request<'a> {
    pub model: &'a Model,
    pub hardware: &'a Hardware,
    /// The microbatch sizes to try, with the workload of each.
    pub workloads: Vec<Workload>,
    pub systems: Vec<System>,
    pub planner: &'a str,
    pub time_limit: Duration,
    pub gap: f64,
    pub threads: usize,
    /// What the plan must hold.
    pub pins: Pins,
    /// A plan to begin with.
    pub start: Option<Placement>,
    /// Whether the host may keep what belongs to a GPU's stage.
    pub host_help: bool,
}

/// The workloads that split `global_batch` sequences into equal microbatches: of the given size, or of every size that
/// divides it.
pub fn workloads(template: Workload, global_batch: u64, microbatch: &str) -> Result<Vec<Workload>, Failure> {
    if global_batch == 0 {
        return Err(Failure::argument("the global batch is zero", "use at least one sequence"));
    }
    let split = |size: u64| Workload { microbatch: size, microbatches: global_batch / size, ..template };
    if microbatch == "auto" {
        return Ok((1..=global_batch).filter(|size| global_batch.is_multiple_of(*size)).map(split).collect());
    }
    let size: u64 = microbatch.parse().map_err(|_| {
        Failure::argument(format!("`{microbatch}` is not a microbatch size"), "give a number of sequences, or auto")
    })?;
    if size == 0 {
        return Err(Failure::argument("the microbatch is zero", "use at least one sequence"));
    }
    if !global_batch.is_multiple_of(size) {
        return Err(Failure::argument(
            format!("the global batch {global_batch} is not a multiple of the microbatch {size}"),
            format!("use a microbatch that divides {global_batch}"),
        ));
    }
    Ok(vec![split(size)])
}

/// A found plan.
pub struct Found {
    pub plan: Plan,
    pub solution: Solution,
}

/// The best plan over all microbatch sizes, by simulated time.
pub fn search(request: &Request<'_>) -> Result<Found, Failure> {
    let planner = planner(request.planner)?;
    let start = Instant::now();
    let mut over = Over { best: None, bound: SimTime::MAX, refusal: None, proven: true, stopped: false };
    for (index, workload) in request.workloads.iter().enumerate() {
        let left = request.time_limit.saturating_sub(start.elapsed());
        let share = left / (request.workloads.len() - index) as u32;
        let incumbent = over.best.as_ref().map(|(_, best)| best.simulated);
        let options = Options {
            gap: request.gap,
            threads: request.threads,
            incumbent,
            pins: request.pins.clone(),
            start: request.start.clone(),
            host_help: request.host_help,
            ..Options::default()
        };
        let found = one(request, planner.as_ref(), workload, Options { time_limit: share, ..options });
        over.take(*workload, found)?;
    }
    let (bound, proven, stopped) = (over.bound, over.proven, over.stopped);
    let Some((workload, mut solution)) = over.best else {
        let left = request.time_limit.saturating_sub(start.elapsed());
        return Err(match over.refusal {
            None => Failure::Bug("a search without microbatch sizes".into()),
            Some(error @ (PlanError::Infeasible { .. } | PlanError::NothingRuns { .. })) => {
                remedies::refusal(request, &error, left)
            }
            Some(error) => refuse(&error),
        });
    };
    solution.bound = bound.min(solution.simulated);
    solution.gap = gap(solution.simulated, solution.bound);
    solution.status = if proven || solution.gap <= request.gap {
        OutcomeStatus::Optimal
    } else if stopped {
        OutcomeStatus::Stopped
    } else {
        OutcomeStatus::Feasible
    };
    let plan = Plan::new(request.model.clone(), request.hardware.clone(), workload, solution.placement.clone())?;
    let outcome = Outcome {
        planner: if spipe_planner::SYSTEMS.contains(&solution.placement.system) {
            request.planner.into()
        } else {
            "generated".into()
        },
        status: solution.status,
        objective_ms: Some(solution.bound.to_ms()),
        gap: Some(solution.gap),
        simulated_iteration_ms: Some(solution.simulated.to_ms()),
        sensitivity: Vec::new(),
    };
    Ok(Found { plan: plan.with_outcome(outcome), solution })
}

/// What is known over all microbatch sizes so far.
struct Over {
    best: Option<(Workload, Solution)>,
    /// No plan takes less, whatever its microbatch.
    bound: SimTime,
    /// Of the sizes for which nothing fits, the refusal of the one that lacks least.
    refusal: Option<PlanError>,
    proven: bool,
    stopped: bool,
}

impl Over {
    fn take(&mut self, workload: Workload, found: Result<Solution, PlanError>) -> Result<(), Failure> {
        match found {
            Ok(solution) => {
                self.proven &= solution.status == OutcomeStatus::Optimal;
                self.stopped |= solution.status == OutcomeStatus::Stopped;
                self.bound = self.bound.min(solution.bound);
                if self.best.as_ref().is_none_or(|(_, best)| solution.simulated < best.simulated) {
                    self.best = Some((workload, solution));
                }
            }
            Err(PlanError::NothingBetter { bound, .. }) => {
                let best = self.best.as_ref().map_or(SimTime::ZERO, |(_, best)| best.simulated);
                self.proven &= bound >= best;
                self.bound = self.bound.min(bound);
            }
            Err(error @ (PlanError::Infeasible { .. } | PlanError::NothingRuns { .. } | PlanError::NoSystem)) => {
                let lacks_less = self.refusal.as_ref().is_none_or(|before| missing(&error) < missing(before));
                let open =
                    matches!(self.refusal, Some(PlanError::StoppedWithoutPlan { .. } | PlanError::Numerical { .. }));
                if lacks_less && !open {
                    self.refusal = Some(error);
                }
            }
            Err(error @ (PlanError::StoppedWithoutPlan { .. } | PlanError::Numerical { .. })) => {
                (self.proven, self.stopped, self.bound) = (false, true, SimTime::ZERO);
                self.refusal = Some(error);
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

fn planner(name: &str) -> Result<Box<dyn Planner>, Failure> {
    spipe_planner::planner(name).ok_or_else(|| {
        let names = spipe_planner::NAMES.join(", ");
        Failure::argument(format!("there is no planner `{name}`"), format!("use one of {names}"))
    })
}

fn gap(simulated: SimTime, bound: SimTime) -> f64 {
    if simulated == SimTime::ZERO { 0.0 } else { simulated.saturating_sub(bound).to_ms() / simulated.to_ms() }
}

fn one(
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
    let score = |placement: &Placement| {
        spipe_schedule::lower(&context, placement).ok().as_ref().and_then(spipe_sim::iteration_time)
    };
    let stop = AtomicBool::new(false);
    let problem = Problem { context, systems: request.systems.clone(), options, score: &score, stop: &stop };
    // The other systems have a shape of their own, which heuristics for stages do not know.
    let stages = request.systems.iter().any(|system| spipe_planner::SYSTEMS.contains(system));
    match (planner.claim(), stages) {
        (Claim::OptimalWithinGap, _) => spipe_planner::plan_all(&problem, planner),
        (_, true) => planner.plan(&problem),
        (_, false) => spipe_planner::generated(&problem),
    }
}

/// Whether any placement of `systems` fits and runs; one that is not found within `limit` counts as none.
pub fn fits(
    (model, hardware): (&Model, &Hardware),
    (workload, systems, pins): (&Workload, &[System], &Pins),
    limit: Duration,
) -> bool {
    let Ok(cost) = CostTable::new(model, hardware, workload) else { return false };
    let context = Context { model, hardware, cost: &cost };
    let score = |placement: &Placement| {
        spipe_schedule::lower(&context, placement).ok().as_ref().and_then(spipe_sim::iteration_time)
    };
    let stop = AtomicBool::new(false);
    let options = Options { pins: pins.clone(), time_limit: limit, ..Options::default() };
    let problem = Problem { context, systems: systems.to_vec(), options, score: &score, stop: &stop };
    spipe_planner::fits(&problem).is_some()
}

fn refuse(error: &PlanError) -> Failure {
    let diagnostic = error.hint().into_iter().fold(Diagnostic::error(error.to_string()), Diagnostic::hint);
    match error {
        PlanError::Infeasible { .. } | PlanError::NothingRuns { .. } | PlanError::NothingBetter { .. } => {
            Failure::Infeasible(diagnostic)
        }
        PlanError::StoppedWithoutPlan { .. } | PlanError::Numerical { .. } => Failure::Stopped(diagnostic),
        PlanError::TooLarge { .. } | PlanError::NoSystem => Failure::Arguments(diagnostic.into()),
        PlanError::Threads { .. } => Failure::Bug(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numerical() -> PlanError {
        PlanError::Numerical { devices: "gpu0".into(), what: "it broke".into() }
    }

    #[test]
    fn every_refusal_has_its_exit_code() {
        let infeasible =
            PlanError::Infeasible { reason: String::new(), hint: String::new(), missing: None, certain: false };
        for (error, code) in [
            (infeasible, 4),
            (PlanError::NothingRuns { examined: 1 }, 4),
            (PlanError::NothingBetter { bound: SimTime::ZERO, examined: 1 }, 4),
            (PlanError::StoppedWithoutPlan { examined: 1 }, 5),
            (numerical(), 5),
            (PlanError::TooLarge { placements: 2, limit: 1 }, 2),
            (PlanError::NoSystem, 2),
            (PlanError::Threads { threads: 1, what: String::new() }, 1),
        ] {
            assert_eq!(refuse(&error).exit_code(), code, "{error:?}");
        }
        let said = refuse(&numerical()).to_string();
        assert_eq!(
            said,
            "error: the solver failed on devices `gpu0`: it broke\nhint: another planner may do: `--planner dp`"
        );
    }

    #[test]
    fn trouble_with_one_microbatch_leaves_the_others() {
        let mut over = Over { best: None, bound: SimTime::MAX, refusal: None, proven: true, stopped: false };
        let workload = Workload {
            mode: spipe_cost::Mode::Train,
            seq_len: 1,
            microbatch: 1,
            microbatches: 1,
            precision: spipe_model::Precision::Bf16,
            optimizer: spipe_cost::Optimizer::Adamw,
            attention: spipe_model::Attention::Fused,
        };
        assert!(over.take(workload, Err(numerical())).is_ok());
        assert!(over.take(workload, Err(PlanError::NothingRuns { examined: 1 })).is_ok());
        assert_eq!(over.refusal, Some(numerical()), "what was not found out comes before what does not fit");
        assert_eq!((over.proven, over.stopped, over.bound), (false, true, SimTime::ZERO));
    }
}
