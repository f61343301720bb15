//! The second stage: the plans of heuristics, and the lower bounds of the generated systems.

use super::{
    FAR,
    feasible::Feasible,
    standing::{Standing, SystemState},
};
use crate::{
    formulation::assignment::{compute_bound::floor, least},
    problem::budget,
    search::heuristics,
};
use rayon::prelude::*;

/// A problem with the plans of heuristics and a lower bound of each generated system.
pub(super) struct Bounded<'s, 'a> {
    pub(super) feasible: Feasible<'s, 'a>,
    /// Whether the balanced plan was made.
    pub(super) balanced: bool,
}

impl<'s, 'a> Feasible<'s, 'a> {
    /// Makes the plans of heuristics, and bounds the systems.
    pub(super) fn bounded(mut self) -> Bounded<'s, 'a> {
        let balanced = self.standing.begin();
        self.standing.bound();
        Bounded { feasible: self, balanced }
    }
}

impl Standing<'_, '_> {
    /// Bounds every system.
    pub(super) fn bound(&mut self) {
        let (costs, pins, deadline) = (&self.costs, &self.problem.options.pins, &self.deadline);
        let bounding = deadline.percent(budget::BOUNDS);
        let bound = |known: &mut SystemState| known.bound = least((costs, pins), known.system, Some(&bounding));
        self.systems.par_iter_mut().for_each(bound);
    }

    /// Starts with the plans of heuristics. The balanced one over all device orders takes longer, so it is made only
    /// if the greedy one is near the compute bound; otherwise other systems are faster. Returns whether it was made.
    fn begin(&mut self) -> bool {
        self.heuristic_plans = heuristics::filled(self.problem, &self.costs);
        let near = self.best_ms() < FAR * floor(&self.costs);
        let balanced = near || !self.problem.options.has_programs();
        if balanced {
            self.balance();
        }
        balanced
    }

    /// Adds the best-balanced plan.
    pub(super) fn balance(&mut self) {
        let balanced = heuristics::balanced(self.problem, &self.costs, (self.best_ms(), &self.deadline));
        self.heuristic_plans.extend(balanced);
    }
}
