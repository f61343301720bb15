//! Several stages per device: their bounds and candidates.

use crate::{
    candidates::from_milp,
    formulation::assignment::least,
    problem::{bound::Bound, budget},
    score::judge::{Scored, judge_within},
    search::portfolio::{NEARBY, Portfolio},
};
use rayon::prelude::*;
use spipe_base::SimTime;
use spipe_plan::{Placement, System};

impl Portfolio<'_, '_> {
    /// Returns a lower bound of the planned systems, with any number of stages per device.
    pub(crate) fn least_of_stage_bounds(&self) -> Bound {
        self.stage_bounds.iter().map(|(_, least)| *least).fold(Bound::Infeasible, Bound::min)
    }

    /// Bounds the planned systems, with any number of stages per device.
    pub(crate) fn bound_stages(&mut self, planned: &[System]) {
        let pins = &self.problem.options.pins;
        let of_system = |system: &System| least((&self.costs, pins), *system, Some(&self.deadline));
        self.stage_bounds = planned.iter().map(|system| (*system, of_system(system))).collect();
    }

    /// Simulates candidates with several stages per device for the planned systems that may still
    /// be faster.
    pub(crate) fn cut(&mut self) {
        // Its programs end by the clock.
        let cuts = self.costs.training && self.problem.options.effort.is_none();
        let Some(index) = self.planned.filter(|_| cuts) else { return };
        for number in 0..self.stage_bounds.len() {
            let ((system, least), limit) = (self.stage_bounds[number], self.limit());
            if least >= limit || self.deadline.over() {
                continue;
            }
            let until = self.deadline.percent(budget::SEVERAL);
            let counted = from_milp::placements(&self.costs, system, (NEARBY * limit, &until));
            let time = budget::share(self.deadline.left(), budget::SEVERAL_BOUND);
            let others = if counted.open { from_milp::least(&self.costs, system, (limit, time)) } else { Bound::NONE };
            self.stage_bounds[number].1 = least.max(counted.least).max(others);
            self.systems[index].examined += self.try_multi_stage(counted.placements);
        }
        self.multi_stage_plans.sort_by_key(|(time, _)| *time);
        // The search may have started with one of them.
        self.multi_stage_plans.dedup();
        self.systems[index].bound = self.least_of_stage_bounds();
    }

    /// Simulates placements with several stages per device; returns their number.
    fn try_multi_stage(&mut self, placements: Vec<Placement>) -> usize {
        let best = self.best().into_iter().chain(&self.multi_stage_plans).map(|(time, _)| *time).min();
        let limit = best.map_or(SimTime::MAX, |best| SimTime::ns((NEARBY * best.as_ns() as f64) as u64));
        let look = |placement| (!self.deadline.over()).then(|| judge_within(self.problem, placement, limit));
        let tried: Vec<Option<Scored>> = placements.into_par_iter().filter_map(look).collect();
        let examined = tried.len();
        self.multi_stage_plans.extend(tried.into_iter().flatten());
        examined
    }
}
