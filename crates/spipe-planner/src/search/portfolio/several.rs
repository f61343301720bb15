//! Several stages on a device: what bounds them, and where they may be.

use crate::{
    bounds::one_stage_relaxation,
    candidates::{from_milp, hinted, levelled, packed, topology_order::apart},
    search::portfolio::{PROMISING, Search},
};
use crate::{
    bounds::one_stage_relaxation::{Hint, MOST_HINTS},
    formulation::assignment::least,
    score::judge::{Scored, judge_within},
};
use rayon::prelude::*;
use spipe_base::SimTime;
use spipe_plan::{Placement, System};

/// How many hundredths of the time that is left programs of counts may take that place several stages on devices of planned systems.
const PERCENT_OF_CUTS: u32 = 16;

/// The same for what single stages on a device bound.
const PERCENT_OF_SINGLE: u32 = 15;

/// The same for placements whose GPUs have least to do.
const PERCENT_OF_PACKED: u32 = 14;

/// Which part of the time that is left may be taken by what then bounds them.
const PART_OF_BOUND: u32 = 8;

/// Stages are bounded by no more than so many times as long as they could be at least by what keeps devices busy; then by so many times that.
const REACH: f64 = 1.25;

/// Where a plan takes so many times as long as what bounds stages, those of several stages on a device are tried first.
const FAR_FROM_STAGES: f64 = 1.1;

impl Search<'_, '_> {
    /// No placement of stages takes less, in ms, however many of them its devices have.
    pub(crate) fn least_of_staged(&self) -> f64 {
        self.staged.iter().map(|(_, least)| *least).fold(f64::INFINITY, f64::min)
    }

    /// Bounds those systems whose stages are planned, and finds where their stages may be. Where all plans are far from that, those with
    /// several stages on a device come first: what one stage on each can do would not be worth the time.
    pub(crate) fn bound_stages(&mut self, planned: &[System]) {
        let pins = &self.problem.options.pins;
        let of_system = |system: &System| least((&self.costs, pins), *system, Some(&self.deadline));
        self.staged = planned.iter().map(|system| (*system, of_system(system))).collect();
        let (limit, known) = (self.limit(), self.least_of_staged());
        if !self.costs.training || known >= limit || known <= 0.0 || self.deadline.over() {
            return;
        }
        // With more time sockets could have so many layers that there would be too many sequences of devices: that only as far as it matters.
        let mut high = limit.min(REACH * known);
        while let Some(single) = one_stage_relaxation::Staged::new((self.problem, &self.costs), high, &self.deadline) {
            self.bound_single(&single, (high, limit.min(REACH * high)));
            if self.least_of_staged() < high || high >= limit || self.deadline.over() {
                break;
            }
            high = limit.min(REACH * high);
        }
        self.hints = most_promising(std::mem::take(&mut self.hints));
        if limit > FAR_FROM_STAGES * self.least_of_staged() {
            self.try_hints();
        }
    }

    /// Raises the bounds of stages as far as `high` ms by those of single ones, and finds where stages may be that take less than `most`.
    fn bound_single(&mut self, single: &one_stage_relaxation::Staged<'_, '_>, (high, most): (f64, f64)) {
        for (system, least) in &mut self.staged {
            if *least < high {
                let until = self.deadline.percent(PERCENT_OF_SINGLE);
                let (bound, hints) = single.least((*system, &self.costs), (*least, high, most), &until);
                *least = bound;
                self.hints.extend(hints);
            }
        }
    }

    /// Simulates placements with several stages on a device near those that bounds do not refuse.
    fn try_hints(&mut self) {
        let hints = std::mem::take(&mut self.hints);
        let until = self.deadline.percent(PERCENT_OF_PACKED);
        let enough = self.least_of_staged() / (1.0 - self.problem.options.gap.clamp(0.0, 0.5));
        let (packed, examined) = packed::best((self.problem, &self.costs), &hints, (enough, &until));
        self.looked += examined;
        self.short.extend(packed);
        let of_hint = |hint: &Hint| {
            let plain = &hint.placement;
            let levelled = levelled::placements(&self.costs, &apart(&self.costs, plain), &self.deadline);
            hinted::placements(&self.costs, plain).into_iter().chain(levelled)
        };
        let others: Vec<Placement> = hints.iter().take(MOST_HINTS).flat_map(of_hint).collect();
        self.looked += self.try_short(others);
        // Whatever the planner of stages finds is of interest only where it is better.
        self.begun.extend(self.short.iter().min_by_key(|(time, _)| *time).cloned());
    }

    /// Places several stages on the devices of those systems whose stages are planned and for which that may still be faster.
    pub(crate) fn cut(&mut self) {
        let Some(index) = self.planned.filter(|_| self.costs.training) else { return };
        self.looked = 0;
        if !self.hints.is_empty() && self.least_of_staged() < self.limit() && !self.deadline.over() {
            self.try_hints();
        }
        for number in 0..self.staged.len() {
            let ((system, least), limit) = (self.staged[number], self.limit());
            if least >= limit || self.deadline.over() {
                continue;
            }
            let until = self.deadline.percent(PERCENT_OF_CUTS);
            let counted = from_milp::placements(&self.costs, system, (limit, &until));
            let bound = || from_milp::least(&self.costs, system, (limit, self.deadline.left() / PART_OF_BOUND));
            let others = if counted.open { bound() } else { 0.0 };
            self.staged[number].1 = least.max(counted.least).max(others);
            self.looked += self.try_short(counted.placements);
        }
        self.short.sort_by_key(|(time, _)| *time);
        // The search may have begun with one of them.
        self.short.dedup();
        self.systems[index].examined += self.looked;
        self.systems[index].bound = self.least_of_staged();
    }

    /// Simulates placements with several stages on a device; how many.
    fn try_short(&mut self, placements: Vec<Placement>) -> usize {
        let best = self.best().into_iter().chain(self.short.iter().cloned()).map(|(time, _)| time).min();
        let limit = best.map_or(SimTime::MAX, |best| SimTime::ns((PROMISING * best.as_ns() as f64) as u64));
        let look = |placement| (!self.deadline.over()).then(|| judge_within(self.problem, placement, limit));
        let tried: Vec<Option<Scored>> = placements.into_par_iter().filter_map(look).collect();
        let looked = tried.len();
        self.short.extend(tried.into_iter().flatten());
        looked
    }
}

/// For each part of an iteration that activations may be on their way, the hints of the shortest iterations, whatever the system.
fn most_promising(mut hints: Vec<Hint>) -> Vec<Hint> {
    hints.sort_by(|one, other| other.ways.total_cmp(&one.ways).then(one.iteration.total_cmp(&other.iteration)));
    let mut kept: Vec<Hint> = Vec::new();
    for hint in hints {
        if kept.iter().filter(|other| other.ways.total_cmp(&hint.ways).is_eq()).count() < MOST_HINTS {
            kept.push(hint);
        }
    }
    kept
}
