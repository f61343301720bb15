//! Improvement of the best placements by local search, and enumeration of systems with few
//! placements.

use crate::{
    improve::refine,
    problem::{Effort, SYSTEMS, bound::Bound},
    score::judge::Scored,
    search::{
        exhaust,
        portfolio::{NEARBY, PROMISING, Portfolio, SystemState},
    },
    space::enumerate::few,
};
use spipe_base::SimTime;
use spipe_plan::System;

/// Number of systems whose best placements are improved first.
const REFINED: usize = 3;

/// Number of simulations per start before the next start's turn.
const FIRST_STEPS: usize = 160;

/// Index of a system, one of its placements, and the number of simulations left to improve it.
type RefinementStart = (usize, Scored, usize);

impl Portfolio<'_, '_> {
    /// Improves the best placements of the best few systems and nearly as fast ones with several
    /// stages per device, the fastest first; then those of all other systems that may still be
    /// faster.
    pub(crate) fn improve(&mut self) {
        let mut order: Vec<usize> = (0..self.systems.len()).collect();
        let time = |known: &SystemState| known.best.as_ref().map_or(SimTime::MAX, |(time, _)| *time);
        order.sort_by_key(|index| (time(&self.systems[*index]), *index));
        order.retain(|index| self.systems[*index].bound < self.limit());
        if self.problem.options.effort == Some(Effort::Low) {
            order.truncate(1);
            // A plan with which a longer search begins is worth more steps.
            for index in order.iter().filter(|_| !self.problem.options.is_limited()) {
                self.systems[*index].others.clear();
            }
        }
        let behind = order.split_off(REFINED.min(order.len()));
        let mut starts = self.starts(&order);
        let (best, most) = (self.best_ms(), self.problem.most_refinements());
        if let Some(index) = self.planned {
            let plans = std::mem::take(&mut self.multi_stage_plans).into_iter();
            let near = plans.filter(|(time, _)| time.to_ms() < best * NEARBY);
            starts.extend(near.map(|start| (index, start, most)));
        }
        // The first simulations show which starts are promising.
        let mut starts = self.step(starts, (FIRST_STEPS, f64::NEG_INFINITY));
        starts.extend(self.starts(&behind));
        let mut steps = FIRST_STEPS;
        while !starts.is_empty() && !self.deadline.over() {
            starts = self.step(starts, (steps, PROMISING));
            // Fewer would simulate the same neighbours again.
            steps *= 2;
        }
    }

    /// Returns the placements of `systems` to start from.
    fn starts(&mut self, systems: &[usize]) -> Vec<RefinementStart> {
        let most = self.problem.most_refinements();
        let of = |index: &usize| self.systems[*index].best.clone().map(|start| (*index, start, most));
        let mut starts: Vec<RefinementStart> = systems.iter().filter_map(of).collect();
        for index in systems {
            starts.extend(
                std::mem::take(&mut self.systems[*index].others).into_iter().map(|start| (*index, start, most)),
            );
        }
        starts
    }

    /// Improves each of `starts` by `steps` simulations, the fastest first. Those below `near`
    /// times the incumbent get all their remaining simulations. Returns those that more simulations
    /// may improve.
    fn step(&mut self, mut starts: Vec<RefinementStart>, (steps, near): (usize, f64)) -> Vec<RefinementStart> {
        starts.sort_by_key(|(_, (time, _), _)| *time);
        starts.dedup();
        let mut more = Vec::new();
        for (index, start, left) in starts {
            let most = if start.0.to_ms() < self.best_ms() * near { left } else { left.min(steps) };
            if most > 0 && self.systems[index].bound < self.limit() {
                more.extend(self.refine(index, (start, most)).map(|refined| (index, refined, left - most)));
            }
        }
        more
    }

    /// Improves `start`, a placement of the `index`th system, by at most `most` simulations;
    /// returns the result if more may improve it.
    fn refine(&mut self, index: usize, (start, most): (Scored, usize)) -> Option<Scored> {
        let (refined, examined) = refine(self.problem, &self.costs, &self.deadline, (start, most));
        let known = &mut self.systems[index];
        known.examined += examined;
        known.take(Some(refined.clone()));
        (examined >= most).then_some(refined)
    }

    /// Enumerates the placements of systems that have few and may still be faster.
    pub(crate) fn exhaust(&mut self) {
        let steps = self.problem.options.effort.is_some();
        if steps || self.deadline.over() || !few(&self.costs, self.problem.options.every_limit) {
            return;
        }
        for index in 0..self.systems.len() {
            let SystemState { system, bound, .. } = self.systems[index];
            if !SYSTEMS.contains(&system) {
                self.systems[index].bound = self.try_all(index, (system, bound));
            }
        }
        let Some(index) = self.planned else { return };
        for number in 0..self.stage_bounds.len() {
            self.stage_bounds[number].1 = self.try_all(index, self.stage_bounds[number]);
        }
        let (least, known) = (self.least_of_stage_bounds(), &mut self.systems[index]);
        known.bound = known.bound.max(least);
    }

    /// Enumerates the placements of a system whose bound is below the incumbent, if these are few,
    /// and returns the resulting bound. The results count for the `index`th system.
    fn try_all(&mut self, index: usize, (system, bound): (System, Bound)) -> Bound {
        if bound >= self.limit() {
            return bound;
        }
        let limit = self.incumbent().map_or(f64::INFINITY, SimTime::to_ms);
        let tried = exhaust::fastest((self.problem, &self.costs), &self.deadline, (system, limit));
        let proven = Bound::of_limit(tried.best.as_ref().map_or(limit, |(time, _)| time.to_ms()));
        let known = &mut self.systems[index];
        known.examined += tried.examined;
        known.take(tried.best);
        known.skipped = known.best.is_none() && known.examined == 0 && (known.skipped || tried.complete);
        if tried.complete { proven } else { bound }
    }
}
