//! Improvement of the best placements by local search, and enumeration of systems with few
//! placements.

use super::{
    NEARBY, PROMISING,
    simulated::Simulated,
    standing::{Standing, SystemState},
};
use crate::{
    improve::refine,
    problem::{Effort, SYSTEMS, bound::Bound},
    score::judge::Scored,
    search::exhaust,
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

impl Simulated<'_, '_> {
    /// Improves the best placements of the best few systems and nearly as fast ones with several
    /// stages per device, the fastest first; then those of all other systems that may still be
    /// faster.
    pub(super) fn improve(&mut self) {
        let Self { standing, planned, .. } = self;
        let mut order: Vec<usize> = (0..standing.systems.len()).collect();
        let time = |known: &SystemState| known.best.as_ref().map_or(SimTime::MAX, |(time, _)| *time);
        order.sort_by_key(|index| (time(&standing.systems[*index]), *index));
        order.retain(|index| standing.systems[*index].bound < standing.limit());
        if standing.problem.options.effort == Some(Effort::Low) {
            order.truncate(1);
            // A plan with which a longer search begins is worth more steps.
            for index in order.iter().filter(|_| !standing.problem.options.is_limited()) {
                standing.systems[*index].others.clear();
            }
        }
        let behind = order.split_off(REFINED.min(order.len()));
        let mut starts = standing.starts(&order);
        let (best, most) = (standing.best_ms(), standing.problem.most_refinements());
        if let Some(planned) = planned {
            let plans = std::mem::take(&mut planned.several).into_iter();
            let near = plans.filter(|(time, _)| time.to_ms() < best * NEARBY);
            starts.extend(near.map(|start| (planned.index, start, most)));
        }
        // The first simulations show which starts are promising.
        let mut starts = standing.step(starts, (FIRST_STEPS, f64::NEG_INFINITY));
        starts.extend(standing.starts(&behind));
        let mut steps = FIRST_STEPS;
        while !starts.is_empty() && !standing.deadline.over() {
            starts = standing.step(starts, (steps, PROMISING));
            // Fewer would simulate the same neighbours again.
            steps *= 2;
        }
    }

    /// Enumerates the placements of systems that have few and may still be faster.
    pub(super) fn exhaust(&mut self) {
        let Self { standing, planned, .. } = self;
        let steps = standing.problem.options.effort.is_some();
        if steps || standing.deadline.over() || !few(&standing.costs, standing.problem.options.every_limit) {
            return;
        }
        for index in 0..standing.systems.len() {
            let SystemState { system, bound, .. } = standing.systems[index];
            if !SYSTEMS.contains(&system) {
                standing.systems[index].bound = standing.try_all(index, (system, bound));
            }
        }
        let Some(planned) = planned else { return };
        for of_system in &mut planned.bounds {
            of_system.1 = standing.try_all(planned.index, *of_system);
        }
        let (least, known) = (planned.least(), &mut standing.systems[planned.index]);
        known.bound = known.bound.max(least);
    }
}

impl Standing<'_, '_> {
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
