//! The stages of other replicas than the first, and of other members of a team than its lead.

use crate::{Context, Placement, Stage};
use spipe_base::{Bytes, DeviceId, MemoryId};
use spipe_cost::{LayerMemory, Mesh};

impl Context<'_> {
    /// The mesh on whose teams stages are placed. A mesh with sharded parameters is the placement's own.
    pub fn mesh(&self) -> &Mesh {
        self.cost.mesh()
    }

    /// The devices that run a stage of the first replica's team of `lead`, by replica and member: `lead` alone without
    /// a mesh.
    pub fn runners(&self, lead: DeviceId) -> Vec<DeviceId> {
        let runners: Vec<DeviceId> = self.mesh().peers(lead).flatten().copied().collect();
        if runners.is_empty() { vec![lead] } else { runners }
    }

    /// The bytes that `part` counts of a stage's layers: those of all parameters but experts that devices divide, and
    /// those of such experts.
    pub fn by_holders(&self, stage: &Stage, part: impl Fn(&LayerMemory) -> Bytes) -> [Bytes; 2] {
        let of = |layer| {
            let bytes = part(self.cost.memory(layer, stage.lead()));
            let experts = self.cost.of_experts(layer, bytes);
            [bytes - experts, experts]
        };
        let all = stage.layers.iter().map(of);
        all.fold([Bytes::ZERO; 2], |[rest, experts], [more, of_experts]| [rest + more, experts + of_experts])
    }

    /// `stage` of the first replica as `device`, which runs it too, has it: data in a host memory near the lead is in
    /// the one near that device.
    pub fn as_run_by(&self, stage: &Stage, device: DeviceId) -> Stage {
        let lead = stage.lead();
        if lead == device {
            return *stage;
        }
        let memory = |memory: MemoryId| self.counterpart(memory, (lead, device));
        let socket = |socket: DeviceId| {
            let home = memory(self.hardware.devices()[socket].memory);
            self.hardware.memories()[home].device.unwrap_or(socket)
        };
        stage.moved(device, socket, memory)
    }

    /// The memory that is to `there` what `memory` is to `here`: its own, the host memory as near as this one, or the
    /// same drive.
    pub fn counterpart(&self, memory: MemoryId, (here, there): (DeviceId, DeviceId)) -> MemoryId {
        let own = |device: DeviceId| self.hardware.devices()[device].memory;
        if memory == own(here) {
            return own(there);
        }
        let near = self.hardware.host_memories(here).iter().position(|host| *host == memory);
        let there = self.hardware.host_memories(there);
        near.and_then(|near| there.get(near).or(there.last()).copied()).unwrap_or(memory)
    }

    /// The replicas that a program has: all of them, or one that stands for all.
    pub fn shown_replicas(&self) -> usize {
        if self.cost.shows_all() { self.mesh().replicas.len().max(1) } else { 1 }
    }

    /// The devices for which an action of `lead` stands in a program: all that run its stages or, where the program has
    /// all replicas, its team.
    pub fn shown_by(&self, lead: DeviceId) -> Vec<DeviceId> {
        let team = || self.mesh().team(lead).cloned().unwrap_or_else(|| vec![lead]);
        if self.cost.shows_all() { team() } else { self.runners(lead) }
    }

    /// The steps of devices for which a step of `device` stands that run on `host`, one after the other: 1 for a step on
    /// the device itself.
    pub fn steps_on_one_host(&self, device: DeviceId, host: DeviceId) -> u64 {
        if host == device { 1 } else { self.sharers(device, self.hardware.devices()[host].memory) }
    }

    /// The devices for which `device` stands in a program that have the host memory `memory` as it has: 1 or more.
    pub fn sharers(&self, device: DeviceId, memory: MemoryId) -> u64 {
        let shown = self.shown_by(device).into_iter();
        shown.filter(|other| self.counterpart(memory, (device, *other)) == memory).count().max(1) as u64
    }

    /// The pairs of memories between which a copy between these runs: one for each device for which the copy stands.
    pub fn copies(&self, [from, to]: [MemoryId; 2]) -> Vec<[MemoryId; 2]> {
        let owner = |memory: MemoryId| self.hardware.memories()[memory].device;
        let leads = |memory: MemoryId| owner(memory).filter(|device| self.mesh().team(*device).is_some());
        let (sender, receiver) = (leads(from), leads(to));
        let Some(known) = sender.or(receiver) else { return vec![[from, to]] };
        let (sources, targets) = (self.shown_by(sender.unwrap_or(known)), self.shown_by(receiver.unwrap_or(known)));
        let pair = |(source, target): (&DeviceId, &DeviceId)| {
            let from = self.counterpart(from, (sender.unwrap_or(known), *source));
            [from, self.counterpart(to, (receiver.unwrap_or(known), *target))]
        };
        sources.iter().zip(&targets).map(pair).collect()
    }
}

impl Placement {
    /// The devices that compute under `context`: those of the stages in all replicas.
    pub fn computing_in(&self, context: &Context<'_>) -> Vec<DeviceId> {
        let own = self.computing();
        if context.mesh().is_single() { own } else { own.into_iter().flat_map(|lead| context.runners(lead)).collect() }
    }
}
