//! Balanced dynamic program: for each device order, the partition that minimises the busiest stage.
//!
//! `best(i, e) = min over a < e of max(best(i−1, a), F + R + B of layers a..e on device i)`, with
//! the least recompute R that fits in memory, takes O(L² p) per order. This is the linear partition
//! problem (PipeDream's planner, Narayanan et al., SOSP 2019, section 3.1, without replication).
//! The best-balanced orders are simulated.

use crate::{
    bounds::{
        partition_dp::partitioner::{Partitioner, some},
        to_time,
    },
    candidates::begin,
    costs::CostSums,
    feasibility::shortage,
    formulation::assignment::least_of_stages,
    problem::{Deadline, PlanError, Problem, Solution, in_pool, status},
    score::judge::{Scored, faster, judge},
    space::{
        device_orders,
        subproblem::{Partition, Subproblem, cases},
    },
};
use rayon::prelude::*;
use std::{
    collections::BinaryHeap,
    sync::{Mutex, PoisonError},
};

/// Number of best-balanced subproblems that are simulated: as many as branch and bound simulates at a
/// time.
const CANDIDATES: usize = 32;

/// The planner `dp`.
pub(crate) fn plan(problem: &Problem<'_>) -> Result<Solution, PlanError> {
    let (deadline, costs) = begin(problem)?;
    let cases = all_cases(problem, &costs, &deadline);
    if cases.is_empty() {
        return Err(PlanError::NoSystem);
    }
    in_pool(problem, || solve(problem, &costs, &cases, &deadline))
}

fn all_cases(problem: &Problem<'_>, costs: &CostSums<'_>, deadline: &Deadline<'_>) -> Vec<Subproblem> {
    cases(problem, costs, &device_orders::sequences(costs, device_orders::MOST, Some(deadline)).list)
}

/// Returns the fastest of the best-balanced placements on the device orders `orders` whose busiest stage takes less
/// than `most` ms.
pub(crate) fn best(
    problem: &Problem<'_>,
    costs: &CostSums<'_>,
    (orders, most): (&[Vec<usize>], f64),
    deadline: &Deadline<'_>,
) -> Option<Scored> {
    let cases = cases(problem, costs, orders);
    let mut candidates = candidates(costs, &Partitioner::new(costs, &cases), (&cases, most), deadline);
    candidates.truncate(problem.most_candidates());
    fastest((problem, costs), &cases, &candidates, deadline)
}

fn fastest(
    (problem, costs): (&Problem<'_>, &CostSums<'_>),
    cases: &[Subproblem],
    candidates: &[(usize, Partition)],
    deadline: &Deadline<'_>,
) -> Option<Scored> {
    let score = |(case, partition): &(usize, Partition)| {
        if deadline.stopped() { None } else { judge(problem, cases[*case].placement(costs, partition)) }
    };
    let scores: Vec<Option<Scored>> = candidates.par_iter().map(score).collect();
    scores.into_iter().fold(None, faster)
}

fn solve(
    problem: &Problem<'_>,
    costs: &CostSums<'_>,
    cases: &[Subproblem],
    deadline: &Deadline<'_>,
) -> Result<Solution, PlanError> {
    let candidates = candidates(costs, &Partitioner::new(costs, cases), (cases, f64::INFINITY), deadline);
    let examined = candidates.len();
    let Some(best) = fastest((problem, costs), cases, &candidates, deadline) else {
        return Err(match examined {
            0 if (0..cases.len()).all(|case| deadline.allows(case)) => shortage::closest(costs, cases),
            1.. if !deadline.stopped() => PlanError::NothingRuns { examined },
            _ => PlanError::StoppedWithoutPlan { examined },
        });
    };
    let bound = to_time(costs, least_of_stages(costs, &problem.systems));
    let status = status(false, deadline.over());
    Ok(Solution { examined, cases: cases.len(), ..Solution::new(best, bound, status) })
}

/// Returns the best-balanced partitions with the index of their subproblem, in ascending order of
/// the busiest stage. Those whose busiest stage takes `most` ms or more per iteration are left out.
pub(crate) fn candidates(
    costs: &CostSums<'_>,
    partitioner: &Partitioner<'_, '_>,
    (cases, most): (&[Subproblem], f64),
    deadline: &Deadline<'_>,
) -> Vec<(usize, Partition)> {
    // Stages are balanced by both passes, which inference does not have.
    let most = if costs.training { most / costs.microbatches as f64 } else { f64::INFINITY };
    let best = Best { most, times: Mutex::default() };
    let divide = |(index, case): (usize, &Subproblem)| {
        let tried = deadline.allows(index).then(|| balance(costs, partitioner, case, best.limit()));
        let (busiest, partition) = tried.flatten()?;
        best.add(busiest);
        Some((busiest, index, partition))
    };
    let mut partitions: Vec<(f64, usize, Partition)> = cases.par_iter().enumerate().filter_map(divide).collect();
    partitions.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    partitions.truncate(CANDIDATES);
    partitions.into_iter().map(|(_, index, partition)| (index, partition)).collect()
}

/// The least busiest-stage times so far, one per candidate: a subproblem above the largest of them
/// is not among the best.
struct Best {
    /// Longest time of interest, in ms.
    most: f64,
    /// As bits, whose order is that of non-negative times.
    times: Mutex<BinaryHeap<u64>>,
}

impl Best {
    fn add(&self, busiest: f64) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.push(busiest.to_bits());
        if times.len() > CANDIDATES {
            times.pop();
        }
    }

    /// Returns the time, in ms, that a subproblem must not exceed to be among the best.
    fn limit(&self) -> f64 {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let last = times.peek().filter(|_| times.len() == CANDIDATES);
        last.map_or(self.most, |bits| f64::from_bits(*bits))
    }
}

/// Returns the partition of `case` that minimises the busiest stage, and that stage's ms per
/// microbatch; none if it exceeds `limit`.
fn balance(
    costs: &CostSums<'_>,
    partitioner: &Partitioner<'_, '_>,
    case: &Subproblem,
    limit: f64,
) -> Option<(f64, Partition)> {
    let (layers, stages) = (costs.layers, case.stages());
    let mut best = vec![f64::INFINITY; layers + 1];
    best[0] = 0.0;
    let mut from_of = vec![vec![0; layers + 1]; stages];
    for (stage, starts) in from_of.iter_mut().enumerate() {
        let mut next = vec![f64::INFINITY; layers + 1];
        let farthest = layers.checked_sub(stages - 1 - stage)?;
        let (_, table) = *partitioner.choices(case.stage_slots[stage])?.first()?;
        for from in (stage..farthest).filter(|from| best[*from].is_finite()) {
            let busy = |to: usize, recomputed: usize| {
                case.device(costs, stage).stage_times((from, to), recomputed, case.host_offload(stage)).busy()
            };
            // A stage's time grows with its layers.
            for to in (from + 1..=farthest).take_while(|to| busy(*to, 0) <= limit) {
                let Some(recomputed) = some(table[from * (layers + 1) + to]) else { continue };
                let busy = busy(to, recomputed);
                if busy > limit {
                    continue;
                }
                let busiest = best[from].max(busy);
                if busiest < next[to] {
                    next[to] = busiest;
                    starts[to] = from;
                }
            }
        }
        best = next;
    }
    best[layers].is_finite().then(|| (best[layers], partitioner.least_of(case, &from_of)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        common::{Instance, LayerText, MachineText, machine_text, model_text, workload},
        problem::{Options, SYSTEMS},
    };
    use spipe_cost::Mode;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn cases_that_are_given_up_early_are_none_of_the_best() {
        let layer = |times| LayerText {
            count: 5,
            times,
            slowdown: 2,
            parameters: 1_000_000,
            boundary: 2,
            saved: 30,
            workspace: 0,
        };
        let machine = MachineText { gpus: vec![(700, 20), (500, 10)], root: 20, sockets: vec![2000] };
        let model = model_text(&[layer([3, 4, 5]), layer([9, 7, 5])]);
        let instance = Instance::new(&model, &machine_text(&machine), &workload(4, Mode::Train));
        let (stop, score) = (AtomicBool::new(false), |_: &spipe_plan::Placement| None);
        let (context, systems) = (instance.context(), SYSTEMS.to_vec());
        let problem = Problem { context, systems, options: Options::default(), evaluator: &score, stop: &stop };
        let (costs, deadline) = (CostSums::new(context, &problem.options), Deadline::new(&problem));
        let cases = all_cases(&problem, &costs, &deadline);
        let partitioner = Partitioner::new(&costs, &cases);
        let whole = |case: &Subproblem| balance(&costs, &partitioner, case, f64::INFINITY);
        let mut all: Vec<(f64, usize)> =
            cases.iter().enumerate().filter_map(|(index, case)| Some((whole(case)?.0, index))).collect();
        all.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        assert!(all.len() > CANDIDATES && all[0].0 < all[CANDIDATES].0);
        let found = candidates(&costs, &partitioner, (&cases, f64::INFINITY), &deadline);
        let found: Vec<usize> = found.into_iter().map(|(index, _)| index).collect();
        assert_eq!(found, all[..CANDIDATES].iter().map(|(_, index)| *index).collect::<Vec<_>>());
        let partitions =
            found.iter().filter_map(|index| balance(&costs, &partitioner, &cases[*index], all[CANDIDATES - 1].0));
        assert_eq!(partitions.count(), CANDIDATES);
    }
}
