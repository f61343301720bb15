//! The search tree over subproblems.

use crate::formulation::assignment::compute_bound::floor;
use crate::problem::bound::Bound;
use crate::problem::tolerances::{ROUNDING, clock_error_of_stages};
use crate::{
    bounds::{
        partition_dp::{LabelLimits, partitioner::Partitioner},
        to_time,
    },
    candidates::{balanced, greedy},
    costs::{CostSums, HostOffload},
    feasibility::shortage,
    formulation::assignment::least_of_stages,
    hosts::shared_out,
    problem::{Deadline, PlanError, Problem, Solution, status},
    score::{
        event_graph::EventGraph,
        judge::{Scored, busiest, faster, judge},
    },
    space::{
        device_orders::Coverage,
        enumerate::helped,
        subproblem::{DecidedPartition, Subproblem},
    },
};

use rayon::prelude::*;
use spipe_plan::{Placement, check};

/// Limit on partitions that are simulated at a time.
const SEEDS: usize = 32;

/// Relative gap at which the common bisection over the iteration time ends: less than half of that at
/// which searches end.
const COARSE: f64 = 0.002;

/// Limit on how often the iteration is doubled for which partitions are looked for while none has run.
const MOST_WIDER: usize = 10;

/// Limit on host variants of a partition up to which all are simulated: all numbers of slots with both
/// orders of steps.
const MOST_HELPS: usize = 8;

/// The index of a subproblem, with a partition in which its stages are decided.
type FittingPartition = (usize, DecidedPartition);

/// State of a subproblem.
#[derive(Clone, Debug)]
struct SubproblemState {
    /// Lower bound of every partition.
    bound: Bound,
    /// Whether it is unknown if any partition fits.
    open: bool,
}

/// Results of solving a subproblem.
#[derive(Default)]
struct TreeResult {
    best: Option<Scored>,
    examined: usize,
}

impl TreeResult {
    fn merge(&mut self, other: Self) {
        self.best = faster(self.best.take(), other.best);
        self.examined += other.examined;
    }
}

/// Returns the placement of a partition. It may not fit, since partitions count the least bytes that stages
/// need in the memories of hosts. If it does not fit, retries with the most recompute, which offloads
/// less, and with host data on other nodes.
fn relieved(costs: &CostSums<'_>, found: &DecidedPartition) -> Placement {
    let fits = |placement: &Placement| check(&costs.context, placement).is_ok();
    let plain = found.placement(costs);
    if fits(&plain) {
        return plain;
    }
    let (case, mut again) = (&found.case, found.partition.clone());
    for stage in (0..case.stages()).filter(|stage| case.host_offload(*stage).activations) {
        let (from, to) = found.partition.layers(stage);
        let recomputes = case.device(costs, stage).recomputes(costs.training, from, to);
        again.recomputed[stage] = recomputes.map_or(again.recomputed[stage], |(_, most)| most);
    }
    let all = [case.placement(costs, &again), plain.clone()];
    let shared = all.iter().filter_map(|placement| shared_out(&costs.context, placement));
    all.iter().cloned().chain(shared).find(fits).unwrap_or(plain)
}

/// State of branch and bound.
pub(crate) struct Tree<'s, 'a> {
    problem: &'s Problem<'a>,
    costs: &'s CostSums<'a>,
    cases: Vec<Subproblem>,
    deadline: &'s Deadline<'s>,
    partitioner: Partitioner<'s, 'a>,
    /// Lower bound of every placement.
    floor: Bound,
    coverage: Coverage,
    /// Lower bound of the subproblems that were left out.
    left_out: Bound,
    known: Vec<SubproblemState>,
    found: TreeResult,
    /// Label limits of the partition bounds.
    grain: LabelLimits,
}

impl<'s, 'a> Tree<'s, 'a> {
    pub fn new(
        problem: &'s Problem<'a>,
        costs: &'s CostSums<'a>,
        cases: Vec<Subproblem>,
        deadline: &'s Deadline<'s>,
    ) -> Self {
        let floor =
            if deadline.over() { Bound::AtLeast(floor(costs)) } else { least_of_stages(costs, &problem.systems) };
        let known = vec![SubproblemState { bound: floor, open: false }; cases.len()];
        let partitioner = Partitioner::new(costs, &cases);
        Self {
            problem,
            costs,
            cases,
            deadline,
            partitioner,
            floor,
            coverage: Coverage::Exact,
            left_out: Bound::Infeasible,
            known,
            found: TreeResult::default(),
            grain: LabelLimits::ALL[0],
        }
    }

    /// Simulates the most promising partitions.
    pub fn begin(&mut self) -> Result<(), PlanError> {
        if self.deadline.stopped() {
            return Err(PlanError::StoppedWithoutPlan { examined: 0 });
        }
        let fitting = self.fitting();
        self.seed(fitting);
        Ok(())
    }

    /// Returns the iteration, in ms, that a plan must beat: the incumbent's less the gap, and less
    /// the error of rounding to nanoseconds.
    pub fn least_of_interest(&self) -> f64 {
        let found = self.found.best.as_ref().map(|(time, _)| *time);
        found.into_iter().chain(self.problem.options.incumbent).min().map_or(f64::INFINITY, |time| {
            let time = time.to_ms();
            time * (1.0 - self.problem.options.gap.max(0.0)) - clock_error_of_stages(time)
        })
    }

    /// Continues from another search of the same problem, whose limit bounds everything left out
    /// here.
    pub fn with(mut self, other: Self) -> Self {
        self.left_out = Bound::of_limit(other.least_of_interest());
        self.found = other.found;
        self
    }

    /// Runs the search to its end; `coverage` says how its subproblems represent all device orders.
    pub fn run(mut self, coverage: Coverage) -> Result<Solution, PlanError> {
        self.coverage = coverage;
        if self.deadline.stopped() {
            return Err(PlanError::StoppedWithoutPlan { examined: 0 });
        }
        if self.cases.is_empty() && self.found.best.is_none() {
            return Err(PlanError::NoSystem);
        }
        let limit = self.least_of_interest();
        let fitting = if limit.is_finite() {
            let all: Vec<usize> = (0..self.cases.len()).collect();
            self.possible(&all, limit)
        } else {
            self.fitting()
        };
        if fitting.is_empty() && self.found.best.is_none() && self.known.iter().all(|known| !known.open) {
            // With an incumbent, the test was for partitions that beat it, not for any that fit.
            let over = self.deadline.over();
            return if limit.is_finite() {
                self.conclude(!over)
            } else {
                Err(shortage::closest(self.costs, &self.cases))
            };
        }
        let cases: Vec<usize> = fitting.iter().map(|(case, _)| *case).collect();
        self.seed(fitting);
        for grain in LabelLimits::ALL {
            self.grain = grain;
            self.sound(&cases);
        }
        let over = self.deadline.over();
        self.conclude(!over)
    }

    /// Raises the bounds of `cases` as long as the partitions simulated on the way improve the
    /// incumbent.
    fn sound(&mut self, cases: &[usize]) {
        let limit = self.least_of_interest();
        let mut open: Vec<usize> = cases.iter().copied().filter(|case| self.known[*case].bound < limit).collect();
        loop {
            let limit = self.least_of_interest();
            let possible = self.possible(&open, limit);
            open = possible.iter().map(|(case, _)| *case).collect();
            self.simulate(possible);
            if limit.is_infinite() || self.deadline.over() || open.is_empty() {
                return;
            }
            if self.least_of_interest() >= limit {
                let found = self.found.examined;
                self.bisect(open.clone(), limit);
                if found == self.found.examined || self.least_of_interest() >= limit {
                    return;
                }
            }
        }
    }

    /// Looks for partitions of longer iterations than `high` ms, as long as no partition has run. Those that
    /// are found first need not fit in the memories of the hosts.
    fn widen(&mut self, cases: &[usize], mut high: f64) {
        for _ in 0..MOST_WIDER {
            if self.least_of_interest().is_finite() || !high.is_finite() || self.deadline.over() {
                return;
            }
            high *= 2.0;
            let possible = self.possible(cases, high);
            self.simulate(possible);
        }
    }

    /// Bisects the least iteration for which some of `active` are possible, as they are for `high`
    /// ms, and simulates the partitions found on the way.
    fn bisect(&mut self, mut active: Vec<usize>, mut high: f64) {
        let least = |known: Bound, case: &usize| known.min(self.known[*case].bound);
        let mut low = active.iter().fold(Bound::Infeasible, least).max(self.floor).ms_or(high);
        while high > low * (1.0 + COARSE) && !self.deadline.over() {
            let middle = if low > 0.0 { (low * high).sqrt() } else { high / 2.0 };
            let possible = self.possible(&active, middle);
            if possible.is_empty() {
                low = middle;
            } else {
                high = middle;
                active = possible.iter().map(|(case, _)| *case).collect();
                self.simulate(possible);
            }
        }
    }

    /// Simulates the partitions of `found` with the shortest periods.
    fn simulate(&mut self, found: Vec<FittingPartition>) {
        let mut promising: Vec<(f64, DecidedPartition)> = found
            .into_par_iter()
            .enumerate()
            .filter(|(index, _)| self.goes_on(*index))
            .map(|(_, (_, found))| (self.period(&found), found))
            .collect();
        promising.sort_by(|a, b| a.0.total_cmp(&b.0));
        promising.truncate(SEEDS);
        let judged: Vec<TreeResult> = promising
            .par_iter()
            .enumerate()
            .filter(|(index, _)| self.goes_on(*index))
            .map(|(_, (_, found))| self.judge(found))
            .collect();
        judged.into_iter().for_each(|judged| self.found.merge(judged));
    }

    /// Simulates a partition with all its host variants, if these are few.
    fn judge(&self, found: &DecidedPartition) -> TreeResult {
        let all = helped((&self.costs.context, &self.problem.options.pins), &relieved(self.costs, found));
        let tried = if all.len() <= MOST_HELPS { all.len() } else { 1 };
        let best = all.into_iter().take(tried).map(|placement| judge(self.problem, placement)).fold(None, faster);
        TreeResult { best, examined: tried }
    }

    /// Returns whether to examine the `index`th item: after the deadline only some, and only
    /// without an incumbent.
    fn goes_on(&self, index: usize) -> bool {
        let found = self.found.best.is_some() || self.problem.options.incumbent.is_some();
        if found { !self.deadline.over() } else { self.deadline.allows(index) }
    }

    /// Returns the subproblems with a partition that fits in memory, and such a partition; the
    /// others are infeasible.
    fn fitting(&mut self) -> Vec<FittingPartition> {
        let list: Vec<&Subproblem> = self.cases.iter().collect();
        let fits = self.partitioner.divide(&list, (f64::INFINITY, self.grain), Some(self.deadline));
        let mut fitting = Vec::new();
        for (case, (known, fits)) in self.known.iter_mut().zip(fits).enumerate() {
            match fits {
                Some(Some(found)) => fitting.push((case, found)),
                Some(None) => known.bound = Bound::Infeasible,
                None => known.open = true,
            }
        }
        fitting
    }

    /// Finds the subproblems with the lowest bounds, and simulates their partitions and the
    /// heuristics' plans.
    fn seed(&mut self, partitions: Vec<FittingPartition>) {
        for placement in greedy::placements(self.costs, &self.problem.systems) {
            if !self.goes_on(0) {
                return;
            }
            if busiest(self.costs, &placement) >= self.least_of_interest() {
                continue;
            }
            let best = judge(self.problem, placement);
            self.found.merge(TreeResult { best, examined: 1 });
        }
        let period = |(index, (_, found)): (usize, &FittingPartition)| {
            if self.goes_on(index) { self.period(found) } else { f64::INFINITY }
        };
        let high = partitions.par_iter().enumerate().map(period).reduce(|| self.least_of_interest(), f64::min);
        let active: Vec<usize> = partitions.iter().map(|(case, _)| *case).collect();
        self.simulate(partitions);
        self.bisect(active.clone(), high);
        self.widen(&active, high);
        let plain: Vec<Subproblem> =
            self.cases.iter().map(|case| case.clone().with_host_offload(self.costs, Some(HostOffload::NONE))).collect();
        let cases = (plain.as_slice(), self.least_of_interest());
        let balanced = balanced::candidates(self.costs, &self.partitioner, cases, self.deadline);
        let decided = |(case, partition): (usize, _)| (case, DecidedPartition { partition, case: plain[case].clone() });
        self.simulate(balanced.into_iter().map(decided).collect());
    }

    /// Returns the subproblems of `cases` with a partition that meets the bounds for `limit`. The
    /// bound of the others is raised to `limit`, unless the deadline came first.
    fn possible(&mut self, cases: &[usize], limit: f64) -> Vec<FittingPartition> {
        let list: Vec<&Subproblem> = cases.iter().map(|case| &self.cases[*case]).collect();
        let tested = self.partitioner.divide(&list, (limit, self.grain), Some(self.deadline));
        let mut possible = Vec::new();
        for (case, divided) in cases.iter().zip(tested) {
            match divided {
                Some(Some(found)) => possible.push((*case, found)),
                Some(None) => self.known[*case].bound = self.known[*case].bound.max(Bound::of_limit(limit)),
                None => {}
            }
        }
        possible
    }

    fn period(&self, DecidedPartition { partition, case }: &DecidedPartition) -> f64 {
        EventGraph::new(self.costs, case).period(&case.times(self.costs, partition))
    }

    /// Returns a lower bound of every placement.
    fn least(&self) -> Bound {
        match self.coverage {
            Coverage::Exact | Coverage::UpToLinks => {
                self.known.iter().map(|known| known.bound).fold(self.left_out, Bound::min)
            }
            Coverage::Natural => self.floor,
        }
    }

    /// Returns the solution; `ended` says whether the search ran to its end.
    fn conclude(self, ended: bool) -> Result<Solution, PlanError> {
        let (target, least, examined) = (self.least_of_interest(), self.least(), self.found.examined);
        let bound = to_time(self.costs, least);
        let Some(best) = self.found.best else {
            if self.problem.options.incumbent.is_some() {
                return Err(PlanError::NothingBetter { bound, examined, stopped: !ended, considered: Vec::new() });
            }
            // Placements that were not examined may run, unless the search has come to its end.
            let all = ended && self.coverage != Coverage::Natural && self.known.iter().all(|known| !known.open);
            return Err(if all {
                PlanError::NothingRuns { examined }
            } else {
                PlanError::StoppedWithoutPlan { examined }
            });
        };
        let status = status(least >= target / (1.0 + ROUNDING), !ended);
        Ok(Solution { examined, cases: self.cases.len(), ..Solution::new(best, bound, status) })
    }
}
