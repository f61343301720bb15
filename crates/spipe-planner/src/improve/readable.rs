//! Plans that are easier to read: fewer runs of layers with different choices, then fewer stages.

use crate::{
    problem::{Deadline, Problem},
    score::judge::{Scored, judge_within},
};
use spipe_base::{LayerRange, SimTime};
use spipe_plan::{Placement, Stage};

/// The most placements that are simulated: each accepted one starts the list of changes anew.
const MOST: usize = 48;

/// Returns the number of runs of consecutive layers on one device with the same choices: home of
/// the parameters, of the activations and of the optimizer, and recompute. Stages of the backward
/// alone count too.
pub fn runs_of_layers(placement: &Placement) -> usize {
    let of = |stages: &[Stage]| {
        let choices: Vec<(Stage, bool)> = stages.iter().flat_map(parts).collect();
        choices.chunk_by(|one, other| alike(&one.0, &other.0) && one.1 == other.1).count()
    };
    of(placement.stages.as_slice()) + of(placement.backward.as_slice())
}

/// Returns a plan with as few runs and stages as single changes of `start` lead to, of at most
/// `most` per iteration.
///
/// A change gives a run of stages the choices of a neighbour, recomputes all or none of a stage's
/// layers, or joins the stages of a run. The first of them, by number of runs and stages, that is
/// accepted and fast enough is taken, until there is none.
pub fn readable(problem: &Problem<'_>, start: Scored, most: SimTime) -> Scored {
    let deadline = Deadline::new(problem);
    let (mut best, mut simulated) = (start, 0);
    loop {
        let mut changes = changes(&best.1);
        changes.retain(|placement| size(placement) < size(&best.1));
        changes.sort_by_key(size);
        let mut next = None;
        for placement in changes {
            if simulated >= MOST.min(problem.most_refinements()) || deadline.over() {
                return best;
            }
            simulated += 1;
            next = judge_within(problem, placement, most).filter(|(time, _)| *time <= most);
            if next.is_some() {
                break;
            }
        }
        match next {
            Some(next) => best = next,
            None => return best,
        }
    }
}

/// Runs of layers, then stages.
fn size(placement: &Placement) -> (usize, usize) {
    (runs_of_layers(placement), placement.stages.len())
}

/// Returns the recomputed and the other layers of a stage, where it has such.
fn parts(stage: &Stage) -> impl Iterator<Item = (Stage, bool)> {
    let (some, all) = (stage.recomputed > 0, stage.recomputed == stage.layers.count());
    [some.then_some((*stage, true)), (!all).then_some((*stage, false))].into_iter().flatten()
}

/// Whether two stages have the same device and the same homes of their data.
fn alike(one: &Stage, other: &Stage) -> bool {
    let homes = |stage: &Stage| (stage.lead(), stage.weights, stage.offload, stage.optimizer, stage.state);
    homes(one) == homes(other)
}

/// Returns the placements that one change leads to.
fn changes(placement: &Placement) -> Vec<Placement> {
    if !placement.backward.is_empty() {
        return Vec::new();
    }
    let stages = placement.stages.as_slice();
    let with = |stages: Vec<Stage>| Placement { stages: stages.into_iter().collect(), ..placement.clone() };
    let mut list = Vec::new();
    for (index, stage) in stages.iter().enumerate() {
        for recomputed in [0, stage.layers.count()] {
            if stage.recomputed != recomputed && stage.recomputed != 0 && stage.recomputed != stage.layers.count() {
                let mut changed = stages.to_vec();
                changed[index] = stage.with_recomputed(recomputed);
                list.push(with(changed));
            }
        }
    }
    let runs: Vec<&[Stage]> = stages.chunk_by(|one, other| alike(one, other) && whole(one) == whole(other)).collect();
    for (index, run) in runs.iter().enumerate() {
        let around = [index.checked_sub(1), Some(index + 1)].into_iter().flatten();
        for neighbour in around.filter_map(|at| runs.get(at)).map(|run| run[0]) {
            if neighbour.team == run[0].team {
                let changed = |stage: &Stage| like(stage, &neighbour);
                let all = runs.iter().enumerate().flat_map(|(at, run)| {
                    let change = at == index;
                    run.iter().map(move |stage| if change { changed(stage) } else { *stage })
                });
                list.push(with(all.collect()));
            }
        }
        if let Some(joined) = joined(run).filter(|_| run.len() > 1) {
            let before = runs[..index].concat();
            list.push(with(before.into_iter().chain([joined]).chain(runs[index + 1..].concat()).collect()));
        }
    }
    list
}

/// Whether all layers of a stage are recomputed; `None` if some are.
fn whole(stage: &Stage) -> Option<bool> {
    match stage.recomputed {
        0 => Some(false),
        all if all == stage.layers.count() => Some(true),
        _ => None,
    }
}

/// Returns `stage` with the choices of `other`.
fn like(stage: &Stage, other: &Stage) -> Stage {
    let recomputed = if whole(other) == Some(true) { stage.layers.count() } else { 0 };
    Stage { layers: stage.layers, recomputed, ..*other }
}

/// Returns the stages of a run as one.
fn joined(run: &[Stage]) -> Option<Stage> {
    let (first, last) = (run.first()?, run.last()?);
    let layers = LayerRange::new(first.layers.first(), last.layers.last())?;
    let recomputed = if whole(first) == Some(true) { layers.count() } else { 0 };
    Some(Stage { layers, recomputed, ..*first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use spipe_base::DeviceId;
    use spipe_plan::System;

    fn stage(device: usize, first: usize, last: usize, recomputed: usize) -> Stage {
        let layers = LayerRange::new(first.into(), last.into()).unwrap();
        Stage { recomputed, ..Stage::new(DeviceId::from(device), layers) }
    }

    #[test]
    fn runs_are_counted_by_choices_and_not_by_stages() {
        let of = |stages: Vec<Stage>| runs_of_layers(&Placement::new(System::Superpipeline, stages));
        assert_eq!(of(vec![stage(0, 0, 0, 0), stage(0, 1, 1, 0), stage(0, 2, 3, 0)]), 1);
        assert_eq!(of(vec![stage(0, 0, 1, 0), stage(1, 2, 3, 0)]), 2);
        assert_eq!(of(vec![stage(0, 0, 3, 2)]), 2, "a part of the layers is recomputed");
        assert_eq!(of(vec![stage(0, 0, 1, 2), stage(0, 2, 3, 1)]), 2, "recomputed layers of two stages are one run");
    }

    #[test]
    fn every_change_keeps_the_layers() {
        let placement = Placement::new(
            System::Superpipeline,
            [stage(0, 0, 0, 0), stage(0, 1, 2, 2), stage(0, 3, 4, 2), stage(0, 5, 8, 1), stage(1, 9, 9, 0)],
        );
        let changes = changes(&placement);
        assert!(changes.len() >= 6, "{}", changes.len());
        for changed in &changes {
            let layers: Vec<usize> =
                changed.stages.iter().flat_map(|stage| stage.layers.iter()).map(|l| l.index()).collect();
            assert_eq!(layers, (0..10).collect::<Vec<_>>());
            assert!(changed.stages.iter().all(|stage| stage.recomputed <= stage.layers.count()));
        }
        let least = changes.iter().map(size).min();
        assert!(least < Some(size(&placement)));
    }
}
