//! Simulation of the generated candidates of each system, in ascending order of estimated time.

use super::{
    FAR,
    standing::{Standing, SystemState, allowed},
};
use crate::{
    candidates::{from_milp, mobius, pipelines, sharded},
    problem::{Deadline, budget, tolerances::ROUNDING},
    score::{
        estimate::estimate,
        judge::{Scored, busiest, faster, judge, judge_within},
    },
    space::rules::Family,
};
use rayon::prelude::*;
use spipe_base::SimTime;
use spipe_plan::{Placement, System, check};
use std::{collections::BTreeMap, ops::RangeInclusive};

/// First and largest number of placements that are simulated before their best limits the others.
/// It must not depend on the number of threads.
const BATCHES: RangeInclusive<usize> = 2..=16;

/// Number of candidates of a system that are improved besides its best.
const OTHERS: usize = 5;

/// First batch of sharded systems: their candidates are already a selection, the first of them with
/// both orders of the host's steps.
const FIRST_SHARED: usize = 8;

impl Standing<'_, '_> {
    /// Simulates the candidates of the systems that may beat the incumbent, in ascending order of bound.
    pub(super) fn generate(&mut self) {
        let mut order: Vec<usize> = (0..self.systems.len()).collect();
        order.sort_by(|a, b| self.systems[*a].bound.total_cmp(&self.systems[*b].bound).then(a.cmp(b)));
        let programs = self.systems.iter().any(|known| known.system == System::Mobius);
        let until = self.deadline.percent(if programs { budget::BEFORE_MOBIUS } else { 100 });
        let mut looks = 0;
        for index in order {
            let heuristic = self.best_heuristic(&[self.systems[index].system]);
            if self.systems[index].bound >= self.limit() {
                self.systems[index].skipped = self.systems[index].bound.is_feasible() && heuristic.is_none();
                self.systems[index].best = heuristic;
                continue;
            }
            // Without an incumbent from outside, a system far below the best plan is tried after
            // the deadline too.
            let far = self.systems[index].bound < self.best_ms() / FAR && self.problem.options.incumbent.is_none();
            if until.over() && !(far && until.allows(looks)) {
                self.systems[index].best = heuristic;
                continue;
            }
            self.list(index);
            let candidates = self.systems[index].candidates(self.problem);
            let scored = self.simulated(candidates, Family::of(self.systems[index].system), &until);
            let known = &mut self.systems[index];
            known.examined = scored.examined;
            looks += scored.looks;
            known.others = others(Family::of(known.system), &scored.list);
            known.best = scored.list.into_iter().map(Some).fold(heuristic, faster);
        }
    }

    /// Simulates placements from the integer programs of those sharded systems whose candidates do not fit,
    /// if the best plan is far from the system's bound. The programs find placements that fit scarce memory.
    pub(super) fn count_shared(&mut self) {
        let best = self.best_ms();
        for index in 0..self.systems.len() {
            let known = &self.systems[index];
            let none = known.best.is_none() && known.bound < best / FAR && known.bound < self.limit();
            if !none || !known.system.shards_parameters() {
                continue;
            }
            let (costs, pins) = (&self.costs, &self.problem.options.pins);
            let counted = sharded::placements((costs, pins), (known.system, best), &self.deadline);
            let counted = sharded::promising((&costs.context, pins), counted);
            let scored = self.simulated(&counted, Family::Sharded, &self.deadline);
            let known = &mut self.systems[index];
            known.examined += scored.examined;
            known.best = scored.list.into_iter().map(Some).fold(None, faster);
        }
    }

    /// Generates the candidates of a system, and raises its bound by its programs.
    fn list(&mut self, index: usize) {
        let (costs, pins) = (&self.costs, &self.problem.options.pins);
        let (limit, until) = (self.limit(), self.deadline.percent(budget::COUNTED));
        let known = &mut self.systems[index];
        let mut candidates = known.candidates.take().unwrap_or_else(|| allowed(self.problem, known.system));
        let programs = self.problem.options.has_programs();
        if programs {
            let counted = from_milp::placements(costs, known.system, (limit, &until));
            candidates.extend(counted.placements);
            known.bound = known.bound.max(counted.least);
        }
        pipelines::leaving_or_not(&mut candidates);
        if known.system.shards_parameters() {
            if programs {
                let until = self.deadline.percent(budget::COUNTED);
                candidates.extend(sharded::placements((costs, pins), (known.system, limit), &until));
            }
            candidates = sharded::promising((&costs.context, pins), candidates);
        }
        known.candidates = candidates.into();
    }

    /// Simulates the candidates that fit in ascending order of estimated time, except those whose
    /// busiest device exceeds the reach of the best: all while time permits, and the first batch in
    /// any case.
    fn simulated(&self, candidates: &[Placement], family: Family, until: &Deadline<'_>) -> Simulated {
        let work = |(index, placement): (usize, &Placement)| {
            let fits = check(&self.problem.context, placement).is_ok();
            fits.then(|| {
                let busy = busiest(&self.costs, placement);
                let estimate = if family == Family::Streamed { estimate(&self.costs, placement) } else { None };
                Fitting { rank: estimate.unwrap_or(busy), busy, index }
            })
        };
        let mut fitting: Vec<Fitting> = candidates.par_iter().enumerate().filter_map(work).collect();
        // Sharded candidates come in this order.
        if family != Family::Sharded {
            fitting.sort_by(|one, other| one.rank.total_cmp(&other.rank));
        }
        let unfit = candidates.len() - fitting.len();
        let most = self.best_ms() * self.problem.promising();
        fitting.retain(|one| one.rank <= most);
        fitting.truncate(self.problem.most_candidates());
        // Candidates that are nearly as fast are improved as well.
        let reach = reach(family);
        // Placements that do not fit take no time worth limiting.
        let mut looks = 0;
        let mut list: Vec<(usize, Scored)> = Vec::new();
        let first = if family == Family::Sharded { FIRST_SHARED } else { *BATCHES.start() };
        let (mut left, mut size) = (fitting.as_slice(), first);
        while !left.is_empty() {
            let (batch, behind) = left.split_at(size.min(left.len()));
            (left, size) = (behind, (2 * size).min(*BATCHES.end()));
            let best = list.iter().map(|(_, (time, _))| *time).min();
            let limit = best.map_or(SimTime::MAX, |best| SimTime::ns((best.as_ns() as f64 * reach).ceil() as u64));
            let promising: Vec<_> = batch.iter().filter(|one| one.busy <= limit.to_ms() * (1.0 + ROUNDING)).collect();
            // Without the first batch, all candidates would have been generated for nothing.
            let first = list.is_empty();
            let tried = |one: &Fitting| {
                let time = !until.over() || (first && !until.stopped());
                time.then(|| (one.index, judge_within(self.problem, candidates[one.index].clone(), limit)))
            };
            let tried: Vec<_> = promising.into_par_iter().filter_map(tried).collect();
            looks += tried.len();
            list.extend(tried.into_iter().filter_map(|(index, scored)| Some((index, scored?))));
        }
        // Among equals, the first one is best.
        list.sort_by_key(|(index, _)| *index);
        Simulated { list: list.into_iter().map(|(_, scored)| scored).collect(), looks, examined: unfit + looks }
    }

    /// Simulates the placements of Mobius' programs, if the system may beat the incumbent: a
    /// baseline, whose plans must not be better. Returns the fastest iteration.
    pub(super) fn try_programs(&mut self) -> Option<SimTime> {
        let limit = self.limit();
        let may = |known: &&mut SystemState| known.system == System::Mobius && known.bound < limit;
        let known = self.systems.iter_mut().find(may)?;
        let placements = mobius::candidates(&self.costs, &self.deadline);
        known.examined += placements.len();
        let scored: Vec<Scored> =
            placements.into_par_iter().filter_map(|placement| judge(self.problem, placement)).collect();
        let fastest = scored.iter().map(|(time, _)| *time).min();
        known.best = scored.into_iter().map(Some).fold(known.best.take(), faster);
        fastest
    }
}

/// A candidate that fits.
struct Fitting {
    /// The estimated time, or that of the busiest device, in ms.
    rank: f64,
    /// The time for which its busiest device computes, in ms: no iteration is shorter.
    busy: f64,
    /// Its place among the candidates.
    index: usize,
}

/// Placements that run with their times, the number of simulations, and the number of examined
/// candidates.
struct Simulated {
    list: Vec<Scored>,
    looks: usize,
    examined: usize,
}

/// Returns the factor above the best candidate of a family up to which others are improved.
const fn reach(family: Family) -> f64 {
    match family {
        Family::Pipeline => 1.0,
        Family::Streamed => 1.3,
        Family::Sharded => 1.1,
    }
}

/// Returns the best candidate per number of stages, or of resident stages for sharded systems,
/// without the best of all and those beyond the reach, the fastest first.
fn others(family: Family, scored: &[Scored]) -> Vec<Scored> {
    let mut of_each: BTreeMap<usize, Option<Scored>> = BTreeMap::new();
    for (time, placement) in scored {
        let kind = match family {
            Family::Pipeline => return Vec::new(),
            Family::Streamed => placement.stages.len(),
            Family::Sharded => placement.resident_stages(),
        };
        let best = of_each.entry(kind).or_default();
        *best = faster(best.take(), Some((*time, placement.clone())));
    }
    let mut list: Vec<Scored> = of_each.into_values().flatten().collect();
    list.sort_by_key(|(time, _)| *time);
    let most = list.first().map_or(0.0, |(time, _)| time.to_ms() * reach(family));
    list.into_iter().skip(1).take_while(|(time, _)| time.to_ms() <= most).take(OTHERS).collect()
}
