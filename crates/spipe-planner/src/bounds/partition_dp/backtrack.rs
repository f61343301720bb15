//! Backtracking: the partition that a label stands for.

use crate::{
    bounds::partition_dp::{StageNode, label::Suffix},
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
