//! Runs of equal layers.

use crate::costs::CostSums;

/// Returns the run of equal layers around `layer`: its first layer and count.
pub(crate) fn run(costs: &CostSums<'_>, layer: usize) -> (usize, usize) {
    costs.runs[costs.runs.partition_point(|(first, _)| *first <= layer) - 1]
}

/// Whether layers `from..to` are all equal.
pub(crate) fn same(costs: &CostSums<'_>, from: usize, to: usize) -> bool {
    let (first, count) = run(costs, from);
    to <= first + count
}
