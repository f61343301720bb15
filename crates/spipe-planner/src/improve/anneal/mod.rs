//! Random changes, also to somewhat slower placements: simulated annealing (Kirkpatrick, Gelatt, Vecchi 1983).
//!
//! Single changes end where each alone gains nothing: what one device no longer steps another one could, for room that a third would have
//! to make. Annealing walks over such ridges. A step draws a few placements, each some small changes away, and goes to the fastest of those
//! that the temperature accepts; it falls from the start of the search to its end.
//!
//! Half of the changes are of stages for which the placement waits, where that is known ([`crate::problem::Insight`]). What is estimated to take
//! longer is drawn again. Where several placements of a step are faster, the next one also tries the changes of the others on top of
//! those of the fastest.
//!
//! Random numbers have a fixed seed and batches a fixed size, so that the result is the same on any number of threads where the number of
//! placements ends the search, and not the time.

mod change;
mod room;

#[cfg(test)]
mod tests;

use crate::improve::BATCH;
use crate::improve::anneal::change::changed;
use crate::{
    costs::CostSums,
    problem::{Deadline, Problem, SYSTEMS},
    score::{
        estimate::estimate,
        judge::{Scored, acceptable},
    },
};
use fastrand::Rng;
use rayon::prelude::*;
use spipe_base::{SimTime, StageId};
use spipe_cost::Mode;
use spipe_plan::{Context, Placement};

/// The temperature at first, as a part of the iteration: by so much slower a placement is accepted once in e times.
const HOT: f64 = 3e-4;

/// A placement that is estimated to take by such a part longer is drawn again, at most so often.
const WORSE: f64 = 2e-3;
const DRAWS: usize = 8;

/// How many changes there are to the next placement.
const CHANGES: [usize; 6] = [1, 1, 2, 2, 3, 4];

/// Where random numbers begin.
const SEED: u64 = 1;

/// Whether placements like this one are annealed.
pub(crate) fn suits(context: &Context<'_>, placement: &Placement) -> bool {
    SYSTEMS.contains(&placement.system) && context.workload().mode == Mode::Train
}

/// The fastest placement on a random way from `start` that simulates up to `most` placements, and how many it drew.
pub(crate) fn anneal(
    (problem, costs): (&Problem<'_>, &CostSums<'_>),
    deadline: &Deadline<'_>,
    (start, most): (Scored, usize),
) -> (Scored, usize) {
    let mut random = Rng::with_seed(SEED);
    let (mut here, mut best) = (start.clone(), start);
    let mut waits = waited_for(problem, &here.1);
    let (mut examined, mut together) = (0, Vec::new());
    let time = deadline.left().as_secs_f64();
    while examined < most && !deadline.over() {
        let spent = (examined as f64 / most as f64).max(1.0 - deadline.left().as_secs_f64() / time);
        let temperature = here.0.to_ms() * HOT * (1.0 - spent).max(0.0);
        let seeds: Vec<u64> = (0..BATCH).map(|_| random.u64(..)).collect();
        examined += BATCH;
        let enough = estimate(costs, &here.1).map_or(f64::INFINITY, |time| time * (1.0 + WORSE));
        let accepted = |(index, seed): (usize, u64)| {
            let mut random = Rng::with_seed(seed);
            let slowest = here.0 + SimTime::ns((-temperature * 1e6 * random.f64().ln()) as u64);
            let promises = |placement: &Placement| estimate(costs, placement).is_none_or(|time| time <= enough);
            let mut drawn = || (0..DRAWS).find_map(|_| drawn(problem, (&here.1, &waits), &mut random).filter(promises));
            let placement = acceptable(problem, together.get(index).cloned().or_else(&mut drawn)?)?;
            let time = (!deadline.over()).then(|| problem.score_within(&placement, slowest)).flatten()?;
            (time <= slowest).then_some((time, placement))
        };
        let accepted: Vec<Option<Scored>> = seeds.into_par_iter().enumerate().map(accepted).collect();
        let mut accepted: Vec<Scored> = accepted.into_iter().flatten().collect();
        accepted.sort_by_key(|(time, _)| *time);
        together.clear();
        if let Some(next) = accepted.first().cloned() {
            let faster = accepted[1..].iter().take_while(|(time, _)| *time < here.0).map(|(_, placement)| placement);
            together = all_together(&here.1, &next.1, faster);
            here = next;
            waits = waited_for(problem, &here.1);
            if here.0 < best.0 {
                best = here.clone();
            }
        }
    }
    (best, examined)
}

/// What `first`, which came of `base`, is with the changes of each of `others`, and with those of all of them up to each.
fn all_together<'p>(
    base: &Placement,
    first: &Placement,
    others: impl Iterator<Item = &'p Placement>,
) -> Vec<Placement> {
    let (mut list, mut sum) = (Vec::new(), first.clone());
    for other in others.take(BATCH / 2) {
        let more = with_changes(base, &sum, other);
        let both = [with_changes(base, first, other), more.clone()];
        list.extend(both.into_iter().flatten());
        sum = more.unwrap_or(sum);
    }
    list.dedup();
    list
}

/// `one` with what differs from `base` in `other`, where it does not differ itself; none where that cannot be said, or is nothing.
fn with_changes(base: &Placement, one: &Placement, other: &Placement) -> Option<Placement> {
    let alike = [one, other].iter().all(|placement| placement.stages.len() == base.stages.len());
    let mut both = Some(one.clone()).filter(|_| alike)?;
    for (id, _) in base.stages.enumerate().filter(|(id, stage)| one.stages[*id] == **stage) {
        both.stages[id] = other.stages[id];
    }
    if one.knobs == base.knobs {
        both.knobs = other.knobs;
    }
    (both != *one).then_some(both)
}

/// The stages for which a placement waits, each with the sum of how long it waits for it and those before it, in ms.
fn waited_for(problem: &Problem<'_>, placement: &Placement) -> Vec<(StageId, f64)> {
    let waits = problem.insight.map(|insight| (insight.waits)(placement)).unwrap_or_default();
    let sum = |sum: &mut f64, (stage, time): (StageId, SimTime)| {
        *sum += time.to_ms();
        Some((stage, *sum))
    };
    waits.into_iter().scan(0.0, sum).collect()
}

/// The stage to change next: half of them one for which the placement waits, the longer the likelier.
fn stage(placement: &Placement, waits: &[(StageId, f64)], random: &mut Rng) -> StageId {
    let known = waits.last().filter(|(_, all)| *all > 0.0 && random.bool());
    let drawn = known.map(|(_, all)| random.f64() * all);
    let waited = drawn.and_then(|drawn| waits.iter().find(|(_, sum)| *sum > drawn)).map(|(stage, _)| *stage);
    let there = waited.filter(|stage| stage.index() < placement.stages.len());
    there.unwrap_or_else(|| StageId::from(random.usize(..placement.stages.len())))
}

/// A placement some changes away; none where nothing has changed.
fn drawn(
    problem: &Problem<'_>,
    (placement, waits): (&Placement, &[(StageId, f64)]),
    random: &mut Rng,
) -> Option<Placement> {
    let (context, host_offload) = (&problem.context, problem.options.host_help);
    let mut other = placement.clone();
    for _ in 0..CHANGES[random.usize(..CHANGES.len())] {
        let stage = stage(&other, waits, random);
        other = changed((context, host_offload), (&other, stage), random).unwrap_or(other);
    }
    if random.bool() {
        other = room::used(context, other, random);
    }
    let other = room::made((context, host_offload), other, random)?;
    (other != *placement).then_some(other)
}
