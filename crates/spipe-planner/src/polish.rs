//! Small changes of a division for as long as they shorten its period, without simulation.
//!
//! The changes: one stage gives one, two or four layers to another, so that all boundaries between the two move; or another thing is
//! what the host does for a stage. Every stage has the least recompute with which it fits.

use crate::{
    case::{Case, Division},
    figures::Figures,
    order::OrderGraph,
    partition::Partitioner,
};

/// How many changes are made at most.
const STEPS: usize = 200;

/// How many layers a stage gives to another.
const GIFTS: [usize; 3] = [1, 2, 4];

/// A decided case with a division.
pub(crate) type Decided = (Division, Case);

/// `start`, improved until no change shortens its period, or `over` says so.
pub(crate) fn polish(
    figures: &Figures<'_>,
    partitioner: &Partitioner<'_, '_>,
    start: Decided,
    over: impl Fn() -> bool,
) -> Decided {
    let mut best = (period(figures, &start), start);
    for _ in 0..STEPS {
        let mut next: Option<(f64, Decided)> = None;
        for neighbour in neighbours(figures, partitioner, &best.1) {
            if over() {
                return best.1;
            }
            let period = period(figures, &neighbour);
            if period < next.as_ref().map_or(best.0 * (1.0 - 1e-9), |(least, _)| *least) {
                next = Some((period, neighbour));
            }
        }
        match next {
            Some(next) => best = next,
            None => break,
        }
    }
    best.1
}

fn period(figures: &Figures<'_>, (division, case): &Decided) -> f64 {
    OrderGraph::new(figures, case).period(&case.times(figures, division)).0
}

fn neighbours(figures: &Figures<'_>, partitioner: &Partitioner<'_, '_>, now: &Decided) -> Vec<Decided> {
    let (division, case) = now;
    let stages = case.stages();
    let mut list = Vec::new();
    for (giver, taker) in (0..stages).flat_map(|giver| (0..stages).map(move |taker| (giver, taker))) {
        for gift in GIFTS.into_iter().filter(|_| giver != taker) {
            let mut ends = division.ends.clone();
            for end in &mut ends[giver.min(taker)..giver.max(taker)] {
                *end = if giver < taker { end.saturating_sub(gift) } else { *end + gift };
            }
            list.extend(fitted(partitioner, ends, case.clone()));
        }
    }
    for stage in 0..stages {
        for help in figures.helps(case.devices[stage]).iter().filter(|help| **help != case.help(stage)) {
            let mut case = case.clone();
            case.seats[stage].help = Some(*help);
            list.extend(fitted(partitioner, division.ends.clone(), case));
        }
    }
    list
}

/// The division that ends there, if every stage has a layer and fits.
fn fitted(partitioner: &Partitioner<'_, '_>, ends: Vec<usize>, case: Case) -> Option<Decided> {
    if ends[0] == 0 || !ends.is_sorted_by(|one, next| one < next) {
        return None;
    }
    let mut from = 0;
    let mut recomputed = Vec::with_capacity(ends.len());
    for (stage, to) in ends.iter().enumerate() {
        recomputed.push(partitioner.least(&case, stage, from, *to)?);
        from = *to;
    }
    Some((Division { ends, recomputed }, case))
}
