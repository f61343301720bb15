//! Small changes of a division for as long as they shorten its period, without simulation.
//!
//! The changes: one stage gives one, two or four layers to another, so that all boundaries between the two move; or another thing is
//! what the host does for a stage. Every stage has the least recompute with which it fits.

use crate::{
    bounds::partition_dp::partitioner::Partitioner,
    costs::CostSums,
    score::event_graph::EventGraph,
    space::subproblem::{Partition, Subproblem},
};

/// How many changes are made at most.
const STEPS: usize = 200;

/// How many layers a stage gives to another.
const GIFTS: [usize; 3] = [1, 2, 4];

/// A decided case with a division.
pub(crate) type Decided = (Partition, Subproblem);

/// `start`, improved until no change shortens its period, or `over` says so.
pub(crate) fn polish(
    costs: &CostSums<'_>,
    partitioner: &Partitioner<'_, '_>,
    start: Decided,
    over: impl Fn() -> bool,
) -> Decided {
    let mut best = (period(costs, &start), start);
    for _ in 0..STEPS {
        let mut next: Option<(f64, Decided)> = None;
        for neighbour in neighbours(costs, partitioner, &best.1) {
            if over() {
                return best.1;
            }
            let period = period(costs, &neighbour);
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

fn period(costs: &CostSums<'_>, (partition, case): &Decided) -> f64 {
    EventGraph::new(costs, case).period(&case.times(costs, partition)).0
}

fn neighbours(costs: &CostSums<'_>, partitioner: &Partitioner<'_, '_>, now: &Decided) -> Vec<Decided> {
    let (partition, case) = now;
    let stages = case.stages();
    let mut list = Vec::new();
    for (giver, taker) in (0..stages).flat_map(|giver| (0..stages).map(move |taker| (giver, taker))) {
        for gift in GIFTS.into_iter().filter(|_| giver != taker) {
            let mut ends = partition.ends.clone();
            for end in &mut ends[giver.min(taker)..giver.max(taker)] {
                *end = if giver < taker { end.saturating_sub(gift) } else { *end + gift };
            }
            list.extend(fitted(partitioner, ends, case.clone()));
        }
    }
    for stage in 0..stages {
        for host_offload in costs
            .host_offloads(case.devices[stage])
            .iter()
            .filter(|host_offload| **host_offload != case.host_offload(stage))
        {
            let mut case = case.clone();
            case.seats[stage].host_offload = Some(*host_offload);
            list.extend(fitted(partitioner, partition.ends.clone(), case));
        }
    }
    list
}

/// The division that ends there, if every stage has a layer and fits.
fn fitted(partitioner: &Partitioner<'_, '_>, ends: Vec<usize>, case: Subproblem) -> Option<Decided> {
    if ends[0] == 0 || !ends.is_sorted_by(|one, next| one < next) {
        return None;
    }
    let mut from = 0;
    let mut recomputed = Vec::with_capacity(ends.len());
    for (stage, to) in ends.iter().enumerate() {
        recomputed.push(partitioner.least(&case, stage, from, *to)?);
        from = *to;
    }
    Some((Partition { ends, recomputed }, case))
}
