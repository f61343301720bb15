//! Candidates with several stages per device.

use super::{
    NEARBY,
    simulated::{Planned, Simulated},
    standing::Standing,
};
use crate::{
    candidates::from_milp,
    problem::{bound::Bound, budget},
    score::judge::{Scored, judge_within},
};
use rayon::prelude::*;
use spipe_base::SimTime;
use spipe_plan::Placement;

impl Simulated<'_, '_> {
    /// Simulates candidates with several stages per device for the planned systems that may still
    /// be faster.
    pub(super) fn cut(&mut self) {
        // Its programs end by the clock.
        let Self { standing, planned: Some(planned), .. } = self else { return };
        if !standing.costs.training || standing.problem.options.effort.is_some() {
            return;
        }
        for number in 0..planned.bounds.len() {
            let ((system, least), limit) = (planned.bounds[number], standing.limit());
            if least >= limit || standing.deadline.over() {
                continue;
            }
            let until = standing.deadline.percent(budget::SEVERAL);
            let counted = from_milp::placements(&standing.costs, system, (NEARBY * limit, &until));
            let time = budget::share(standing.deadline.left(), budget::SEVERAL_BOUND);
            let others =
                if counted.open { from_milp::least(&standing.costs, system, (limit, time)) } else { Bound::NONE };
            planned.bounds[number].1 = least.max(counted.least).max(others);
            standing.systems[planned.index].examined += planned.try_several(standing, counted.placements);
        }
        planned.several.sort_by_key(|(time, _)| *time);
        // The search may have started with one of them.
        planned.several.dedup();
        standing.systems[planned.index].bound = planned.least();
    }
}

impl Planned {
    /// Simulates placements with several stages per device; returns their number.
    fn try_several(&mut self, standing: &Standing<'_, '_>, placements: Vec<Placement>) -> usize {
        let best = standing.best().into_iter().chain(&self.several).map(|(time, _)| *time).min();
        let limit = best.map_or(SimTime::MAX, |best| SimTime::ns((NEARBY * best.as_ns() as f64) as u64));
        let look = |placement| (!standing.deadline.over()).then(|| judge_within(standing.problem, placement, limit));
        let tried: Vec<Option<Scored>> = placements.into_par_iter().filter_map(look).collect();
        let examined = tried.len();
        self.several.extend(tried.into_iter().flatten());
        examined
    }
}
