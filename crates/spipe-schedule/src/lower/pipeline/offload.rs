//! Saved activations on their way to the host and back.
//!
//! A device has one stream for both directions. With PipeOffload's systems, of the devices behind one switch only one copies in each
//! direction at a time: while one GPU's activations leave, another's may return (Wan et al., PipeOffload, arXiv 2503.01328, section 4).
//! Their devices do as much in every round; where one has a warm-up that another one has not, turns that are fixed beforehand would let
//! its first copies wait for the other's last.

use super::Lowering;
use crate::lower::flows::route;
use crate::{Access, Action, Anchor, Content, Edge, Flow, Lifetime};
use spipe_base::{
    ActionId, ActionKind, BufferId, DeviceId, IdleCause, LaneRole, LinkId, MemoryId, MicrobatchId, Payload, SimTime,
    StageId, Subject,
};
use spipe_plan::Placement;
use std::collections::BTreeMap;

/// The share of a link's bandwidth beyond which a copy is held to fill it.
const NEARLY: f64 = 0.9;

/// What a device has offloaded so far, in order.
#[derive(Clone, Default)]
struct Traffic {
    forwards: Vec<ActionId>,
    out: Vec<ActionId>,
    backwards: Vec<ActionId>,
    back: Vec<ActionId>,
}

/// The offloads of all devices.
pub(super) struct Offloads {
    /// How many activations may be on their way out of a device, and how many on their way in.
    slots: usize,
    /// Whether devices behind one switch take turns.
    staggered: bool,
    /// Where they do, the copies over each link, by device.
    over: BTreeMap<LinkId, BTreeMap<DeviceId, Vec<ActionId>>>,
    devices: BTreeMap<DeviceId, Traffic>,
    on_the_host: BTreeMap<(StageId, MicrobatchId), BufferId>,
}

impl Offloads {
    pub fn new(placement: &Placement) -> Self {
        let slots = usize::try_from(placement.offload_slots()).unwrap_or(usize::MAX);
        let staggered = placement.system.staggers_offloads();
        Self { slots, staggered, over: BTreeMap::new(), devices: BTreeMap::new(), on_the_host: BTreeMap::new() }
    }
}

impl Lowering<'_> {
    /// Copies what the forward saved in `saved` to the host, as soon as it is there.
    pub(super) fn offload(&mut self, stage: StageId, microbatch: MicrobatchId, (saved, forward): (BufferId, ActionId)) {
        let here = &self.stations[stage];
        let Some(host) = here.stage.offload else { return };
        let (device, layers, bytes, memory) = (here.stage.device, here.stage.layers, here.offloaded, here.memory);
        let there = self.builder.buffer(Content::Saved(layers, microbatch), host, bytes, Lifetime::Transient);
        let what = (Payload::Offload, stage, microbatch);
        let out = self.move_saved(what, (memory, host), (Access::new(saved, 1), Access::new(there, 1)));
        self.offloads.on_the_host.insert((stage, microbatch), there);
        let slots = self.offloads.slots;
        let traffic = self.offloads.devices.entry(device).or_default();
        let waits = traffic.out.len().checked_sub(slots).map(|index| traffic.out[index]);
        traffic.forwards.push(forward);
        traffic.out.push(out);
        if let Some(before) = waits {
            self.slot(before, forward, Anchor::EndToStart, 0);
        }
    }

    /// Brings back what was offloaded for the backward; returns where it is, and the copy.
    pub(super) fn reload(&mut self, stage: StageId, microbatch: MicrobatchId) -> Option<(Access, ActionId)> {
        let there = *self.offloads.on_the_host.get(&(stage, microbatch))?;
        let here = &self.stations[stage];
        let (layers, bytes, memory) = (here.stage.layers, here.offloaded, here.memory);
        let host = here.stage.offload?;
        let again = self.builder.buffer(Content::Reloaded(layers, microbatch), memory, bytes, Lifetime::Transient);
        let what = (Payload::Reload, stage, microbatch);
        let back = self.move_saved(what, (host, memory), (Access::new(there, 1), Access::new(again, 1)));
        Some((Access::new(again, 1), back))
    }

    /// A copy on the one stream that a device has for both directions.
    fn move_saved(
        &mut self,
        (payload, stage, microbatch): (Payload, StageId, MicrobatchId),
        (from, to): (MemoryId, MemoryId),
        (read, write): (Access, Access),
    ) -> ActionId {
        let here = &self.stations[stage];
        let (device, bytes) = (here.stage.device, here.offloaded);
        let flow = route(self.context, from, to, bytes).map_err(|fault| self.faults.push(fault)).ok();
        let flows = flow.iter().filter(|_| self.offloads.staggered);
        let links: Vec<LinkId> = flows.flat_map(|flow| flow.route.iter().copied()).collect();
        let lane = self.builder.lane(device, "offload", LaneRole::Channel);
        let copy = self.builder.action(Action {
            lane,
            kind: ActionKind::Copy(payload),
            subject: Subject::work(stage, microbatch),
            reads: vec![read],
            writes: vec![write],
            work: SimTime::ZERO,
            flows: flow.into_iter().collect(),
            guard: None,
        });
        for link in links {
            self.offloads.over.entry(link).or_default().entry(device).or_default().push(copy);
        }
        copy
    }

    /// Where several devices' copies share a link that one of them fills, they take turns on it.
    fn stagger(&mut self) {
        let mut groups: Vec<Vec<ActionId>> = Vec::new();
        for (link, by_device) in &self.offloads.over {
            let fills = |copy: &ActionId| self.fills(*copy, *link);
            if by_device.len() < 2 || !by_device.values().flatten().all(fills) {
                continue;
            }
            let mut group: Vec<ActionId> = by_device.values().flatten().copied().collect();
            group.sort_unstable();
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        for group in groups {
            self.builder.take_turns(group);
        }
    }

    /// Whether a copy alone could use nearly all of a link.
    fn fills(&self, copy: ActionId, link: LinkId) -> bool {
        let bandwidth = |link: LinkId| self.context.hardware.links()[link].bandwidth.get();
        let rate = |flow: &Flow| {
            let links = flow.route.iter().map(|link| bandwidth(*link));
            links.fold(flow.rate_cap.map_or(f64::INFINITY, |cap| cap.get()), f64::min)
        };
        self.builder.get(copy).flows.iter().all(|flow| rate(flow) >= NEARLY * bandwidth(link))
    }

    /// Lets a reload start with a backward before its own on the same device, so that no more of them are there than there are slots.
    pub(super) fn reloaded_for(&mut self, stage: StageId, back: ActionId, backward: ActionId) {
        let ahead = self.offloads.slots - 1;
        let traffic = self.offloads.devices.entry(self.stations[stage].stage.device).or_default();
        let before = traffic.backwards.len().checked_sub(ahead).map(|index| traffic.backwards[index]);
        traffic.backwards.push(backward);
        traffic.back.push(back);
        if let Some(before) = before {
            self.slot(before, back, Anchor::StartToStart, 0);
        }
    }

    /// Slots are free again only once the iteration before has left them.
    pub(super) fn join_offloads(&mut self) {
        self.stagger();
        let slots = self.offloads.slots;
        let mut edges = Vec::new();
        for traffic in self.offloads.devices.values() {
            let leaving = traffic.out.iter().skip(traffic.out.len().saturating_sub(slots));
            edges.extend(leaving.zip(&traffic.forwards).map(|(out, forward)| (*out, *forward, Anchor::EndToStart)));
            let returning = traffic.backwards.iter().skip(traffic.backwards.len().saturating_sub(slots - 1));
            edges.extend(returning.zip(&traffic.back).map(|(last, first)| (*last, *first, Anchor::StartToStart)));
        }
        for (from, to, anchor) in edges {
            self.slot(from, to, anchor, 1);
        }
    }

    fn slot(&mut self, from: ActionId, to: ActionId, anchor: Anchor, distance: u8) {
        self.builder.edge(Edge { from, to, anchor, distance, lag: SimTime::ZERO, cause: IdleCause::Memory });
    }
}
