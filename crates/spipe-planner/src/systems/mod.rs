//! Placements of the systems that have a shape of their own: generated, checked, simulated; the fastest one wins.
//!
//! What these systems leave open is little (how many chunks, what is recomputed, k and k′), so that trying it out is a search;
//! nothing is claimed beyond the bound of work over devices.

mod cuts;
mod pipelines;
mod rounds;
mod shared;

use crate::{
    PlanError, Problem, Solution,
    case::{Scored, faster, judge},
    deadline::Deadline,
    ilp::in_pool,
};
use rayon::prelude::*;
use spipe_base::{DeviceId, SimTime};
use spipe_cost::Mode;
use spipe_plan::{Context, Family, OutcomeStatus, Placement, System, check};

/// The best generated placement of the problem's systems.
pub fn generated(problem: &Problem<'_>) -> Result<Solution, PlanError> {
    let deadline = Deadline::new(problem);
    let candidates: Vec<Placement> =
        problem.systems.iter().flat_map(|system| candidates(&problem.context, *system)).collect();
    if candidates.is_empty() {
        return Err(PlanError::NoSystem);
    }
    let scored: Vec<Option<Scored>> = in_pool(problem, || {
        Ok(candidates
            .par_iter()
            .map(|placement| if deadline.stopped() { None } else { judge(problem, placement.clone()) })
            .collect())
    })?;
    let examined = candidates.len();
    let stopped = deadline.stopped();
    let Some((simulated, placement)) = scored.into_iter().fold(None, faster) else {
        return Err(if stopped {
            PlanError::StoppedWithoutPlan { examined }
        } else {
            refusal(problem, &candidates, examined)
        });
    };
    let bound = bound(&problem.context).min(simulated);
    Ok(Solution {
        placement,
        status: if stopped { OutcomeStatus::Stopped } else { OutcomeStatus::Feasible },
        bound,
        simulated,
        gap: Solution::gap_of(simulated, bound),
        examined,
        solves: 0,
        cases: examined,
    })
}

/// Everything worth trying under `system`.
pub fn candidates(context: &Context<'_>, system: System) -> Vec<Placement> {
    if context.workload().mode == Mode::Infer && !system.infers() {
        return Vec::new();
    }
    let candidates = match system.family() {
        Family::Pipeline => pipelines::candidates(context, system),
        Family::Rounds => rounds::candidates(context, system),
        Family::Sharded => shared::candidates(context, system),
    };
    candidates.unwrap_or_default()
}

/// Why nothing fits: what the checker says of the candidate of which it says least, or that none runs.
fn refusal(problem: &Problem<'_>, candidates: &[Placement], examined: usize) -> PlanError {
    let faults = candidates.iter().map(|placement| check(&problem.context, placement).err());
    let faults: Option<Vec<_>> = faults.collect();
    let Some(faults) = faults else {
        let (system, machine) = (candidates[0].system, problem.context.hardware.name());
        return PlanError::Infeasible {
            reason: format!("system `{system}` runs out of memory on `{machine}` with each of {examined} placements"),
            hint: "use a smaller microbatch, or a system that holds less".into(),
        };
    };
    // The one that spreads furthest lacks least.
    let devices = |index: &usize| std::cmp::Reverse(candidates[*index].devices().len());
    let least = (0..faults.len()).min_by_key(|index| (faults[*index].iter().count(), devices(index)));
    let first = least.and_then(|index| faults[index].iter().next());
    PlanError::Infeasible {
        reason: first.map(|fault| fault.message.clone()).unwrap_or_default(),
        hint: first.and_then(|fault| fault.hint.clone()).unwrap_or_default(),
    }
}

/// All work on whichever device does it fastest, shared evenly among all devices: no placement is faster.
fn bound(context: &Context<'_>) -> SimTime {
    let training = context.workload().mode == Mode::Train;
    let fastest = |layer| {
        let of = |device| {
            let time = context.cost.time(layer, device)?;
            Some(time.forward.get() + if training { time.backward().get() } else { 0.0 })
        };
        context.cost.devices().filter_map(of).fold(f64::INFINITY, f64::min)
    };
    let work: f64 = context.cost.layers().map(fastest).filter(|time| time.is_finite()).sum();
    let devices = context.cost.devices().len().max(1) as f64;
    SimTime::ns((work * context.workload().microbatches as f64 / devices * 1e9).floor() as u64)
}

/// The GPUs of the machine.
fn gpus(context: &Context<'_>) -> Vec<DeviceId> {
    context.hardware.devices().enumerate().filter(|(_, device)| device.is_gpu()).map(|(id, _)| id).collect()
}

/// The CPU socket nearest to a device.
fn socket(context: &Context<'_>, device: DeviceId) -> Option<DeviceId> {
    let host = context.hardware.host_memory(device)?;
    let mut sockets = context.hardware.devices().enumerate().filter(|(id, _)| context.is_cpu(*id));
    sockets.find(|(_, socket)| socket.memory == host).map(|(id, _)| id)
}
