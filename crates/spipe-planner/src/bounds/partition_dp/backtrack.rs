//! Backtracking: the partition that a label stands for.

use crate::bounds::partition_dp::{StageNode, label::Suffix};
use crate::{
    bounds::partition_dp::partitioner::{Partitioner, some},
    costs::{CostSums, HostOffload},
    space::subproblem::{DecidedPartition, Subproblem},
};

/// Returns the partition of the label with the shortest paths at the
/// first layer, including the steps on `sockets` sockets.
pub(crate) fn trace(case: &Subproblem, first: &StageNode<'_>, sockets: f64) -> Option<DecidedPartition> {
    let ways = &first.ways[0].list;
    let least = |index: &usize| {
        let Suffix { passes, stepped, .. } = ways[*index].behind;
        passes.max(stepped / sockets.max(1.0))
    };
    let mut index = (0..ways.len()).min_by(|one, other| least(one).total_cmp(&least(other)))?;
    let mut decided = DecidedPartition::empty(case.clone());
    let (mut node, mut from) = (Some(first), 0);
    while let Some(here) = node {
        let way = here.ways[from].list[index];
        decided.push(way.to, way.recomputed, way.host_offload);
        (node, from, index) = (here.behind, way.to, way.next);
    }
    Some(decided)
}

/// Returns a partition whose stages fit their devices, each considered alone.
pub(crate) fn any(
    costs: &CostSums<'_>,
    partitioner: &Partitioner<'_, '_>,
    case: &Subproblem,
) -> Option<DecidedPartition> {
    let (layers, stages) = (costs.layers, case.stages());
    let mut next: Vec<Vec<Option<(usize, HostOffload, usize)>>> = vec![vec![None; layers + 1]; stages];
    for stage in (0..stages.min(layers)).rev() {
        let choices = partitioner.choices(case.stage_slots[stage])?;
        let farthest = layers.checked_sub(stages - 1 - stage)?;
        for from in if stage == 0 { 0..1 } else { stage..layers } {
            let nearest = if stage + 1 == stages { layers } else { from + 1 };
            let goes_on = |to: &usize| stage + 1 == stages || next[stage + 1][*to].is_some();
            next[stage][from] = (nearest..=farthest).rev().filter(goes_on).find_map(|to| {
                let fits = |(host_offload, table): &(HostOffload, &[u16])| {
                    Some((to, *host_offload, some(table[from * (layers + 1) + to])?))
                };
                choices.iter().find_map(fits)
            });
        }
    }
    let (mut decided, mut from) = (DecidedPartition::empty(case.clone()), 0);
    for next in next {
        let (to, host_offload, recomputed) = next[from]?;
        decided.push(to, recomputed, host_offload);
        from = to;
    }
    Some(decided)
}
