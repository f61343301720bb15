//! One search over microbatch sizes with the planner that was asked for.

use crate::{Failure, remedies};
use spipe_base::{Bytes, Diagnostic, MemoryId, SimTime};
use spipe_cost::{CostTable, MOST_TOKENS, Workload};
use spipe_hardware::Hardware;
use spipe_model::Model;
use spipe_plan::{Context, Outcome, OutcomeStatus, Placement, Plan, System, check};
use spipe_planner::{Claim, Fit, Insight, Options, Pins, PlanError, Planner, Problem, Solution};
use std::{
    collections::BTreeMap,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

mod over;

use over::Over;

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
    if template.seq_len == 0 {
        return Err(Failure::argument("the sequence length is zero", "use at least one token"));
    }
    let split = |size: u64| Workload { microbatch: size, microbatches: global_batch / size, ..template };
    if microbatch == "auto" {
        let sizes = (1..=global_batch.min(MOST_TOKENS)).filter(|size| global_batch.is_multiple_of(*size));
        let possible: Vec<Workload> = sizes.map(split).filter(|workload| workload.check().is_ok()).collect();
        return if possible.is_empty() { Err(too_large(&split(1))) } else { Ok(possible) };
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
    let workload = split(size);
    if workload.check().is_err() {
        return Err(too_large(&workload));
    }
    Ok(vec![workload])
}

/// What of a workload is more than can be counted.
fn too_large(workload: &Workload) -> Failure {
    let message = workload.check().err().map_or_else(String::new, |error| error.to_string());
    Failure::argument(
        message,
        "plan for a smaller batch or shorter sequences; several iterations take as long as one after the other",
    )
}

/// A found plan.
pub struct Found {
    pub plan: Plan,
    pub solution: Solution,
}

/// The best plan over all microbatch sizes, by simulated time.
///
/// Of several sizes, each is searched for a short while first. Those for which that was too short are searched again, the one with the
/// fastest plan first, each for three quarters of the time that is left then. What is left after that, because the plan of one has ruled out the
/// others, is for that one, from its plan on.
pub fn search(request: &Request<'_>) -> Result<Found, Failure> {
    let planner = planner(request.planner)?;
    let start = Instant::now();
    let left = || request.time_limit.saturating_sub(start.elapsed());
    if !request.systems.iter().any(|system| request.pins.suit(*system)) {
        return Err(remedies::refusal(request, &no_pinned(), left()));
    }
    let mut over = Over { best: None, sizes: BTreeMap::new(), refusals: BTreeMap::new() };
    let search = |workload: Workload, time_limit: Duration, start: Option<&Placement>, over: &mut Over| {
        let options = Options {
            time_limit,
            gap: request.gap,
            threads: request.threads,
            incumbent: over.best.as_ref().map(|(_, best)| best.simulated),
            pins: request.pins.clone(),
            start: start.cloned(),
            host_help: request.host_help,
            ..Options::default()
        };
        over.take(workload, one(request, planner.as_ref(), &workload, options))
    };
    let given = request.start.as_ref();
    if let [only] = request.workloads[..] {
        search(only, request.time_limit, given, &mut over)?;
    } else {
        for (index, workload) in request.workloads.iter().enumerate() {
            let others = (request.workloads.len() - index) as u32;
            search(*workload, left() / (SHORT * others), given, &mut over)?;
        }
        let mut again = over.stopped_at(&request.workloads);
        again.reverse();
        while let Some(workload) = again.pop() {
            if left() > Duration::ZERO && over.open(workload.microbatch, request.gap) {
                search(workload, if again.is_empty() { left() } else { left() / 4 * FASTEST }, given, &mut over)?;
            }
        }
        let best = over.best.as_ref().map(|(workload, best)| (*workload, best.placement.clone()));
        let open = |workload: &Workload| left() > Duration::ZERO && over.open(workload.microbatch, request.gap);
        if let Some((workload, placement)) = best.filter(|(workload, _)| open(workload)) {
            search(workload, left(), Some(&placement), &mut over)?;
        }
    }
    over.keep(request);
    let (bound, proven, stopped) = (over.bound(), over.proven(), over.stopped());
    let refusal = over.refusal();
    let Some((workload, mut solution)) = over.best else {
        let left = request.time_limit.saturating_sub(start.elapsed());
        return Err(match refusal {
            None => Failure::Bug("a search without microbatch sizes".into()),
            Some(error @ (PlanError::Infeasible { .. } | PlanError::NothingRuns { .. })) => {
                remedies::refusal(request, &error, left)
            }
            Some(PlanError::NoSystem) if !request.pins.is_empty() => remedies::refusal(request, &no_pinned(), left),
            Some(error) => refuse(&error),
        });
    };
    // What is known of all systems at this size, perhaps from another search, is known of each.
    let of_size = over.sizes.get(&workload.microbatch).map_or(SimTime::ZERO, |size| size.bound);
    for considered in &mut solution.considered {
        let most = considered.simulated.unwrap_or(SimTime::MAX);
        considered.bound = considered.bound.map(|bound| bound.max(of_size).min(most));
    }
    solution.bound = bound.min(solution.simulated);
    solution.gap = gap(solution.simulated, solution.bound);
    solution.status = if proven || solution.gap <= request.gap + ROUNDING {
        OutcomeStatus::Optimal
    } else if stopped {
        OutcomeStatus::Stopped
    } else {
        OutcomeStatus::Feasible
    };
    found(request, workload, solution)
}

/// A solution with its plan.
pub fn found(request: &Request<'_>, workload: Workload, solution: Solution) -> Result<Found, Failure> {
    let plan = Plan::new(request.model.clone(), request.hardware.clone(), workload, solution.placement.clone())?;
    let own = spipe_planner::SYSTEMS.contains(&solution.placement.system)
        || (request.planner == "mobius-mip" && solution.placement.system == System::Mobius);
    let outcome = Outcome {
        planner: if own { request.planner.into() } else { "generated".into() },
        status: solution.status,
        objective_ms: Some(solution.bound.to_ms()),
        gap: Some(solution.gap),
        simulated_iteration_ms: Some(solution.simulated.to_ms()),
        sensitivity: Vec::new(),
    };
    let peaks = simulated_peaks(&plan)?;
    Ok(Found { plan: plan.with_outcome(outcome).with_simulated_peaks(peaks), solution })
}

/// What each memory holds at most while the plan is simulated.
fn simulated_peaks(plan: &Plan) -> Result<BTreeMap<MemoryId, Bytes>, Failure> {
    let context = plan.context();
    let program = spipe_schedule::lower(&context, plan.placement()).map_err(Failure::Input)?;
    let trace = spipe_sim::simulate(&program, &spipe_sim::Options::default()).trace;
    let tracks = trace.memories.iter().filter(|track| track.peak > Bytes::ZERO);
    Ok(tracks.filter_map(|track| Some((context.hardware.memory(&track.name)?, track.peak))).collect())
}

/// The first searches over microbatch sizes together take about this part of the time limit at most: each the same part of what those
/// before it have left.
const SHORT: u32 = 3;

/// How many quarters of the time that is left the size with the fastest plan has, if others may have a faster one.
const FASTEST: u32 = 3;

/// The bound of a size that another one's plan beats is this plan's, less the gap and so much that rounding may hide.
const ROUNDING: f64 = 1e-5;

/// That no system has what the pins want, whatever the memory.
fn no_pinned() -> PlanError {
    PlanError::Infeasible {
        reason: "no placement of the allowed systems holds all pins".into(),
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

pub fn gap(simulated: SimTime, bound: SimTime) -> f64 {
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
    let waits = |placement: &Placement| {
        spipe_schedule::lower(&context, placement).ok().as_ref().map(spipe_sim::waits).unwrap_or_default()
    };
    let within = |placement: &Placement, limit: SimTime| {
        let program = spipe_schedule::lower(&context, placement).ok()?;
        spipe_sim::iteration_time_within(&program, limit)
    };
    let insight = Some(Insight { waits: &waits, within: &within });
    let systems = request.systems.iter().copied().filter(|system| request.pins.suit(*system)).collect();
    let problem = Problem { context, systems, options, score: &score, insight, stop: &stop };
    // The other systems have a shape of their own, which heuristics for stages do not know.
    let stages = request.systems.iter().any(|system| spipe_planner::SYSTEMS.contains(system));
    match (planner.claim(), stages) {
        (Claim::OptimalWithinGap, _) => spipe_planner::plan_all(&problem, planner),
        (_, true) => planner.plan(&problem),
        (_, false) => spipe_planner::generated(&problem),
    }
}

/// The simulated iteration of a placement that is accepted and runs.
pub fn time((model, hardware): (&Model, &Hardware), workload: &Workload, placement: &Placement) -> Option<SimTime> {
    let cost = CostTable::new(model, hardware, workload).ok()?;
    timed(&Context { model, hardware, cost: &cost }, placement)
}

fn timed(context: &Context<'_>, placement: &Placement) -> Option<SimTime> {
    check(context, placement).ok()?;
    spipe_schedule::lower(context, placement).ok().as_ref().and_then(spipe_sim::iteration_time)
}

/// Whether any placement of `systems` fits and runs, as far as that is found out within `limit`.
pub fn fits(
    (model, hardware): (&Model, &Hardware),
    (workload, systems, pins): (&Workload, &[System], &Pins),
    limit: Duration,
) -> Fit {
    let Ok(cost) = CostTable::new(model, hardware, workload) else { return Fit::Never };
    let context = Context { model, hardware, cost: &cost };
    let score = |placement: &Placement| {
        spipe_schedule::lower(&context, placement).ok().as_ref().and_then(spipe_sim::iteration_time)
    };
    let stop = AtomicBool::new(false);
    let options = Options { pins: pins.clone(), time_limit: limit, ..Options::default() };
    let problem = Problem { context, systems: systems.to_vec(), options, score: &score, insight: None, stop: &stop };
    spipe_planner::fits(&problem)
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
            (PlanError::NothingBetter { bound: SimTime::ZERO, examined: 1, stopped: true }, 4),
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
        let mut over = Over { best: None, sizes: BTreeMap::new(), refusals: BTreeMap::new() };
        let workload = Workload {
            mode: spipe_cost::Mode::Train,
            seq_len: 1,
            microbatch: 1,
            microbatches: 1,
            precision: spipe_model::Precision::Bf16,
            optimizer: spipe_cost::Optimizer::Adamw,
            attention: spipe_model::Attention::Fused,
            clip_norm: None,
        };
        assert!(over.take(workload, Err(numerical())).is_ok());
        let other = Workload { microbatch: 2, ..workload };
        assert!(over.take(other, Err(PlanError::NothingRuns { examined: 1 })).is_ok());
        assert_eq!(over.refusal(), Some(numerical()), "what was not found out comes before what does not fit");
        assert_eq!((over.proven(), over.stopped(), over.bound()), (false, true, SimTime::ZERO));
        // A search that has come to its end was not stopped, whatever it found.
        let solution = Solution {
            placement: Placement::new(System::GpuOnly, []),
            status: OutcomeStatus::Feasible,
            bound: SimTime::ZERO,
            simulated: SimTime::ns(1),
            gap: 1.0,
            examined: 1,
            solves: 0,
            cases: 0,
            considered: Vec::new(),
        };
        let best = Some((workload, solution));
        let mut over = Over { best, sizes: BTreeMap::new(), refusals: BTreeMap::new() };
        for stopped in [true, false] {
            let nothing = PlanError::NothingBetter { bound: SimTime::ZERO, examined: 1, stopped };
            assert!(over.take(workload, Err(nothing)).is_ok());
            assert_eq!(over.stopped(), stopped);
        }
    }
}
