//! Exhaustive search: every placement of a small case, by simulated time. The reference for the other planners.

use crate::{
    Claim, PlanError, Planner, Problem, Solution,
    case::{Case, Division, Scored, disciplines, faster, judge},
    deadline::Deadline,
    every::helped,
    figures::Figures,
    ilp::in_pool,
    reason,
};
use rayon::prelude::*;
use spipe_plan::{OutcomeStatus, System};

/// How many placements are simulated between looks at the stop signal.
const BATCH: usize = 256;

/// The planner.
pub(crate) struct Exhaustive;

impl Planner for Exhaustive {
    fn name(&self) -> &'static str {
        "exhaustive"
    }

    fn claim(&self) -> Claim {
        Claim::OptimalSimulated
    }

    fn plan(&self, problem: &Problem<'_>) -> Result<Solution, PlanError> {
        let deadline = Deadline::new(problem);
        let figures = Figures::new(problem.context, &problem.options);
        let (placements, limit) = (count(problem, &figures), problem.options.exhaustive_limit);
        if placements > limit {
            return Err(PlanError::TooLarge { placements, limit });
        }
        reason::obvious(&figures)?;
        let mut cases = crate::ilp::cases(problem, &figures, &all_sequences(&figures));
        if problem.options.host_help {
            cases = cases.into_iter().flat_map(|case| decided(&figures, case.with_help(&figures, None))).collect();
        }
        if cases.is_empty() {
            return Err(PlanError::NoSystem);
        }
        in_pool(problem, || search(problem, &figures, &cases, &deadline))
    }
}

fn search(
    problem: &Problem<'_>,
    figures: &Figures<'_>,
    cases: &[Case],
    deadline: &Deadline<'_>,
) -> Result<Solution, PlanError> {
    let mut best: Option<Scored> = None;
    let mut examined = 0;
    for case in cases {
        for batch in divisions(figures, case).chunks(BATCH) {
            if deadline.stopped() || (best.is_some() && deadline.over()) {
                return match best {
                    Some(best) => Ok(solution(best, figures, cases, examined, OutcomeStatus::Stopped)),
                    None => Err(PlanError::StoppedWithoutPlan { examined }),
                };
            }
            let every = |division: &Division| {
                let placement = case.placement(figures, division);
                let all = helped((&figures.context, &problem.options.pins), &placement);
                (all.len(), all.into_iter().map(|placement| judge(problem, placement)).fold(None, faster))
            };
            let scores: Vec<(usize, Option<Scored>)> = batch.par_iter().map(every).collect();
            examined += scores.iter().map(|(count, _)| count).sum::<usize>();
            best = scores.into_iter().map(|(_, scored)| scored).fold(best, faster);
        }
    }
    match best {
        Some(best) => Ok(solution(best, figures, cases, examined, OutcomeStatus::Optimal)),
        None if examined > 0 => Err(PlanError::NothingRuns { examined }),
        None => Err(reason::closest(figures, cases)),
    }
}

fn solution(
    (simulated, placement): Scored,
    figures: &Figures<'_>,
    cases: &[Case],
    examined: usize,
    status: OutcomeStatus,
) -> Solution {
    let systems: Vec<System> = cases.iter().map(|case| case.discipline.system).collect();
    let proven = match status {
        OutcomeStatus::Optimal => simulated,
        _ => crate::ilp::search::to_time(figures, crate::relaxation::least_of_stages(figures, &systems)).min(simulated),
    };
    let gap = Solution::gap_of(simulated, proven);
    Solution {
        placement,
        status,
        bound: proven,
        simulated,
        gap,
        examined,
        solves: 0,
        cases: cases.len(),
        considered: Vec::new(),
    }
}

/// `case` with every help for every stage.
fn decided(figures: &Figures<'_>, case: Case) -> Vec<Case> {
    match case.undecided() {
        None => vec![case],
        Some(stage) => case.decided(figures, stage).into_iter().flat_map(|case| decided(figures, case)).collect(),
    }
}

/// How many placements there are, whether they fit or not: per number of stages p and discipline, the device
/// sequences, each with every help that its stages may have, which number p! times the ways to choose p devices (the elementary
/// symmetric polynomial of degree p of how many helps each device has), times the ways to cut L layers into p stages of n_i layers with n_i + 1 recompute choices each, where one
/// stage more multiplies the ways that end at a layer by the choices behind it.
fn count(problem: &Problem<'_>, figures: &Figures<'_>) -> u64 {
    let devices = figures.devices.len();
    let has_cpu = figures.devices.iter().any(|device| device.is_cpu);
    let disciplines = disciplines(&problem.systems, has_cpu).len() as u64;
    let mut ways = vec![0u64; figures.layers + 1];
    ways[0] = 1;
    let mut chosen = vec![1u64];
    for device in 0..devices {
        let helps = if problem.options.host_help { figures.helps(device).len() as u64 } else { 1 };
        let with = |count: usize| count.checked_sub(1).map_or(0, |fewer| chosen[fewer].saturating_mul(helps));
        let next = (0..=chosen.len()).map(|count| chosen.get(count).unwrap_or(&0).saturating_add(with(count)));
        chosen = next.collect();
    }
    let (mut total, mut orders) = (0u64, 1u64);
    for (stages, chosen) in chosen.iter().enumerate().take(figures.layers + 1).skip(1) {
        let mut next = vec![0u64; figures.layers + 1];
        for (from, before) in ways.iter().enumerate() {
            for (to, after) in next.iter_mut().enumerate().skip(from + 1) {
                let choices = if figures.training { (to - from + 1) as u64 } else { 1 };
                *after = after.saturating_add(before.saturating_mul(choices));
            }
        }
        ways = next;
        orders = orders.saturating_mul(stages as u64);
        let here = orders.saturating_mul(*chosen).saturating_mul(ways[figures.layers]).saturating_mul(disciplines);
        total = total.saturating_add(here);
    }
    total
}

/// Every sequence of different devices, neighbours connected.
fn all_sequences(figures: &Figures<'_>) -> Vec<Vec<usize>> {
    let mut list: Vec<Vec<usize>> = vec![Vec::new()];
    let mut next = 0;
    while next < list.len() {
        let sequence = list[next].clone();
        next += 1;
        if sequence.len() == figures.layers {
            continue;
        }
        for device in 0..figures.devices.len() {
            let joined = sequence
                .last()
                .is_none_or(|last| figures.hop(*last, device).is_some() && figures.hop(device, *last).is_some());
            if joined && !sequence.contains(&device) {
                list.push([sequence.as_slice(), &[device]].concat());
            }
        }
    }
    list.remove(0);
    list
}

/// Every division of `case` that fits its devices, in lexicographic order of ends and recompute.
fn divisions(figures: &Figures<'_>, case: &Case) -> Vec<Division> {
    let stages = case.stages();
    let mut list = vec![Division { ends: Vec::new(), recomputed: Vec::new() }];
    for stage in 0..stages {
        let device = case.device(figures, stage);
        let mut longer = Vec::new();
        for division in &list {
            let from = division.ends.last().copied().unwrap_or(0);
            let farthest = figures.layers - (stages - 1 - stage);
            let nearest = if stage + 1 == stages { figures.layers } else { from + 1 };
            for to in nearest..=farthest {
                let recomputes = device.recomputes(figures.training, from, to);
                for recomputed in recomputes.into_iter().flat_map(|(least, most)| least..=most) {
                    let need = device.need(case.seats[stage], (from, to), recomputed);
                    // Host memory is shared: the checker counts it.
                    if device.able(from, to) && need <= device.usable {
                        let mut division = division.clone();
                        division.ends.push(to);
                        division.recomputed.push(recomputed);
                        longer.push(division);
                    }
                }
            }
        }
        list = longer;
    }
    list
}
