//! What the search does with the best it has: changes it step by step, and tries everything where that is little.

use crate::search::{
    exhaust,
    portfolio::{Known, PROMISING, Search},
};
use crate::{
    improve::refine,
    problem::SYSTEMS,
    score::judge::{Scored, faster},
    space::enumerate::few,
};
use spipe_base::SimTime;
use spipe_plan::System;

/// How many systems' best placements are improved.
const REFINED: usize = 3;

/// How many placements are simulated for a start before others have their turn.
const FIRST_STEPS: usize = 160;

/// A placement of a system, and how many more may be simulated to improve it.
type Start = (usize, Scored, usize);

impl Search<'_, '_> {
    /// Improves the best placements of the best few systems, and those with several stages on a device that are nearly as fast, the fastest
    /// first; then those of all other systems that may still be faster.
    pub(crate) fn improve(&mut self) {
        let mut order: Vec<usize> = (0..self.systems.len()).collect();
        let time = |known: &Known| known.best.as_ref().map_or(SimTime::MAX, |(time, _)| *time);
        order.sort_by_key(|index| (time(&self.systems[*index]), *index));
        order.retain(|index| self.systems[*index].bound < self.limit());
        let behind = order.split_off(REFINED.min(order.len()));
        let mut starts = self.starts(&order);
        let best = self.best().map_or(f64::INFINITY, |(time, _)| time.to_ms());
        let short = std::mem::take(&mut self.short).into_iter().filter(|(time, _)| time.to_ms() < best * PROMISING);
        let most = self.problem.options.refinements;
        starts.extend(self.planned.into_iter().flat_map(|index| short.clone().map(move |start| (index, start, most))));
        // The first steps say which of them lead far.
        let mut starts = self.step(starts, (FIRST_STEPS, f64::NEG_INFINITY));
        starts.extend(self.starts(&behind));
        let mut steps = FIRST_STEPS;
        while !starts.is_empty() && !self.deadline.over() {
            starts = self.step(starts, (steps, PROMISING));
            // Fewer than before would simulate the same neighbours again.
            steps *= 2;
        }
    }

    /// The placements of `systems` to begin with.
    fn starts(&mut self, systems: &[usize]) -> Vec<Start> {
        let most = self.problem.options.refinements;
        let of = |index: &usize| self.systems[*index].best.clone().map(|start| (*index, start, most));
        let mut starts: Vec<Start> = systems.iter().filter_map(of).collect();
        for index in systems {
            starts.extend(
                std::mem::take(&mut self.systems[*index].others).into_iter().map(|start| (*index, start, most)),
            );
        }
        starts
    }

    /// Improves each of `starts` by simulating so many, the fastest first, and to the end those that take less than `near` times the best; what
    /// more may help.
    fn step(&mut self, mut starts: Vec<Start>, (steps, near): (usize, f64)) -> Vec<Start> {
        starts.sort_by_key(|(_, (time, _), _)| *time);
        starts.dedup();
        let mut more = Vec::new();
        for (index, start, left) in starts {
            let best = self.best().map_or(f64::INFINITY, |(time, _)| time.to_ms());
            let most = if start.0.to_ms() < best * near { left } else { left.min(steps) };
            if most > 0 && self.systems[index].bound < self.limit() {
                more.extend(self.refine(index, (start, most)).map(|refined| (index, refined, left - most)));
            }
        }
        more
    }

    /// Improves `start`, a placement of the `index`th system, by simulating so many; what it came to where more of them may help.
    fn refine(&mut self, index: usize, (start, most): (Scored, usize)) -> Option<Scored> {
        let (refined, examined) = refine(self.problem, &self.costs, &self.deadline, (start, most));
        let known = &mut self.systems[index];
        known.examined += examined;
        known.best = faster(known.best.take(), Some(refined.clone()));
        known.system = known.best.as_ref().map_or(known.system, |(_, placement)| placement.system);
        (examined >= most).then_some(refined)
    }

    /// Tries everything that systems with few placements can do and that may still be faster.
    pub(crate) fn exhaust(&mut self) {
        if self.deadline.over() || !few(&self.costs, self.problem.options.every_limit) {
            return;
        }
        for index in 0..self.systems.len() {
            let Known { system, bound, .. } = self.systems[index];
            if !SYSTEMS.contains(&system) {
                self.systems[index].bound = self.try_all(index, (system, bound));
            }
        }
        let Some(index) = self.planned else { return };
        for number in 0..self.staged.len() {
            self.staged[number].1 = self.try_all(index, self.staged[number]);
        }
        let (least, known) = (self.least_of_staged(), &mut self.systems[index]);
        known.bound = known.bound.max(least);
    }

    /// Tries all placements of a system whose bound is below the best plan, where these are few; the bound that is then known. What is
    /// found counts for the `index`th system.
    fn try_all(&mut self, index: usize, (system, bound): (System, f64)) -> f64 {
        if bound >= self.limit() {
            return bound;
        }
        let best = self.best().map(|(time, _)| time).into_iter().chain(self.problem.options.incumbent).min();
        let limit = best.map_or(f64::INFINITY, SimTime::to_ms);
        let tried = exhaust::fastest((self.problem, &self.costs), &self.deadline, (system, limit));
        let proven = tried.best.as_ref().map_or(limit, |(time, _)| time.to_ms());
        let known = &mut self.systems[index];
        known.examined += tried.examined;
        known.best = faster(known.best.take(), tried.best);
        known.skipped = known.best.is_none() && known.examined == 0 && (known.skipped || tried.complete);
        known.system = known.best.as_ref().map_or(known.system, |(_, placement)| placement.system);
        if tried.complete { proven } else { bound }
    }
}
