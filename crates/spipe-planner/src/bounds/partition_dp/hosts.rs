//! Bytes that the stages of a partition need in host memories.

use crate::bounds::partition_dp::{At, PartitionSearch, SOCKETS, StageChoice, Suffix};

impl PartitionSearch<'_, '_> {
    /// Returns the bytes in host memories; none where they do not fit. A stage that shares a memory
    /// may recompute more than it would alone, so the smaller need counts.
    pub(super) fn held(
        &self,
        at: &At<'_>,
        (from, to): (usize, usize),
        (choice, helper): (&StageChoice, Option<usize>),
        next: Option<&Suffix>,
    ) -> Option<[u64; SOCKETS]> {
        let mut held = next.map_or([0; SOCKETS], |next| next.held);
        let (_, most) = at.device.recomputes(self.costs.training, from, to)?;
        if let Some(home) = at.home {
            let need = |recomputed: usize| at.device.need(at.stage_slot, (from, to), recomputed);
            held[home] += need(choice.recomputed).min(need(most));
        }
        if let Some(helper) = helper {
            held[helper] += at.device.need_of_host(at.stage_slot, choice.host_offload, (from, to), most);
        }
        held.iter().zip(&self.usable).all(|(held, usable)| held <= usable).then_some(held)
    }
}
