//! From the best of all hints uphill: a layer more or less for a device, and more or less for hosts to step or to hold.

use crate::candidates::packed::Point;
use crate::{
    bounds::one_stage_relaxation::Hint,
    costs::CostSums,
    problem::{Deadline, Problem},
    score::judge::{Scored, judge_within},
};
use fastrand::Rng;
use rayon::prelude::*;
use spipe_base::{LayerRange, SimTime, StageId};
use spipe_plan::Stage;

/// Beyond so many layers not.
const MOST_LAYERS: usize = 256;

/// How many points are looked at before the best of them is gone on from.
const BATCH: usize = 8;

/// How many layers change their device.
const LAYERS: [isize; 4] = [-1, 1, -2, 2];

/// By which factors hosts step more or less, and activations are longer or shorter on their way.
const FACTORS: [f64; 4] = [0.8, 1.25, 0.5, 1.6];

/// How many layers are recomputed together at most.
const LENGTHS: [usize; 4] = [1, 2, 4, 8];

/// The part of an iteration that is added to what is nothing, so that there is something.
const SOME: f64 = 0.02;

/// Where random numbers begin.
const SEED: u64 = 1;

/// Simulated placements near `hints`, and that to which changes lead uphill from the best of them, until it takes no more than `enough` ms, or
/// the deadline; and how many were simulated.
pub(crate) fn best(
    (problem, costs): (&Problem<'_>, &CostSums<'_>),
    hints: &[Hint],
    (enough, until): (f64, &Deadline<'_>),
) -> (Vec<Scored>, usize) {
    if costs.layers > MOST_LAYERS {
        return (Vec::new(), 0);
    }
    let points: Vec<Point> = hints.iter().flat_map(|hint| Point::near(costs, hint)).collect();
    let climb = Climb { problem, costs, until };
    let (mut all, mut examined) = climb.scored(points, SimTime::MAX);
    all.sort_by_key(|((time, _), _)| *time);
    let mut list: Vec<Scored> = all.iter().map(|(scored, _)| scored.clone()).collect();
    let iteration = hints.first().map_or(0.0, |hint| hint.iteration);
    let mut random = Rng::with_seed(SEED);
    let Some((mut here, mut point)) = all.into_iter().next() else { return (list, examined) };
    while here.0.to_ms() > enough {
        let mut neighbours = climb.neighbours(&point, iteration);
        random.shuffle(&mut neighbours);
        let mut higher = None;
        for batch in neighbours.chunks(BATCH) {
            if until.over() {
                break;
            }
            let (scored, looked) = climb.scored(batch.to_vec(), here.0);
            examined += looked;
            let best = scored.into_iter().min_by_key(|((time, _), _)| *time);
            higher = best.filter(|((time, _), _)| *time < here.0);
            if higher.is_some() {
                break;
            }
        }
        let Some(next) = higher else { break };
        (here, point) = next;
    }
    if list.first() != Some(&here) {
        list.push(here);
    }
    (list, examined)
}

struct Climb<'c, 'a> {
    problem: &'c Problem<'a>,
    costs: &'c CostSums<'a>,
    until: &'c Deadline<'c>,
}

impl Climb<'_, '_> {
    /// The best placement of each point, if it takes no longer than `limit`, and how many were simulated.
    fn scored(&self, points: Vec<Point>, limit: SimTime) -> (Vec<(Scored, Point)>, usize) {
        let of_point = |point: Point| {
            if self.until.over() {
                return (None, 0);
            }
            let placements = point.placements(self.costs);
            let looked = placements.len();
            let scored = placements.into_iter().filter_map(|placement| judge_within(self.problem, placement, limit));
            (scored.min_by_key(|(time, _)| *time).map(|best| (best, point)), looked)
        };
        let all: Vec<(Option<(Scored, Point)>, usize)> = points.into_par_iter().map(of_point).collect();
        let looked = all.iter().map(|(_, looked)| looked).sum();
        (all.into_iter().filter_map(|(scored, _)| scored).collect(), looked)
    }

    fn neighbours(&self, point: &Point, iteration: f64) -> Vec<Point> {
        let stages = point.plain.stages.len();
        let lengths = LENGTHS.into_iter().filter(|length| *length != point.length);
        let mut list: Vec<Point> = lengths.map(|length| Point { length, ..point.clone() }).collect();
        for stage in 1..stages {
            list.extend(LAYERS.into_iter().filter_map(|count| moved(point, stage, count)));
        }
        let is_gpu = |stage: &usize| !self.costs.context.is_cpu(point.plain.stages[StageId::from(*stage)].device);
        for stage in (0..stages).filter(is_gpu) {
            for factor in FACTORS {
                let changed = |part: f64| if part > 0.0 { factor * part } else { (factor - 1.0) * SOME * iteration };
                let mut hosted = point.clone();
                hosted.hosted[stage] = changed(point.hosted[stage]);
                let mut ways = point.clone();
                ways.ways[stage] = changed(point.ways[stage]);
                list.extend(
                    [hosted, ways].into_iter().filter(|other| other.hosted[stage].min(other.ways[stage]) >= 0.0),
                );
            }
        }
        list
    }
}

/// The same with a stage beginning so many layers later; none where that leaves nothing of it or of the one before.
fn moved(point: &Point, stage: usize, count: isize) -> Option<Point> {
    let mut moved = point.clone();
    let stages = &mut moved.plain.stages;
    let (before, here) = (StageId::from(stage - 1), StageId::from(stage));
    let start = stages[here].layers.first().index().checked_add_signed(count)?;
    let with = |stage: &Stage, first: usize, last: usize| {
        Some(Stage { layers: LayerRange::new(first.into(), last.into())?, recomputed: 0, ..*stage })
    };
    stages[before] = with(&stages[before], stages[before].layers.first().index(), start.checked_sub(1)?)?;
    stages[here] = with(&stages[here], start, stages[here].layers.last().index())?;
    Some(moved)
}
