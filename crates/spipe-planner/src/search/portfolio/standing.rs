//! The results so far, which every stage of the search reads and adds to.

use crate::{
    candidates::candidates,
    costs::CostSums,
    problem::{Deadline, Problem, bound::Bound, tolerances::clock_error},
    score::judge::{Scored, faster},
    space::distinct,
};
use spipe_base::SimTime;
use spipe_cost::Mode;
use spipe_plan::{Placement, System};
use std::sync::OnceLock;

/// The results of a search so far.
pub(super) struct Standing<'s, 'a> {
    pub(super) problem: &'s Problem<'a>,
    pub(super) costs: CostSums<'a>,
    pub(super) deadline: Deadline<'s>,
    pub(super) systems: Vec<SystemState>,
    /// Plans of the heuristics.
    pub(super) heuristic_plans: Vec<Scored>,
}

impl<'s, 'a> Standing<'s, 'a> {
    /// No results yet, for those of `systems` that suit the problem's mode.
    pub(super) fn new(problem: &'s Problem<'a>, systems: &[System]) -> Self {
        let mode = problem.context.workload().mode;
        let suits = |system: &&System| mode == Mode::Train || system.infers();
        Self {
            problem,
            costs: CostSums::new(problem.context, &problem.options),
            deadline: Deadline::new(problem),
            systems: systems.iter().filter(suits).map(|system| SystemState::new(*system)).collect(),
            heuristic_plans: Vec::new(),
        }
    }

    /// Returns the fastest plan of the heuristics for one of `systems`.
    pub(super) fn best_heuristic(&self, systems: &[System]) -> Option<Scored> {
        let heuristic = self.heuristic_plans.iter().filter(|(_, placement)| systems.contains(&placement.system));
        heuristic.min_by_key(|(time, _)| *time).cloned()
    }

    /// Returns the fastest plan, the first of equally fast ones.
    pub(super) fn best(&self) -> Option<&Scored> {
        let known = self.systems.iter().filter_map(|known| known.best.as_ref());
        self.heuristic_plans.iter().chain(known).min_by_key(|(time, _)| *time)
    }

    /// Returns the iteration of the fastest plan, in ms; infinite if there is none.
    pub(super) fn best_ms(&self) -> f64 {
        self.best().map_or(f64::INFINITY, |(time, _)| time.to_ms())
    }

    /// Returns the iteration of the fastest plan, or of the known one if that is faster.
    pub(super) fn incumbent(&self) -> Option<SimTime> {
        self.best().map(|(time, _)| *time).into_iter().chain(self.problem.options.incumbent).min()
    }

    /// Returns the iteration, in ms, that a plan must beat.
    pub(super) fn limit(&self) -> f64 {
        // Less the error of rounding bounds to the simulator's clock.
        let less = |time: f64| time * (1.0 - self.problem.options.gap.max(0.0)) - clock_error(time);
        self.incumbent().map_or(f64::INFINITY, |time| less(time.to_ms()))
    }
}

/// The results of one system.
pub(super) struct SystemState {
    pub(super) system: System,
    /// Generated placements, once they are made.
    pub(super) candidates: OnceLock<Vec<Placement>>,
    /// Lower bound of its placements.
    pub(super) bound: Bound,
    pub(super) best: Option<Scored>,
    /// Candidates with other numbers of stages that are nearly as fast.
    pub(super) others: Vec<Scored>,
    pub(super) examined: usize,
    pub(super) skipped: bool,
}

impl SystemState {
    pub(super) fn new(system: System) -> Self {
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
    pub(super) fn take(&mut self, found: Option<Scored>) {
        self.best = faster(self.best.take(), found);
        self.system = self.best.as_ref().map_or(self.system, |(_, placement)| placement.system);
    }

    pub(super) fn candidates(&self, problem: &Problem<'_>) -> &Vec<Placement> {
        self.candidates.get_or_init(|| allowed(problem, self.system))
    }
}

/// Returns the candidates of `system` that satisfy the pins.
pub(super) fn allowed(problem: &Problem<'_>, system: System) -> Vec<Placement> {
    let pins = &problem.options.pins;
    let held = |placement: Placement| pins.hold(&problem.context, &placement);
    let mut list: Vec<Placement> = candidates(&problem.context, system).into_iter().map(held).collect();
    list.extend(problem.options.start.iter().filter(|start| start.system == system).cloned());
    list.retain(|placement| pins.allow(&problem.context, placement));
    // Pins make many candidates equal, and only a few are simulated.
    if pins.is_empty() { list } else { distinct(list) }
}
