//! One search over microbatch sizes with the planner that was asked for.

use crate::Failure;
use spipe_base::{Diagnostic, SimTime};
use spipe_cost::{CostTable, Workload};
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Context, Outcome, OutcomeStatus, Placement, Plan, System};
use spipe_planner::{Options, PlanError, Problem, Solution};
use std::{
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

/// What to search.
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
    let planner = spipe_planner::planner(request.planner).ok_or_else(|| {
        Failure::argument(
            format!("there is no planner `{}`", request.planner),
            format!("use one of {}", spipe_planner::NAMES.join(", ")),
        )
    })?;
    let start = Instant::now();
    let mut best: Option<(Workload, Solution)> = None;
    let mut bound = SimTime::MAX;
    let mut refusal = None;
    let mut all_optimal = true;
    for (index, workload) in request.workloads.iter().enumerate() {
        let left = request.time_limit.saturating_sub(start.elapsed());
        let share = left / (request.workloads.len() - index) as u32;
        match one(request, planner.as_ref(), workload, share) {
            Ok(solution) => {
                all_optimal &= solution.status == OutcomeStatus::Optimal;
                bound = bound.min(solution.bound);
                let better = best.as_ref().is_none_or(|(_, best)| solution.simulated < best.simulated);
                if better {
                    best = Some((*workload, solution));
                }
            }
            Err(Failure::Infeasible(diagnostic)) => refusal = refusal.or(Some(Failure::Infeasible(diagnostic))),
            Err(Failure::Stopped(diagnostic)) => {
                all_optimal = false;
                bound = SimTime::ZERO;
                refusal = Some(Failure::Stopped(diagnostic));
            }
            Err(other) => return Err(other),
        }
    }
    let Some((workload, mut solution)) = best else {
        return Err(refusal.unwrap_or_else(|| Failure::Bug("a search without microbatch sizes".into())));
    };
    solution.bound = bound.min(solution.bound);
    solution.gap = gap(solution.simulated, solution.bound);
    if !all_optimal && solution.status == OutcomeStatus::Optimal {
        solution.status = if solution.gap <= request.gap { OutcomeStatus::Optimal } else { OutcomeStatus::Feasible };
    }
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
    };
    Ok(Found { plan: plan.with_outcome(outcome), solution })
}

fn gap(simulated: SimTime, bound: SimTime) -> f64 {
    if simulated == SimTime::ZERO { 0.0 } else { simulated.saturating_sub(bound).to_ms() / simulated.to_ms() }
}

fn one(
    request: &Request<'_>,
    planner: &dyn spipe_planner::Planner,
    workload: &Workload,
    time_limit: Duration,
) -> Result<Solution, Failure> {
    let cost = CostTable::new(request.model, request.hardware, workload)
        .map_err(|error| Failure::from(Diagnostic::error(error.to_string())))?;
    let context = Context { model: request.model, hardware: request.hardware, cost: &cost };
    let score = |placement: &Placement| {
        spipe_schedule::lower(&context, placement).ok().as_ref().and_then(spipe_sim::iteration_time)
    };
    let stop = AtomicBool::new(false);
    let options = Options { time_limit, gap: request.gap, threads: request.threads, ..Options::default() };
    let problem = Problem { context, systems: request.systems.clone(), options, score: &score, stop: &stop };
    // The other systems have a shape of their own, which no planner of stages knows.
    let planned = request.systems.iter().all(|system| spipe_planner::SYSTEMS.contains(system));
    let solution = if planned { planner.plan(&problem) } else { spipe_planner::generated(&problem) };
    solution.map_err(|error| refuse(&error))
}

fn refuse(error: &PlanError) -> Failure {
    let diagnostic = Diagnostic::error(error.to_string());
    match error {
        PlanError::Infeasible { hint, .. } => Failure::Infeasible(diagnostic.hint(hint.clone())),
        PlanError::NothingRuns { .. } => Failure::Infeasible(diagnostic),
        PlanError::StoppedWithoutPlan { .. } => {
            Failure::Stopped(diagnostic.hint("give it more time with --time-limit"))
        }
        PlanError::TooLarge { .. } => Failure::Arguments(diagnostic.hint("use --planner ilp").into()),
        PlanError::NoSystem => Failure::Arguments(diagnostic.hint("use --system auto").into()),
        PlanError::Numerical { .. } | PlanError::Threads { .. } => Failure::Bug(error.to_string()),
    }
}
