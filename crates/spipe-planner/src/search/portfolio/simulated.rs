//! The third stage: simulated candidates of the generated systems, and the planner's plan of stages.

use super::{
    NEARBY,
    bounded::Bounded,
    feasible::Feasible,
    standing::{Standing, SystemState},
};
use crate::{
    formulation::assignment::least,
    problem::{PlanError, Planner, Problem, Solution, bound::Bound, budget, in_pool},
    score::judge::{Scored, judge},
};
use spipe_base::SimTime;
use spipe_plan::{OutcomeStatus, Placement, System};

/// A problem with the best candidates of each system.
pub(super) struct Simulated<'s, 'a> {
    pub(super) standing: Standing<'s, 'a>,
    /// Iteration time of the fastest placement of Mobius' programs.
    pub(super) programs: Option<SimTime>,
    /// The result of the planner, if stages are planned.
    pub(super) planned: Option<Planned>,
}

/// The result for the systems whose stages are planned.
pub(super) struct Planned {
    /// Index of their state among the systems.
    pub(super) index: usize,
    /// Their lower bounds, with any number of stages per device.
    pub(super) bounds: Vec<(System, Bound)>,
    /// Plans with several stages per device. As incumbents they would keep the planner from finding
    /// plans that local search improves beyond them.
    pub(super) several: Vec<Scored>,
    /// Error of the planner.
    pub(super) refused: Option<PlanError>,
    /// The device orders that the planner looked at.
    pub(super) cases: usize,
}

impl Planned {
    /// The lower bound of all of them.
    pub(super) fn least(&self) -> Bound {
        self.bounds.iter().map(|(_, least)| *least).fold(Bound::Infeasible, Bound::min)
    }
}

impl<'s, 'a> Simulated<'s, 'a> {
    /// The candidates of the systems of `problem`, all of them generated, without plans of heuristics.
    pub(super) fn alone(problem: &'s Problem<'a>) -> Self {
        let mut standing = Standing::new(problem, &problem.systems);
        standing.bound();
        standing.generate();
        Self { standing, programs: None, planned: None }
    }
}

impl<'s, 'a> Bounded<'s, 'a> {
    /// Simulates the candidates of the generated systems, and plans the stages of the others with `planner`.
    ///
    /// # Errors
    /// Returns the shortage, if nothing fits, or why the planner failed.
    pub(super) fn simulated(self, planner: &Planner) -> Result<Simulated<'s, 'a>, PlanError> {
        let Feasible { mut standing, planned, mut fallback } = self.feasible;
        let (problem, mut programs) = (standing.problem, None);
        let stage_bounds = in_pool(problem, || {
            standing.generate();
            if problem.options.has_programs() {
                programs = standing.try_programs();
                if !self.balanced {
                    standing.balance();
                }
            } else if standing.best().is_none() {
                // A search with a time limit is followed by a longer one.
                if !problem.options.is_limited() {
                    fallback = standing.decide(&planned)?;
                }
                standing.deadline.mark_truncated();
            }
            standing.fall_back(fallback.take());
            if !problem.options.has_programs() {
                standing.count_shared();
            }
            Ok(standing.bound_stages(&planned))
        })?;
        let found = if planned.is_empty() { None } else { Some(standing.plan_stages(&planned, planner)) };
        let join = |found| standing.join((&planned, stage_bounds), found);
        let planned = found.map(join).transpose()?;
        Ok(Simulated { standing, programs, planned })
    }
}

impl Standing<'_, '_> {
    /// The result of `planner` for the systems `planned`, with one stage per device.
    fn plan_stages(&self, planned: &[System], planner: &Planner) -> Result<Solution, PlanError> {
        let problem = self.problem;
        let known = self.best().is_some() || (problem.options.effort.is_some() && problem.options.incumbent.is_some());
        if known && (self.deadline.over() || problem.options.effort.is_some()) {
            let (bound, examined, considered) = (SimTime::ZERO, 0, Vec::new());
            return Err(PlanError::NothingBetter { bound, examined, stopped: true, considered });
        }
        let mut options = problem.options.clone();
        // A plan with one stage per device that is slower may become faster with several.
        let factor = if self.costs.training { NEARBY } else { 1.0 };
        options.incumbent = self.incumbent().map(|best| SimTime::ns((factor * best.as_ns() as f64) as u64));
        // The remaining time is for several stages per device and for local search, which gain
        // little in inference.
        let more = self.costs.training || problem.systems.len() > planned.len();
        options.time_limit = budget::share(self.deadline.left(), if more { budget::BRANCH_AND_BOUND } else { 100 });
        planner.plan(&Problem { systems: planned.to_vec(), options, ..*problem })
    }

    /// The result of the planner, as that of one more system.
    fn join(
        &mut self,
        (planned, bounds): (&[System], Vec<(System, Bound)>),
        found: Result<Solution, PlanError>,
    ) -> Result<Planned, PlanError> {
        let heuristic = self.best_heuristic(planned);
        let mut known = SystemState { bound: Bound::Infeasible, ..SystemState::new(planned[0]) };
        let mut joined = Planned { index: self.systems.len(), bounds, several: Vec::new(), refused: None, cases: 0 };
        known.take(heuristic);
        match found {
            Ok(solution) => {
                if solution.status == OutcomeStatus::Stopped {
                    self.deadline.mark_truncated();
                }
                known.bound = Bound::AtLeast(solution.bound.to_ms());
                known.examined = solution.examined;
                known.take(Some((solution.simulated, solution.placement)));
                joined.cases = solution.cases;
            }
            Err(PlanError::NothingBetter { bound, examined, stopped, .. }) => {
                if stopped {
                    self.deadline.mark_truncated();
                }
                known.bound = Bound::AtLeast(bound.to_ms());
                (known.examined, known.skipped) = (examined, known.best.is_none());
            }
            Err(error @ (PlanError::Infeasible { .. } | PlanError::NothingRuns { .. } | PlanError::NoSystem)) => {
                joined.refused = Some(error);
            }
            Err(error @ PlanError::StoppedWithoutPlan { .. }) => {
                known.bound = Bound::NONE;
                joined.refused = Some(error);
            }
            Err(error) => return Err(error),
        }
        // The planner's bound is for one stage per device. Several stages gain by choices of their
        // own, which inference does not have. They also gain where an output slot holds the last
        // microbatch of one iteration and the first one of the next, since only one of them waits
        // for it.
        let several_gain = self.costs.training || self.costs.microbatches % 2 == 1;
        let over_all = joined.least();
        known.bound = if several_gain { over_all } else { known.bound.max(over_all) };
        self.systems.push(known);
        Ok(joined)
    }

    /// Adds the placement that fits, if nothing else was found.
    fn fall_back(&mut self, fallback: Option<Placement>) {
        let fallback = fallback.filter(|_| self.best().is_none());
        self.heuristic_plans.extend(fallback.and_then(|fallback| judge(self.problem, fallback)));
    }

    /// Lower bounds of the planned systems, with any number of stages per device.
    fn bound_stages(&self, planned: &[System]) -> Vec<(System, Bound)> {
        let pins = &self.problem.options.pins;
        let of_system = |system: &System| least((&self.costs, pins), *system, Some(&self.deadline));
        planned.iter().map(|system| (*system, of_system(system))).collect()
    }
}
