//! Exhaustive search: simulates every placement of a small problem. The reference for the other
//! planners.

use crate::{
    bounds::to_time,
    costs::CostSums,
    feasibility::shortage,
    formulation::assignment::least_of_stages,
    problem::{Deadline, PlanError, Problem, Solution, in_pool},
    score::judge::{Scored, faster, judge},
    space::{
        enumerate::helped,
        subproblem::{Partition, Subproblem, cases, schedule_kinds},
    },
};
use rayon::prelude::*;
use spipe_plan::{OutcomeStatus, System};

/// Number of placements that are simulated between checks of the stop signal: less than a second.
const BATCH: usize = 256;

/// The planner `exhaustive`.
pub(crate) fn plan(problem: &Problem<'_>) -> Result<Solution, PlanError> {
    let deadline = Deadline::new(problem);
    let costs = CostSums::new(problem.context, &problem.options);
    let (placements, limit) = (count(problem, &costs), problem.options.exhaustive_limit);
    if placements > limit {
        return Err(PlanError::TooLarge { placements, limit });
    }
    shortage::obvious(&costs)?;
    let mut cases = cases(problem, &costs, &all_sequences(&costs));
    if problem.options.host_help {
        cases = cases.into_iter().flat_map(|case| case.with_host_offload(&costs, None).decided(&costs)).collect();
    }
    if cases.is_empty() {
        return Err(PlanError::NoSystem);
    }
    in_pool(problem, || search(problem, &costs, &cases, &deadline))
}

fn search(
    problem: &Problem<'_>,
    costs: &CostSums<'_>,
    cases: &[Subproblem],
    deadline: &Deadline<'_>,
) -> Result<Solution, PlanError> {
    let mut best: Option<Scored> = None;
    let mut examined = 0;
    for case in cases {
        for batch in partitions(costs, case).chunks(BATCH) {
            if deadline.stopped() || (best.is_some() && deadline.over()) {
                return match best {
                    Some(best) => Ok(solution(best, costs, cases, examined, OutcomeStatus::Stopped)),
                    None => Err(PlanError::StoppedWithoutPlan { examined }),
                };
            }
            let every = |partition: &Partition| {
                let placement = case.placement(costs, partition);
                let all = helped((&costs.context, &problem.options.pins), &placement);
                (all.len(), all.into_iter().map(|placement| judge(problem, placement)).fold(None, faster))
            };
            let scores: Vec<(usize, Option<Scored>)> = batch.par_iter().map(every).collect();
            examined += scores.iter().map(|(count, _)| count).sum::<usize>();
            best = scores.into_iter().map(|(_, scored)| scored).fold(best, faster);
        }
    }
    match best {
        Some(best) => Ok(solution(best, costs, cases, examined, OutcomeStatus::Optimal)),
        None if examined > 0 => Err(PlanError::NothingRuns { examined }),
        None => Err(shortage::closest(costs, cases)),
    }
}

fn solution(
    best: Scored,
    costs: &CostSums<'_>,
    cases: &[Subproblem],
    examined: usize,
    status: OutcomeStatus,
) -> Solution {
    let systems: Vec<System> = cases.iter().map(|case| case.schedule.system).collect();
    let proven = match status {
        OutcomeStatus::Optimal => best.0,
        _ => to_time(costs, least_of_stages(costs, &systems)),
    };
    Solution { examined, cases: cases.len(), ..Solution::new(best, proven, status) }
}

/// Returns the number of placements, whether they fit or not. It is the product, summed over the
/// number of stages p and the schedules, of
///
/// - the device orders with host offloads: p! times the elementary symmetric polynomial of degree p
///   of the number of host offloads per device;
/// - the partitions of L layers into p stages of n_i layers with n_i + 1 recompute choices each,
///   counted stage by stage.
fn count(problem: &Problem<'_>, costs: &CostSums<'_>) -> u64 {
    let devices = costs.devices.len();
    let has_cpu = costs.devices.iter().any(|device| device.is_cpu);
    let schedule_kinds = schedule_kinds(&problem.systems, has_cpu).len() as u64;
    let mut ways = vec![0u64; costs.layers + 1];
    ways[0] = 1;
    let mut chosen = vec![1u64];
    for device in 0..devices {
        let host_offloads = if problem.options.host_help { costs.host_offloads(device).len() as u64 } else { 1 };
        let with = |count: usize| count.checked_sub(1).map_or(0, |fewer| chosen[fewer].saturating_mul(host_offloads));
        let next = (0..=chosen.len()).map(|count| chosen.get(count).unwrap_or(&0).saturating_add(with(count)));
        chosen = next.collect();
    }
    let (mut total, mut orders) = (0u64, 1u64);
    for (stages, chosen) in chosen.iter().enumerate().take(costs.layers + 1).skip(1) {
        let mut next = vec![0u64; costs.layers + 1];
        for (from, before) in ways.iter().enumerate() {
            for (to, after) in next.iter_mut().enumerate().skip(from + 1) {
                let choices = if costs.training { (to - from + 1) as u64 } else { 1 };
                *after = after.saturating_add(before.saturating_mul(choices));
            }
        }
        ways = next;
        orders = orders.saturating_mul(stages as u64);
        let here = orders.saturating_mul(*chosen).saturating_mul(ways[costs.layers]).saturating_mul(schedule_kinds);
        total = total.saturating_add(here);
    }
    total
}

/// Returns every order of distinct devices in which neighbours are connected.
fn all_sequences(costs: &CostSums<'_>) -> Vec<Vec<usize>> {
    let mut list: Vec<Vec<usize>> = vec![Vec::new()];
    let mut next = 0;
    while next < list.len() {
        let sequence = list[next].clone();
        next += 1;
        if sequence.len() == costs.layers {
            continue;
        }
        for device in 0..costs.devices.len() {
            let joined = sequence.last().is_none_or(|last| costs.p2p(*last, device).is_some());
            if joined && !sequence.contains(&device) {
                list.push([sequence.as_slice(), &[device]].concat());
            }
        }
    }
    list.remove(0);
    list
}

/// Returns every partition of `case` that fits its devices, in lexicographic order of ends and
/// recompute.
fn partitions(costs: &CostSums<'_>, case: &Subproblem) -> Vec<Partition> {
    let stages = case.stages();
    let mut list = vec![Partition::default()];
    for stage in 0..stages {
        let device = case.device(costs, stage);
        let mut longer = Vec::new();
        for partition in &list {
            let from = partition.ends.last().copied().unwrap_or(0);
            let farthest = costs.layers - (stages - 1 - stage);
            let nearest = if stage + 1 == stages { costs.layers } else { from + 1 };
            for to in nearest..=farthest {
                let recomputes = device.recomputes(costs.training, from, to);
                for recomputed in recomputes.into_iter().flat_map(|(least, most)| least..=most) {
                    let need = device.need(case.stage_slots[stage], (from, to), recomputed);
                    // Host memory is shared: the checker counts it.
                    if device.able(from, to) && need <= device.usable {
                        let mut partition = partition.clone();
                        partition.push(to, recomputed);
                        longer.push(partition);
                    }
                }
            }
        }
        list = longer;
    }
    list
}
