//! Collectives: all-gather of parameters, and reduce-scatter of gradients.

use super::ShardedLowering;
use crate::lower::flows::route;
use crate::{Access, Content, Flow, Lifetime, NewAction};
use spipe_base::{ActionId, ActionKind, BufferId, Bytes, Collective, LaneId, MemoryId, Payload, SimTime, Subject};
use spipe_hardware::CollectiveKind;

/// A tensor that all devices gather or reduce together.
pub(super) struct Whole {
    pub subject: Subject,
    pub content: Content,
    /// The size of the whole tensor.
    pub whole: Bytes,
    /// The size of a device's shard.
    pub shard: Bytes,
}

impl ShardedLowering<'_> {
    /// Adds the gather of a stage's parameters on a device: its own shard from the host, if it is
    /// there, and the others from the other devices. A single device copies the whole tensor from
    /// the host.
    pub(super) fn gather_whole(&mut self, at: usize, owner: usize, what: &Whole) -> BufferId {
        let here = &self.participants[at];
        let (memory, lane, part) = (here.memory, here.collective, &here.parts[owner]);
        let home = part.home;
        let mut own = self.shard(at, owner, what.content);
        let mut first = None;
        let whole = self.builder.buffer(what.content, memory, what.whole, Lifetime::Transient);
        if home != memory && self.devices.len() == 1 {
            let kind = ActionKind::Copy(Payload::WeightsIn);
            let accesses = (vec![own], vec![Access::new(whole, 1)]);
            let copy = self.copy(at, (kind, what.subject), (home, memory, what.whole), accesses);
            self.uses_shard(at, copy);
            self.make_room(at, (copy, copy));
            return whole;
        }
        if home != memory {
            let arrived = (what.shard, Lifetime::Transient);
            let arrived = self.builder.part(self.share(at), what.content, memory, arrived);
            let kind = ActionKind::Copy(Payload::WeightsIn);
            let ends = (home, memory, what.shard);
            let copy = self.copy(at, (kind, what.subject), ends, (vec![own], vec![Access::new(arrived, 1)]));
            self.uses_shard(at, copy);
            first = Some(copy);
            own = Access::new(arrived, 1);
        }
        let others = (0..self.participants.len()).filter(|other| *other != at);
        let reads = std::iter::once(own).chain(others.clone().map(|other| self.shard(other, owner, what.content)));
        let reads = (reads.collect(), vec![Access::new(whole, 1)]);
        let gather = self.collective(at, lane, (Collective::AllGather, what), reads);
        others.for_each(|other| self.uses_shard(other, gather));
        self.make_room(at, (first.unwrap_or(gather), gather));
        whole
    }

    /// Adds the reduce-scatter of `gradients` on a device: its shard is added to the sum in memory
    /// `home`, whose version is the number of earlier additions.
    pub(super) fn reduce_whole(
        &mut self,
        at: usize,
        what: &Whole,
        (sum, home): (Access, MemoryId),
        gradients: &[BufferId],
    ) -> ActionId {
        let here = &self.participants[at];
        let (memory, lane) = (here.memory, here.collective);
        let mut reads: Vec<Access> = gradients.iter().map(|gradients| Access::new(*gradients, 1)).collect();
        let added = (sum.version > 0).then_some(sum);
        let next = Access::new(sum.buffer, sum.version + 1);
        if home == memory {
            reads.extend(added);
            return self.collective(at, lane, (Collective::ReduceScatter, what), (reads, vec![next]));
        }
        if self.devices.len() > 1 {
            let leaving = self.builder.part(self.share(at), what.content, memory, (what.shard, Lifetime::Transient));
            let leaving = Access::new(leaving, 1);
            self.collective(at, lane, (Collective::ReduceScatter, what), (reads, vec![leaving]));
            reads = vec![leaving];
        }
        reads.extend(added);
        let out = (ActionKind::Copy(Payload::GradientsOut), what.subject);
        self.copy(at, out, (memory, home, what.shard), (reads, vec![next]))
    }

    fn collective(
        &mut self,
        at: usize,
        lane: LaneId,
        (collective, what): (Collective, &Whole),
        (reads, writes): (Vec<Access>, Vec<Access>),
    ) -> ActionId {
        let flows = self.ring(at, (collective, what.whole));
        let (kind, subject) = (ActionKind::Collective(collective), what.subject);
        self.builder.action(NewAction { lane, kind, subject, reads, writes, work: SimTime::ZERO, flows, guard: None })
    }

    /// The flow of a collective to a device from the one before it in a ring or, over computers, in several.
    pub(super) fn ring(&mut self, at: usize, (collective, bytes): (Collective, Bytes)) -> Vec<Flow> {
        let count = self.devices.len();
        if count == 1 {
            return Vec::new();
        }
        let here = &self.participants[at];
        if let Some(hops) = self.hops.get(at) {
            let kind = match collective {
                Collective::AllGather => CollectiveKind::AllGather,
                Collective::ReduceScatter => CollectiveKind::ReduceScatter,
                Collective::AllReduce => CollectiveKind::AllReduce,
            };
            return hops.flows(self.context.hardware, (kind, bytes));
        }
        let before = self.context.hardware.devices()[self.devices[(at + count - 1) % count]].memory;
        let bytes = Bytes::new(bytes.get() / count as u64 * (count as u64 - 1));
        let flow = route(self.context, before, here.memory, bytes);
        flow.map_err(|fault| self.faults.push(fault)).into_iter().collect()
    }
}
