//! What the search does with the best it has: changes it step by step, and tries everything where that is little.

use super::{super::exhaust, Known, PROMISING, Search};
use crate::{
    SYSTEMS,
    case::{Scored, faster},
    every::few,
    refine::refine,
};
use spipe_base::SimTime;
use spipe_plan::System;

/// How many systems' best placements are improved.
const REFINED: usize = 3;

/// How many placements are simulated for a start before others have their turn.
const FIRST_STEPS: usize = 160;

impl Search<'_, '_> {
    /// Improves the best placements of the best few systems, and those with several stages on a device that are nearly as fast, the fastest
    /// first.
    pub(super) fn improve(&mut self) {
        let mut order: Vec<usize> = (0..self.systems.len()).collect();
        let time = |known: &Known| known.best.as_ref().map_or(SimTime::MAX, |(time, _)| *time);
        order.sort_by_key(|index| (time(&self.systems[*index]), *index));
        let open = |index: &usize| self.systems[*index].bound < self.limit();
        let few: Vec<usize> = order.into_iter().filter(open).take(REFINED).collect();
        let mut starts: Vec<(usize, Scored)> =
            few.into_iter().filter_map(|index| Some((index, self.systems[index].best.clone()?))).collect();
        for index in starts.iter().map(|(index, _)| *index).collect::<Vec<_>>() {
            starts.extend(std::mem::take(&mut self.systems[index].others).into_iter().map(|start| (index, start)));
        }
        let best = self.best().map_or(f64::INFINITY, |(time, _)| time.to_ms());
        let short = std::mem::take(&mut self.short).into_iter().filter(|(time, _)| time.to_ms() < best * PROMISING);
        starts.extend(self.planned.into_iter().flat_map(|index| short.clone().map(move |start| (index, start))));
        // The first steps say which of them lead far.
        let most = self.problem.options.refinements;
        for (most, all) in [(FIRST_STEPS.min(most), true), (most.saturating_sub(FIRST_STEPS), false)] {
            starts.sort_by_key(|(_, (time, _))| *time);
            starts.dedup();
            for (index, start) in std::mem::take(&mut starts).into_iter().filter(|_| most > 0) {
                let best = self.best().map_or(f64::INFINITY, |(time, _)| time.to_ms());
                if (all || start.0.to_ms() < best * PROMISING) && self.systems[index].bound < self.limit() {
                    starts.extend(self.refine(index, (start, most)).map(|refined| (index, refined)));
                }
            }
        }
    }

    /// Improves `start`, a placement of the `index`th system, by simulating so many; what it came to where more of them may help.
    fn refine(&mut self, index: usize, (start, most): (Scored, usize)) -> Option<Scored> {
        let (refined, examined) = refine(self.problem, &self.figures, &self.deadline, (start, most));
        let known = &mut self.systems[index];
        known.examined += examined;
        known.best = faster(known.best.take(), Some(refined.clone()));
        known.system = known.best.as_ref().map_or(known.system, |(_, placement)| placement.system);
        (examined >= most).then_some(refined)
    }

    /// Tries everything that systems with few placements can do and that may still be faster.
    pub(super) fn exhaust(&mut self) {
        if self.deadline.over() || !few(&self.figures, self.problem.options.every_limit) {
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
        let tried = exhaust::fastest((self.problem, &self.figures), &self.deadline, (system, limit));
        let proven = tried.best.as_ref().map_or(limit, |(time, _)| time.to_ms());
        let known = &mut self.systems[index];
        known.examined += tried.examined;
        known.best = faster(known.best.take(), tried.best);
        known.skipped = known.best.is_none() && known.examined == 0 && (known.skipped || tried.complete);
        known.system = known.best.as_ref().map_or(known.system, |(_, placement)| placement.system);
        if tried.complete { proven } else { bound }
    }
}
