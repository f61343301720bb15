//! Random changes, also to somewhat slower placements: simulated annealing (Kirkpatrick, Gelatt, Vecchi 1983).
//!
//! Single changes end where each alone gains nothing: what one device no longer steps another one could, for room that a third would have
//! to make. Annealing walks over such ridges. A step draws a few placements, each some small changes away, and goes to the fastest of those
//! that the temperature accepts; it falls from the start of the search to its end.
//!
//! Half of the changes are of stages for which the placement waits, where that is known ([`Problem::waits`]).
//!
//! Random numbers have a fixed seed and batches a fixed size, so that the result is the same on any number of threads where the number of
//! placements ends the search, and not the time.

mod change;
mod room;
#[cfg(test)]
mod tests;

use super::BATCH;
use crate::{
    Problem, SYSTEMS,
    case::{Scored, acceptable},
    deadline::Deadline,
};
use change::changed;
use fastrand::Rng;
use rayon::prelude::*;
use spipe_base::{SimTime, StageId};
use spipe_cost::Mode;
use spipe_plan::{Context, Placement};

/// The temperature at first, as a part of the iteration: by so much slower a placement is accepted once in e times.
const HOT: f64 = 3e-4;

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
    problem: &Problem<'_>,
    deadline: &Deadline<'_>,
    (start, most): (Scored, usize),
) -> (Scored, usize) {
    let mut random = Rng::with_seed(SEED);
    let (mut here, mut best) = (start.clone(), start);
    let mut waits = waited_for(problem, &here.1);
    let mut examined = 0;
    let time = deadline.left().as_secs_f64();
    while examined < most && !deadline.over() {
        let spent = (examined as f64 / most as f64).max(1.0 - deadline.left().as_secs_f64() / time);
        let temperature = here.0.to_ms() * HOT * (1.0 - spent).max(0.0);
        let seeds: Vec<u64> = (0..BATCH).map(|_| random.u64(..)).collect();
        examined += BATCH;
        let accepted = |seed: u64| {
            let mut random = Rng::with_seed(seed);
            let chance = random.f64();
            let placement = acceptable(problem, drawn(problem, (&here.1, &waits), &mut random)?)?;
            let time = (!deadline.over()).then(|| (problem.score)(&placement)).flatten()?;
            let slower = time.to_ms() - here.0.to_ms();
            (slower <= -temperature * chance.ln()).then_some((time, placement))
        };
        let accepted: Vec<Option<Scored>> = seeds.into_par_iter().map(accepted).collect();
        if let Some(next) = accepted.into_iter().flatten().min_by_key(|(time, _)| *time) {
            here = next;
            waits = waited_for(problem, &here.1);
            if here.0 < best.0 {
                best = here.clone();
            }
        }
    }
    (best, examined)
}

/// The stages for which a placement waits, each with the sum of how long it waits for it and those before it, in ms.
fn waited_for(problem: &Problem<'_>, placement: &Placement) -> Vec<(StageId, f64)> {
    let waits = problem.waits.map(|waits| waits(placement)).unwrap_or_default();
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
    let (context, help) = (&problem.context, problem.options.host_help);
    let mut other = placement.clone();
    for _ in 0..CHANGES[random.usize(..CHANGES.len())] {
        let stage = stage(&other, waits, random);
        other = changed((context, help), (&other, stage), random).unwrap_or(other);
    }
    if random.bool() {
        other = room::used(context, other, random);
    }
    let other = room::made((context, help), other, random)?;
    (other != *placement).then_some(other)
}
