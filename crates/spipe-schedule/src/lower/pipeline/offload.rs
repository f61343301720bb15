//! Saved activations on their way to the host and back.

use super::Lowering;
use crate::lower::flows::route;
use crate::{Access, Action, Anchor, Content, Edge, Lifetime};
use spipe_base::{
    ActionId, ActionKind, BufferId, DeviceId, IdleCause, LaneRole, MicrobatchId, Payload, SimTime, StageId, Subject,
};
use std::collections::BTreeMap;

/// How many activations may be on their way out of a device, and how many on their way in: one that is computed on, and one
/// that moves.
const SLOTS: usize = 2;

/// What a device has offloaded so far, in order.
#[derive(Clone, Default)]
struct Traffic {
    forwards: Vec<ActionId>,
    out: Vec<ActionId>,
    backwards: Vec<ActionId>,
    back: Vec<ActionId>,
}

/// The offloads of all devices.
#[derive(Default)]
pub(super) struct Offloads {
    devices: BTreeMap<DeviceId, Traffic>,
    on_the_host: BTreeMap<(StageId, MicrobatchId), BufferId>,
}

impl Lowering<'_> {
    /// Copies what the forward saved in `saved` to the host, as soon as it is there.
    pub(super) fn offload(&mut self, stage: StageId, microbatch: MicrobatchId, (saved, forward): (BufferId, ActionId)) {
        let here = &self.stations[stage];
        let Some(host) = here.stage.offload else { return };
        let (device, layers, bytes, memory) = (here.stage.device, here.stage.layers, here.offloaded, here.memory);
        let there = self.builder.buffer(Content::Saved(layers, microbatch), host, bytes, Lifetime::Transient);
        let flow = route(self.context, memory, host, bytes).map_err(|fault| self.faults.push(fault));
        let lane = self.builder.lane(device, LaneRole::D2h.name(), LaneRole::D2h);
        let out = self.builder.action(Action {
            lane,
            kind: ActionKind::Copy(Payload::Offload),
            subject: Subject::work(stage, microbatch),
            reads: vec![Access::new(saved, 1)],
            writes: vec![Access::new(there, 1)],
            work: SimTime::ZERO,
            flows: flow.into_iter().collect(),
            guard: None,
        });
        self.offloads.on_the_host.insert((stage, microbatch), there);
        let traffic = self.offloads.devices.entry(device).or_default();
        let waits = traffic.out.len().checked_sub(SLOTS).map(|index| traffic.out[index]);
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
        let (device, layers, bytes, memory) = (here.stage.device, here.stage.layers, here.offloaded, here.memory);
        let host = here.stage.offload?;
        let again = self.builder.buffer(Content::Reloaded(layers, microbatch), memory, bytes, Lifetime::Transient);
        let flow = route(self.context, host, memory, bytes).map_err(|fault| self.faults.push(fault));
        let lane = self.builder.lane(device, LaneRole::H2d.name(), LaneRole::H2d);
        let back = self.builder.action(Action {
            lane,
            kind: ActionKind::Copy(Payload::Reload),
            subject: Subject::work(stage, microbatch),
            reads: vec![Access::new(there, 1)],
            writes: vec![Access::new(again, 1)],
            work: SimTime::ZERO,
            flows: flow.into_iter().collect(),
            guard: None,
        });
        Some((Access::new(again, 1), back))
    }

    /// Lets a reload start with the backward before its own on the same device, so that no more than [`SLOTS`] are there.
    pub(super) fn reloaded_for(&mut self, stage: StageId, back: ActionId, backward: ActionId) {
        let traffic = self.offloads.devices.entry(self.stations[stage].stage.device).or_default();
        let before = traffic.backwards.last().copied();
        traffic.backwards.push(backward);
        traffic.back.push(back);
        if let Some(before) = before {
            self.slot(before, back, Anchor::StartToStart, 0);
        }
    }

    /// Slots are free again only once the iteration before has left them.
    pub(super) fn join_offloads(&mut self) {
        let mut edges = Vec::new();
        for traffic in self.offloads.devices.values() {
            let waiting = traffic.forwards.iter().take(SLOTS.min(traffic.out.len()));
            let leaving = traffic.out.iter().skip(traffic.out.len().saturating_sub(SLOTS));
            edges.extend(leaving.zip(waiting).map(|(out, forward)| (*out, *forward, Anchor::EndToStart)));
            if let (Some(last), Some(first)) = (traffic.backwards.last(), traffic.back.first()) {
                edges.push((*last, *first, Anchor::StartToStart));
            }
        }
        for (from, to, anchor) in edges {
            self.slot(from, to, anchor, 1);
        }
    }

    fn slot(&mut self, from: ActionId, to: ActionId, anchor: Anchor, distance: u8) {
        self.builder.edge(Edge { from, to, anchor, distance, lag: SimTime::ZERO, cause: IdleCause::Memory });
    }
}
