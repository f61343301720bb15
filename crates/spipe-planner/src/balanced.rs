//! The balanced dynamic program: for each device order the division whose busiest stage is least busy.
//!
//! `best(i, e) = min over a < e of max(best(i−1, a), F + R + B of layers a..e on device i)`, with the least recompute R
//! that fits in memory: O(L² p) per order (the linear partition problem; PipeDream's planner, Narayanan et al., SOSP 2019,
//! section 3.1, without replication). The orders whose busiest stage is least busy are simulated.

use crate::{
    Claim, PlanError, Planner, Problem, Solution,
    case::{Case, Division, Scored, faster, judge},
    deadline::Deadline,
    figures::Figures,
    ilp::{cases, in_pool, search::to_time},
    partition::{Partitioner, some},
    reason,
    relaxation::least_of_stages,
    sequence,
};
use rayon::prelude::*;
use spipe_plan::OutcomeStatus;

/// How many of the best-balanced cases are simulated.
const CANDIDATES: usize = 32;

/// The planner.
pub(crate) struct Balanced;

impl Planner for Balanced {
    fn name(&self) -> &'static str {
        "dp"
    }

    fn claim(&self) -> Claim {
        Claim::Heuristic
    }

    fn plan(&self, problem: &Problem<'_>) -> Result<Solution, PlanError> {
        let deadline = Deadline::new(problem);
        let figures = Figures::new(problem.context, &problem.options);
        if deadline.stopped() {
            return Err(PlanError::StoppedWithoutPlan { examined: 0 });
        }
        reason::obvious(&figures)?;
        let cases = all_cases(problem, &figures, &deadline);
        if cases.is_empty() {
            return Err(PlanError::NoSystem);
        }
        in_pool(problem, || solve(problem, &figures, &cases, &deadline))
    }
}

fn all_cases(problem: &Problem<'_>, figures: &Figures<'_>, deadline: &Deadline<'_>) -> Vec<Case> {
    cases(problem, figures, &sequence::sequences(figures, problem.options.sequence_limit, Some(deadline)).list)
}

/// The fastest of the best-balanced placements.
pub(crate) fn best(problem: &Problem<'_>, figures: &Figures<'_>, deadline: &Deadline<'_>) -> Option<Scored> {
    let cases = all_cases(problem, figures, deadline);
    let candidates = candidates(figures, &Partitioner::new(figures, &cases), &cases, deadline);
    fastest((problem, figures), &cases, &candidates, deadline)
}

fn fastest(
    (problem, figures): (&Problem<'_>, &Figures<'_>),
    cases: &[Case],
    candidates: &[(usize, Division)],
    deadline: &Deadline<'_>,
) -> Option<Scored> {
    let score = |(case, division): &(usize, Division)| {
        if deadline.stopped() { None } else { judge(problem, cases[*case].placement(figures, division)) }
    };
    let scores: Vec<Option<Scored>> = candidates.par_iter().map(score).collect();
    scores.into_iter().fold(None, faster)
}

fn solve(
    problem: &Problem<'_>,
    figures: &Figures<'_>,
    cases: &[Case],
    deadline: &Deadline<'_>,
) -> Result<Solution, PlanError> {
    let candidates = candidates(figures, &Partitioner::new(figures, cases), cases, deadline);
    if candidates.is_empty() {
        let all = (0..cases.len()).all(|case| deadline.allows(case));
        let error = || reason::closest(figures, cases);
        return Err(if all { error() } else { PlanError::StoppedWithoutPlan { examined: 0 } });
    }
    let examined = candidates.len();
    let Some((simulated, placement)) = fastest((problem, figures), cases, &candidates, deadline) else {
        return Err(if deadline.stopped() {
            PlanError::StoppedWithoutPlan { examined }
        } else {
            PlanError::NothingRuns { examined }
        });
    };
    let bound = to_time(figures, least_of_stages(figures, &problem.systems)).min(simulated);
    Ok(Solution {
        placement,
        status: if deadline.over() { OutcomeStatus::Stopped } else { OutcomeStatus::Feasible },
        bound,
        simulated,
        gap: Solution::gap_of(simulated, bound),
        examined,
        solves: 0,
        cases: cases.len(),
        considered: Vec::new(),
    })
}

/// The best-balanced divisions, the best first, each with the index of its case.
pub(crate) fn candidates(
    figures: &Figures<'_>,
    partitioner: &Partitioner<'_, '_>,
    cases: &[Case],
    deadline: &Deadline<'_>,
) -> Vec<(usize, Division)> {
    let divide = |(index, case): (usize, &Case)| {
        let tried = case.undecided().is_none() && deadline.allows(index);
        let balanced = if tried { balance(figures, partitioner, case) } else { None };
        balanced.map(|(busiest, division)| (busiest, index, division))
    };
    let mut divisions: Vec<(f64, usize, Division)> = cases.par_iter().enumerate().filter_map(divide).collect();
    divisions.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    divisions.truncate(CANDIDATES);
    divisions.into_iter().map(|(_, index, division)| (index, division)).collect()
}

/// The division of `case` whose busiest stage is least busy per microbatch, with that time in ms.
fn balance(figures: &Figures<'_>, partitioner: &Partitioner<'_, '_>, case: &Case) -> Option<(f64, Division)> {
    let (layers, stages) = (figures.layers, case.stages());
    let mut best = vec![f64::INFINITY; layers + 1];
    best[0] = 0.0;
    let mut from_of = vec![vec![0; layers + 1]; stages];
    for (stage, starts) in from_of.iter_mut().enumerate() {
        let mut next = vec![f64::INFINITY; layers + 1];
        let farthest = layers.checked_sub(stages - 1 - stage)?;
        let (_, table) = *partitioner.choices(case.seats[stage])?.first()?;
        for from in (stage..farthest).filter(|from| best[*from].is_finite()) {
            for to in from + 1..=farthest {
                let Some(recomputed) = some(table[from * (layers + 1) + to]) else { continue };
                let busy = case.device(figures, stage).stage_times((from, to), recomputed, case.help(stage)).busy();
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
