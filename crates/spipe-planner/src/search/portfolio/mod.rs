//! Portfolio over systems: each is bounded, tried in ascending order of its bound, and the best
//! placements are improved.
//!
//! ```text
//! greedy stages, balanced stages if greedy is near the compute bound ─► incumbent
//! systems ─► lower bound of each ─┬─ cannot beat the incumbent: skipped
//!                                 ├─ generated candidates, programs of Mobius ──────┐
//!                                 └─ one stage per device (planner), then several ──┴─► best few
//! best few ─► local search ─► enumeration of systems with few placements ─► best plan
//! ```

mod generate;
mod improve;
mod several;

use crate::problem::{Considered, Deadline, PlanError, Planner, Problem, SYSTEMS, Solution, bound::Bound};
use crate::problem::{budget, in_pool, status, tolerances::clock_error};
use crate::{
    bounds::to_time,
    candidates::candidates,
    costs::CostSums,
    feasibility::{closest, shortage},
    formulation::assignment::compute_bound::floor,
    score::judge::{Scored, faster, judge},
    search::fits::{self, Decision},
    search::heuristics,
    space::distinct,
};
use rayon::prelude::*;
use spipe_base::SimTime;
use spipe_cost::Mode;
use spipe_plan::{OutcomeStatus, Placement, System};
use std::sync::OnceLock;

/// Factor above a lower bound from which a plan counts as far from it.
const FAR: f64 = 3.0;

/// Factor above the incumbent up to which placements are improved to the end.
const PROMISING: f64 = 1.02;

/// Placements of the integer program with several stages per device are improved up to this factor
/// above the best plan: the program knows no order of the microbatches, and local search gains a
/// third on some of them.
const NEARBY: f64 = 1.5;

/// Returns the best plan of all systems that `problem` allows. Those of [`SYSTEMS`] are planned by
/// `planner`, the others generated. None of the heuristics' plans is better.
///
/// # Errors
/// Returns why no system has a plan, with the shortage of the closest candidate.
pub fn plan_all(problem: &Problem<'_>, planner: &Planner) -> Result<Solution, PlanError> {
    let (planned, other): (Vec<System>, Vec<System>) =
        problem.systems.iter().partition(|system| SYSTEMS.contains(system));
    let of_start = problem.options.start.as_ref().map(|start| start.system);
    let of_start = of_start.filter(|start| SYSTEMS.contains(start) && planned.contains(start));
    let generated: Vec<System> = other.iter().copied().chain(of_start).collect();
    let mut search = Portfolio::new(problem, &generated);
    shortage::enough_in_total(&problem.context)?;
    in_pool(problem, || {
        let programs = problem.options.has_programs();
        if programs {
            search.decide(&planned)?;
        }
        let balanced = search.begin();
        search.generate();
        if programs {
            search.try_programs();
            if !balanced {
                search.balance();
            }
        } else if search.best().is_none() {
            // A search with a time limit is followed by a longer one.
            if !problem.options.is_limited() {
                search.decide(&planned)?;
            }
            search.deadline.mark_truncated();
        }
        search.fall_back();
        if !programs {
            search.count_shared();
        }
        search.bound_stages(&planned);
        Ok(())
    })?;
    if !planned.is_empty() {
        let mut options = problem.options.clone();
        // A plan with one stage per device that is slower may become faster with several.
        let factor = if search.costs.training { NEARBY } else { 1.0 };
        options.incumbent = search.incumbent().map(|best| SimTime::ns((factor * best.as_ns() as f64) as u64));
        // The remaining time is for several stages per device and for local search, which gain
        // little in inference.
        let more = search.costs.training || !other.is_empty();
        options.time_limit = budget::share(search.deadline.left(), if more { budget::BRANCH_AND_BOUND } else { 100 });
        let planned_alone = Problem { systems: planned.clone(), options, ..*problem };
        let known =
            search.best().is_some() || (problem.options.effort.is_some() && problem.options.incumbent.is_some());
        let late = known && (search.deadline.over() || problem.options.effort.is_some());
        let nothing = PlanError::NothingBetter { bound: SimTime::ZERO, examined: 0, stopped: true };
        search.join(&planned, if late { Err(nothing) } else { planner.plan(&planned_alone) })?;
    }
    in_pool(problem, || {
        search.cut();
        search.improve();
        search.exhaust();
        Ok(())
    })?;
    search.conclude()
}

/// Returns the best generated placement of the problem's systems.
///
/// # Errors
/// Returns why there is none.
pub fn generated(problem: &Problem<'_>) -> Result<Solution, PlanError> {
    let mut search = Portfolio::new(problem, &problem.systems);
    in_pool(problem, || {
        search.generate();
        search.improve();
        search.exhaust();
        Ok(())
    })?;
    search.conclude()
}

/// State of one system.
struct SystemState {
    system: System,
    /// Generated placements, once they are made.
    candidates: OnceLock<Vec<Placement>>,
    /// Lower bound of its placements.
    bound: Bound,
    best: Option<Scored>,
    /// Candidates with other numbers of stages that are nearly as fast.
    others: Vec<Scored>,
    examined: usize,
    skipped: bool,
}

impl SystemState {
    fn new(system: System) -> Self {
        Self {
            system,
            candidates: OnceLock::new(),
            bound: Bound::NONE,
            best: None,
            others: Vec::new(),
            examined: 0,
            skipped: false,
        }
    }

    /// Takes `found`, if it is faster than the best placement.
    fn take(&mut self, found: Option<Scored>) {
        self.best = faster(self.best.take(), found);
        self.system = self.best.as_ref().map_or(self.system, |(_, placement)| placement.system);
    }

    fn candidates(&self, problem: &Problem<'_>) -> &Vec<Placement> {
        self.candidates.get_or_init(|| allowed(problem, self.system))
    }
}

/// Returns the candidates of `system` that satisfy the pins.
fn allowed(problem: &Problem<'_>, system: System) -> Vec<Placement> {
    let pins = &problem.options.pins;
    let held = |placement: Placement| pins.hold(&problem.context, &placement);
    let mut list: Vec<Placement> = candidates(&problem.context, system).into_iter().map(held).collect();
    list.extend(problem.options.start.iter().filter(|start| start.system == system).cloned());
    list.retain(|placement| pins.allow(&problem.context, placement));
    // Pins make many candidates equal, and only a few are simulated.
    if pins.is_empty() { list } else { distinct(list) }
}

struct Portfolio<'s, 'a> {
    problem: &'s Problem<'a>,
    costs: CostSums<'a>,
    deadline: Deadline<'s>,
    systems: Vec<SystemState>,
    /// Plans of the heuristics.
    heuristic_plans: Vec<Scored>,
    /// A placement that fits.
    fallback: Option<Placement>,
    /// Plans with several stages per device. As incumbents they would keep the planner from finding
    /// plans that local search improves beyond them.
    multi_stage_plans: Vec<Scored>,
    /// Lower bounds of the planned systems, with any number of stages per device.
    stage_bounds: Vec<(System, Bound)>,
    /// Index of their state in `systems`.
    planned: Option<usize>,
    /// Error of the planner.
    refused: Option<PlanError>,
    /// Iteration time of the fastest placement of Mobius' programs.
    programs: Option<SimTime>,
    cases: usize,
}

impl<'s, 'a> Portfolio<'s, 'a> {
    fn new(problem: &'s Problem<'a>, systems: &[System]) -> Self {
        let mode = problem.context.workload().mode;
        let suits = |system: &&System| mode == Mode::Train || system.infers();
        Self {
            problem,
            costs: CostSums::new(problem.context, &problem.options),
            systems: systems.iter().filter(suits).map(|system| SystemState::new(*system)).collect(),
            deadline: Deadline::new(problem),
            heuristic_plans: Vec::new(),
            fallback: None,
            multi_stage_plans: Vec::new(),
            stage_bounds: Vec::new(),
            planned: None,
            refused: None,
            programs: None,
            cases: 0,
        }
    }

    /// Keeps a placement that fits, if one is found at once; returns the shortage, if none exists.
    fn decide(&mut self, planned: &[System]) -> Result<(), PlanError> {
        let (problem, options) = (self.problem, &self.problem.options);
        let known = options.incumbent.is_some() || options.start.is_some();
        if known || self.deadline.stopped() || problem.systems.is_empty() {
            return Ok(());
        }
        let systems = &self.systems;
        let candidates = |system: System| {
            let known = systems.iter().find(|known| known.system == system);
            known.map_or_else(Vec::new, |known| known.candidates(problem).clone())
        };
        match fits::decide(problem, &candidates, &self.deadline) {
            Decision::Fits(placement) => self.fallback = Some(placement),
            Decision::Never => {
                let (systems, options) = (planned.to_vec(), options.clone());
                let of_stages = Problem { systems, options, ..*problem };
                let refused = (!planned.is_empty()).then(|| fits::shortage_of_stages(&of_stages, &self.costs));
                return Err(self.refusal(refused, 0));
            }
            Decision::Unfound | Decision::Open(_) => {}
        }
        Ok(())
    }

    /// Starts with the plans of heuristics. The balanced one takes longer, so it is made only if
    /// the greedy one is near the compute bound; otherwise other systems are faster. Returns
    /// whether it was made.
    fn begin(&mut self) -> bool {
        self.heuristic_plans = heuristics::filled(self.problem, &self.costs);
        let balanced = self.problem.options.has_programs() && self.best_ms() < FAR * floor(&self.costs);
        if balanced {
            self.balance();
        }
        balanced
    }

    /// Adds the best-balanced plan.
    fn balance(&mut self) {
        let balanced = heuristics::balanced(self.problem, &self.costs, (self.best_ms(), &self.deadline));
        self.heuristic_plans.extend(balanced);
    }

    /// Adds the placement that fits, if nothing else was found.
    fn fall_back(&mut self) {
        let fallback = self.fallback.take().filter(|_| self.best().is_none());
        self.heuristic_plans.extend(fallback.and_then(|fallback| judge(self.problem, fallback)));
    }

    /// Returns the fastest plan of the heuristics for one of `systems`.
    fn best_heuristic(&self, systems: &[System]) -> Option<Scored> {
        let heuristic = self.heuristic_plans.iter().filter(|(_, placement)| systems.contains(&placement.system));
        heuristic.min_by_key(|(time, _)| *time).cloned()
    }

    /// Returns the fastest plan, the first of equally fast ones.
    fn best(&self) -> Option<&Scored> {
        let known = self.systems.iter().filter_map(|known| known.best.as_ref());
        self.heuristic_plans.iter().chain(known).min_by_key(|(time, _)| *time)
    }

    /// Returns the iteration of the fastest plan, in ms; infinite if there is none.
    fn best_ms(&self) -> f64 {
        self.best().map_or(f64::INFINITY, |(time, _)| time.to_ms())
    }

    /// Returns the iteration of the fastest plan, or of the known one if that is faster.
    fn incumbent(&self) -> Option<SimTime> {
        self.best().map(|(time, _)| *time).into_iter().chain(self.problem.options.incumbent).min()
    }

    /// Returns the iteration, in ms, that a plan must beat.
    fn limit(&self) -> f64 {
        // Less the error of rounding bounds to the simulator's clock.
        let less = |time: f64| time * (1.0 - self.problem.options.gap.max(0.0)) - clock_error(time);
        self.incumbent().map_or(f64::INFINITY, |time| less(time.to_ms()))
    }

    /// Adds the result of the planner.
    fn join(&mut self, planned: &[System], found: Result<Solution, PlanError>) -> Result<(), PlanError> {
        let heuristic = self.best_heuristic(planned);
        let mut known = SystemState { bound: Bound::Infeasible, ..SystemState::new(planned[0]) };
        known.take(heuristic);
        match found {
            Ok(solution) => {
                if solution.status == OutcomeStatus::Stopped {
                    self.deadline.mark_truncated();
                }
                known.bound = Bound::AtLeast(solution.bound.to_ms());
                known.examined = solution.examined;
                known.take(Some((solution.simulated, solution.placement)));
                self.cases = solution.cases;
            }
            Err(PlanError::NothingBetter { bound, examined, stopped }) => {
                if stopped {
                    self.deadline.mark_truncated();
                }
                known.bound = Bound::AtLeast(bound.to_ms());
                (known.examined, known.skipped) = (examined, known.best.is_none());
            }
            Err(error @ (PlanError::Infeasible { .. } | PlanError::NothingRuns { .. } | PlanError::NoSystem)) => {
                self.refused = Some(error);
            }
            Err(error @ PlanError::StoppedWithoutPlan { .. }) => {
                known.bound = Bound::NONE;
                self.refused = Some(error);
            }
            Err(error) => return Err(error),
        }
        // The planner's bound is for one stage per device. Several stages gain by choices of their
        // own, which inference does not have. They also gain where an output slot holds the last
        // microbatch of one iteration and the first one of the next, since only one of them waits
        // for it.
        let several_gain = self.costs.training || self.costs.microbatches % 2 == 1;
        let over_all = self.least_of_stage_bounds();
        known.bound = if several_gain { over_all } else { known.bound.max(over_all) };
        self.planned = Some(self.systems.len());
        self.systems.push(known);
        Ok(())
    }

    fn conclude(self) -> Result<Solution, PlanError> {
        let limit = self.limit();
        let examined = self.heuristic_plans.len() + self.systems.iter().map(|known| known.examined).sum::<usize>();
        // A plan to start with has an entry of its own. If its system is the only one, both entries
        // bound all placements.
        let bounds = self.systems.iter().map(|known| known.bound);
        let alone = self.problem.systems.len() == 1;
        let least =
            if alone { bounds.fold(Bound::NONE, Bound::max) } else { bounds.fold(Bound::Infeasible, Bound::min) };
        let (over, best) = (self.deadline.was_truncated(), self.best().cloned());
        let bound = to_time(&self.costs, least);
        let Some((simulated, placement)) = best else {
            return Err(match self.refused.clone() {
                _ if self.problem.options.incumbent.is_some() => {
                    PlanError::NothingBetter { bound, examined, stopped: over }
                }
                None if self.systems.is_empty() => PlanError::NoSystem,
                Some(error @ PlanError::StoppedWithoutPlan { .. }) => error,
                _ if over => PlanError::StoppedWithoutPlan { examined },
                refused => self.refusal(refused, examined),
            });
        };
        // A plan to start with may be outside the space: if it beats a bound, the bound does not
        // apply.
        let given = self.problem.options.start.as_ref() == Some(&placement);
        let beaten = given && bound > simulated;
        let (bound, least) = if beaten { (SimTime::ZERO, Bound::NONE) } else { (bound, least) };
        let status = status(least >= limit, over);
        let baseline = self.heuristic_plans.iter().map(|(time, _)| *time).chain(self.programs).min();
        let considered = |known: &SystemState| {
            let simulated = known.best.as_ref().map(|(time, _)| *time);
            // If no other placement fits, its best is the bound.
            let bound = known.bound.is_feasible().then(|| to_time(&self.costs, known.bound));
            let bound = [bound, simulated].into_iter().flatten().min();
            Considered { system: known.system, bound, simulated, skipped: known.skipped, examined: known.examined }
        };
        let mut considered = each_once(self.systems.iter().map(considered));
        // Plans of the heuristics are simulated as well.
        for known in &mut considered {
            let heuristic = |(_, placement): &&Scored| placement.system == known.system;
            known.examined += self.heuristic_plans.iter().filter(heuristic).count();
        }
        Ok(Solution {
            examined,
            cases: self.cases.max(self.systems.len()),
            baseline,
            considered,
            ..Solution::new((simulated, placement), bound, status)
        })
    }

    /// Returns why no system has a plan: the shortage of the closest candidate, or the planner's
    /// error.
    fn refusal(&self, refused: Option<PlanError>, examined: usize) -> PlanError {
        if let Err(error) = shortage::lonely_layers(&self.costs) {
            return error;
        }
        let of = |known: &SystemState| known.candidates(self.problem).clone();
        let candidates: Vec<Placement> = self.systems.par_iter().flat_map(of).collect();
        let closest = closest::closest(&self.problem.context, &candidates);
        match (closest, refused) {
            (Some(shortage), Some(refused)) => shortage.or_closer(refused, &self.problem.context),
            (Some(shortage), None) => shortage.error(&self.problem.context),
            (None, Some(refused)) => refused,
            (None, None) => closest::without_shortage(self.problem, &candidates, examined),
        }
    }
}

/// Merges the entries of each system: a plan to start with is improved apart from the planned ones.
fn each_once(all: impl Iterator<Item = Considered>) -> Vec<Considered> {
    let mut list: Vec<Considered> = Vec::new();
    for next in all {
        let Some(known) = list.iter_mut().find(|known| known.system == next.system) else {
            list.push(next);
            continue;
        };
        // Both bound all placements of the system.
        known.simulated = [known.simulated, next.simulated].into_iter().flatten().min();
        known.bound = [known.bound, next.bound].into_iter().flatten().max();
        known.bound = [known.bound, known.simulated].into_iter().flatten().min();
        known.skipped &= next.skipped;
        known.examined += next.examined;
    }
    list
}
