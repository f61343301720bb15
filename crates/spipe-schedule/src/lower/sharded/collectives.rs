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

/// A device's part in the reduction of a tensor's gradients.
pub(super) struct Reduction {
    pub at: usize,
    pub what: Whole,
    /// The sum of its shard, whose version is the number of earlier additions.
    pub sum: Access,
    /// The memory of the sum.
    pub home: MemoryId,
}

impl Reduction {
    /// The sum before, if there is one.
    fn added(&self) -> Option<Access> {
        (self.sum.version > 0).then_some(self.sum)
    }

    fn next(&self) -> Access {
        Access::new(self.sum.buffer, self.sum.version + 1)
    }
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
        if home != memory && self.groups.size() == 1 {
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
        let others = self.group_of(at).filter(|other| *other != at);
        let reads = std::iter::once(own).chain(others.clone().map(|other| self.shard(other, owner, what.content)));
        let reads = (reads.collect(), vec![Access::new(whole, 1)]);
        let flows = self.ring(at, (CollectiveKind::AllGather, what.whole));
        let gather = self.collective(lane, (Collective::AllGather, what.subject), flows, reads);
        others.for_each(|other| self.uses_shard(other, gather));
        self.make_room(at, (first.unwrap_or(gather), gather));
        whole
    }

    /// Adds the reduction of `gradients` on some devices: the reduce-scatter within each group, of which each device adds
    /// its shard to the sum. Where sums are in host memory, groups add up their shards before these leave. Returns the
    /// last action of each device.
    pub(super) fn reduce_whole(&mut self, all: &[Reduction], gradients: &[BufferId]) -> Vec<ActionId> {
        let stays = all.first().is_some_and(|first| first.home == self.participants[first.at].memory);
        if stays {
            return all.iter().map(|this| self.scatter(this, gradients)).collect();
        }
        let leaving = all.iter().map(|this| self.scatter_to_leave(this, gradients)).collect();
        let leaving = match all.first() {
            Some(first) => self.sum_over_groups(&first.what, leaving),
            None => leaving,
        };
        all.iter().zip(leaving).map(|(this, leaving)| self.leave(this, leaving)).collect()
    }

    /// Adds a reduce-scatter whose result is added to the sum on the device.
    fn scatter(&mut self, this: &Reduction, gradients: &[BufferId]) -> ActionId {
        let mut reads = self.of_group(this.at, gradients);
        reads.extend(this.added());
        self.reduce_scattered(this, (reads, vec![this.next()]))
    }

    /// Adds a reduce-scatter whose result leaves for the host. A device by itself has the gradients already.
    fn scatter_to_leave(&mut self, this: &Reduction, gradients: &[BufferId]) -> Access {
        let reads = self.of_group(this.at, gradients);
        if let ([own], 1) = (reads.as_slice(), self.groups.size()) {
            return *own;
        }
        let held = (this.what.shard, Lifetime::Transient);
        let memory = self.participants[this.at].memory;
        let leaving = Access::new(self.builder.part(self.share(this.at), this.what.content, memory, held), 1);
        self.reduce_scattered(this, (reads, vec![leaving]));
        leaving
    }

    fn reduce_scattered(&mut self, this: &Reduction, accesses: (Vec<Access>, Vec<Access>)) -> ActionId {
        let flows = self.ring(this.at, (CollectiveKind::ReduceScatter, this.what.whole));
        let lane = self.participants[this.at].collective;
        self.collective(lane, (Collective::ReduceScatter, this.what.subject), flows, accesses)
    }

    /// Adds the copy of reduced gradients to the host, where they are added to the sum.
    fn leave(&mut self, this: &Reduction, leaving: Access) -> ActionId {
        let out = (ActionKind::Copy(Payload::GradientsOut), this.what.subject);
        let ends = (self.participants[this.at].memory, this.home, this.what.shard);
        let reads = std::iter::once(leaving).chain(this.added()).collect();
        self.copy(this.at, out, ends, (reads, vec![this.next()]))
    }

    /// The gradients of the devices in the group of device number `at`.
    fn of_group(&self, at: usize, gradients: &[BufferId]) -> Vec<Access> {
        self.group_of(at).filter_map(|other| gradients.get(other)).map(|buffer| Access::new(*buffer, 1)).collect()
    }

    /// Adds a collective's action on one device.
    pub(super) fn collective(
        &mut self,
        lane: LaneId,
        (collective, subject): (Collective, Subject),
        flows: Vec<Flow>,
        (reads, writes): (Vec<Access>, Vec<Access>),
    ) -> ActionId {
        let kind = ActionKind::Collective(collective);
        self.builder.action(NewAction { lane, kind, subject, reads, writes, work: SimTime::ZERO, flows, guard: None })
    }

    /// The flow of a collective to a device from the one before it in a ring or, over computers, in several.
    pub(super) fn ring(&mut self, at: usize, (kind, bytes): (CollectiveKind, Bytes)) -> Vec<Flow> {
        let devices = self.groups.devices();
        let count = devices.len();
        if count == 1 {
            return Vec::new();
        }
        let here = &self.participants[at];
        if let Some(hops) = self.hops.get(at) {
            return hops.flows(self.context.hardware, (kind, bytes));
        }
        let before = self.context.hardware.devices()[devices[(at + count - 1) % count]].memory;
        let bytes = Bytes::new(bytes.get() / count as u64 * (count as u64 - 1));
        let flow = route(self.context, before, here.memory, bytes);
        flow.map_err(|fault| self.faults.push(fault)).into_iter().collect()
    }
}
