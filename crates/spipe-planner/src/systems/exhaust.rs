//! Systems of which every placement is tried, because there are few: what remains is the best, and proven.

use crate::{
    Problem,
    case::{Scored, faster, judge},
    deadline::Deadline,
    every::of_figures,
    figures::Figures,
};
use rayon::prelude::*;
use spipe_plan::{Placement, System};

/// How many are simulated before what they found keeps others from being simulated.
const BATCH: usize = 64;

/// The fastest placement of `system` that takes less than `limit` ms, and how many were simulated; nothing where there are too many to
/// try, or no time.
pub(super) fn fastest(
    (problem, figures): (&Problem<'_>, &Figures<'_>),
    deadline: &Deadline<'_>,
    (system, limit): (System, f64),
) -> Option<(Option<Scored>, usize)> {
    let mut list: Vec<(f64, Placement)> = of_figures(figures, system, problem.options.every_limit)?
        .into_par_iter()
        .map(|placement| (busiest(figures, &placement), placement))
        .filter(|(busy, _)| *busy < limit)
        .collect();
    list.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (mut best, mut examined): (Option<Scored>, usize) = (None, 0);
    for batch in list.chunks(BATCH) {
        let limit = best.as_ref().map_or(limit, |(time, _)| time.to_ms());
        let batch = &batch[..batch.partition_point(|(busy, _)| *busy < limit)];
        if batch.is_empty() {
            break;
        }
        let scored: Vec<Option<Scored>> = batch
            .par_iter()
            .map(|(_, placement)| if deadline.over() { None } else { judge(problem, placement.clone()) })
            .collect();
        if deadline.over() {
            return None;
        }
        examined += batch.len();
        best = scored.into_iter().fold(best, faster);
    }
    Some((best.filter(|(time, _)| time.to_ms() < limit), examined))
}

/// For how long the busiest device computes, in ms: no iteration is shorter.
fn busiest(figures: &Figures<'_>, placement: &Placement) -> f64 {
    let mut busy = vec![0.0; figures.devices.len()];
    let m = figures.microbatches as f64;
    for stage in &placement.stages {
        let device = &figures.devices[stage.device.index()];
        for times in stage.layers.iter().filter_map(|layer| device.times[layer.index()]) {
            busy[stage.device.index()] += m * times.forward;
        }
    }
    for stage in placement.backward_stages().iter().filter(|_| figures.training) {
        let device = &figures.devices[stage.device.index()];
        for (index, layer) in stage.layers.iter().enumerate() {
            let times = device.times[layer.index()].unwrap_or_default();
            let again = if index < stage.recomputed && times.backward > 0.0 { times.forward } else { 0.0 };
            busy[stage.device.index()] += m * (times.backward + again);
        }
    }
    busy.into_iter().fold(0.0, f64::max)
}
