//! The search among placements whose stages are given, as by a layout: their devices and layers stay,
//! while recompute, host offload and the system's knobs are chosen.

use crate::{
    bounds::to_time,
    candidates::repair::recompute_on,
    costs::CostSums,
    improve::refine,
    problem::{Deadline, PlanError, Problem, Solution, bound::Bound, in_pool, status},
    score::judge::{Scored, busiest, faster, judge},
    space::{
        distinct,
        rules::{Permission, SystemSpec},
        stage_edits::stepped_on_socket,
    },
};
use rayon::prelude::*;
use spipe_base::{DeviceId, IdVec, StageId};
use spipe_cost::Mode;
use spipe_plan::{OutcomeStatus, Placement, Stage, check};

/// The shares of each stage's layers that the first placements recompute, in parts of this.
const PARTS: usize = 8;

/// Returns the best placement of the stages that the problem's pins give, under its first system.
///
/// The bound is the computation of the busiest device without recompute: it holds for every
/// placement of these stages.
///
/// # Errors
/// Returns why no placement of these stages fits, or that none is faster than the known plan.
pub fn plan_stages(problem: &Problem<'_>) -> Result<Solution, PlanError> {
    let (Some(stages), Some(system)) = (problem.options.pins.given_stages(), problem.systems.first()) else {
        return Err(PlanError::NoSystem);
    };
    let stage = |(device, layers): &(usize, _)| Stage::new(DeviceId::from(*device), *layers);
    let plain = Placement::new(*system, stages.iter().map(stage));
    let costs = CostSums::new(problem.context, &problem.options);
    let deadline = Deadline::new(problem);
    let bound = to_time(&costs, Bound::AtLeast(busiest(&costs, &plain)));
    in_pool(problem, || {
        let starts = starts(problem, &plain);
        let judged: Vec<Option<Scored>> =
            starts.par_iter().map(|placement| judge(problem, placement.clone())).collect();
        let best = judged.into_iter().fold(None, faster).ok_or_else(|| refusal(problem, &starts))?;
        let (best, more) = refine(problem, &costs, &deadline, (best, problem.most_refinements()));
        let (examined, stopped) = (starts.len() + more, deadline.was_truncated());
        if problem.options.incumbent.is_some_and(|incumbent| incumbent <= best.0) {
            return Err(PlanError::NothingBetter { bound, examined, stopped, considered: Vec::new() });
        }
        let solution = Solution::new(best, bound, OutcomeStatus::Feasible);
        let status = status(solution.gap <= problem.options.gap, stopped);
        Ok(Solution { status, examined, cases: 1, ..solution })
    })
}

/// Returns placements to start from: shares of each stage recomputed, or as little as then fits by the
/// memory count; each also with the optimizer on sockets, where the system leaves that open.
fn starts(problem: &Problem<'_>, plain: &Placement) -> Vec<Placement> {
    let (context, rules) = (&problem.context, SystemSpec::of(plain.system).rules);
    let training = context.workload().mode == Mode::Train;
    let with = |change: &dyn Fn(&Stage) -> Stage| -> Placement {
        let stages: IdVec<StageId, Stage> = plain.stages.iter().map(change).collect();
        Placement { stages, ..plain.clone() }
    };
    let share = |part: usize| with(&|stage| stage.with_recomputed((stage.layers.count() * part).div_ceil(PARTS)));
    let mut list: Vec<Placement> = match rules.recomputes {
        Permission::Free if training => (0..=PARTS).map(share).collect(),
        Permission::Required if training => vec![share(PARTS)],
        _ => vec![plain.clone()],
    };
    if training && rules.recomputes == Permission::Free {
        let mut least = plain.clone();
        plain.devices().into_iter().for_each(|device| recompute_on(context, &mut least, device));
        list.push(least);
    }
    if training && problem.options.host_help && rules.steps_on_host != Permission::Forbidden {
        let on_sockets = |placement: &Placement| {
            let moved = |stage: &Stage| {
                let moves = context.trains(stage.layers) && !context.is_cpu(stage.lead());
                stepped_on_socket(context, stage).filter(|_| moves).unwrap_or(*stage)
            };
            Placement { stages: placement.stages.iter().map(moved).collect(), ..placement.clone() }
        };
        let moved: Vec<Placement> = list.iter().map(on_sockets).collect();
        list.extend(moved);
    }
    distinct(list.iter().map(|placement| problem.options.pins.hold(context, placement)))
}

/// Returns why none of `starts` runs: the shortage of the last one, which recomputes most.
fn refusal(problem: &Problem<'_>, starts: &[Placement]) -> PlanError {
    let allowed = |placement: &&Placement| problem.options.pins.allow(&problem.context, placement);
    let Some(last) = starts.iter().rev().find(allowed) else {
        return PlanError::Infeasible {
            reason: "no placement of the layout's stages satisfies all pins".into(),
            hint: "drop a pin".into(),
            missing: None,
            certain: true,
        };
    };
    let system = last.system;
    match check(&problem.context, last) {
        Ok(()) => PlanError::NothingRuns { examined: starts.len() },
        Err(faults) => {
            let fault = faults.iter().next().map_or_else(String::new, |fault| fault.message.clone());
            PlanError::Infeasible {
                reason: format!("the stages of the layout do not fit under `{system}`: {fault}"),
                hint:
                    "leave `option layout` out to have the stages chosen, or use a smaller microbatch or more devices"
                        .into(),
                missing: None,
                certain: false,
            }
        }
    }
}
