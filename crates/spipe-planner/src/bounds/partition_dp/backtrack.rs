//! Backtracking: the partition that a label stands for.

use crate::bounds::partition_dp::{StageNode, label::Suffix};
use crate::{
    bounds::partition_dp::partitioner::{Partitioner, some},
    costs::{CostSums, HostOffload},
    space::subproblem::{Partition, Subproblem},
};

/// A partition that meets all bounds.
#[derive(Clone, Debug)]
pub(crate) struct DecidedPartition {
    pub partition: Partition,
    /// The subproblem with every host offload decided.
    pub case: Subproblem,
}

/// Returns the partition and the decided subproblem of the label with the shortest paths at the
/// first layer, including the steps on `sockets` sockets.
pub(crate) fn trace(case: &Subproblem, first: &StageNode<'_>, sockets: f64) -> Option<DecidedPartition> {
    let ways = &first.ways[0].list;
    let least = |index: &usize| {
        let Suffix { passes, stepped, .. } = ways[*index].behind;
        passes.max(stepped / sockets.max(1.0))
    };
    let mut index = (0..ways.len()).min_by(|one, other| least(one).total_cmp(&least(other)))?;
    let mut partition = Partition { ends: Vec::new(), recomputed: Vec::new() };
    let mut decided = case.clone();
    let (mut node, mut from) = (Some(first), 0);
    while let Some(here) = node {
        let way = here.ways[from].list[index];
        decided.stage_slots[partition.ends.len()].host_offload = Some(way.host_offload);
        partition.ends.push(way.to);
        partition.recomputed.push(way.recomputed);
        (node, from, index) = (here.behind, way.to, way.next);
    }
    Some(DecidedPartition { partition, case: decided })
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
            let found = (nearest..=farthest).rev().filter(goes_on).find_map(|to| {
                let fits = |(host_offload, table): &(HostOffload, &[u16])| {
                    Some((to, *host_offload, some(table[from * (layers + 1) + to])?))
                };
                choices.iter().find_map(fits)
            });
            next[stage][from] = found;
        }
    }
    let (mut partition, mut decided) = (Partition { ends: Vec::new(), recomputed: Vec::new() }, case.clone());
    let mut from = 0;
    for (stage, next) in next.iter().enumerate() {
        let (to, host_offload, recomputed) = next[from]?;
        partition.ends.push(to);
        partition.recomputed.push(recomputed);
        decided.stage_slots[stage].host_offload = Some(host_offload);
        from = to;
    }
    Some(DecidedPartition { partition, case: decided })
}
