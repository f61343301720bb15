//! Offloads and reloads of saved activations.
//!
//! A device has one lane for both directions. With PipeOffload's systems, only one of the devices
//! behind a switch copies in each direction at a time: while one GPU offloads, another may reload
//! (Wan et al., PipeOffload, arXiv 2503.01328, section 4). All their devices do the same in every
//! round. With other systems, a fixed order of turns would make the first copies of a device with a
//! longer warm-up wait for the last ones of another.
//!
//! Activations that go on to a drive pass through as many slots in DRAM as the device has:
//!
//! ```text
//! gpu0.offload   offload ─┐                                    ┌─► reload
//! nvme0.write             └─► offload            nvme0.read ───┘
//! ```

use super::PipelineLowering;
use crate::lower::{
    drives::copy,
    flows::{Transfer, route},
};
use crate::{Access, Anchor, Content, Edge, Flow, Lifetime, NewAction};
use spipe_base::{
    ActionId, ActionKind, BufferId, DeviceId, IdleCause, LaneRole, LinkId, MemoryId, MicrobatchId, Payload, SimTime,
    StageId, Subject,
};
use spipe_plan::{Placement, staging};
use std::collections::BTreeMap;

/// The share of a link's bandwidth from which a copy is said to fill the link (a choice).
const NEARLY: f64 = 0.9;

/// The copy of a microbatch's activations in a stage.
type What = (Payload, StageId, MicrobatchId);

/// The offloads and reloads of a device so far, in order, with their forwards and backwards.
#[derive(Clone, Default)]
struct Traffic {
    forwards: Vec<ActionId>,
    out: Vec<ActionId>,
    backwards: Vec<ActionId>,
    back: Vec<ActionId>,
    /// The copies to the DRAM before a drive with the writes behind them, and the reads with the
    /// copies behind them.
    written: Vec<(ActionId, ActionId)>,
    read: Vec<(ActionId, ActionId)>,
}

/// The offloads of all devices.
pub(super) struct Offloads {
    /// The slots of a device per direction, in microbatches of activations.
    slots: usize,
    /// Whether devices behind one switch take turns.
    staggered: bool,
    /// If they do, the copies over each link, by device.
    over: BTreeMap<LinkId, BTreeMap<DeviceId, Vec<ActionId>>>,
    devices: BTreeMap<DeviceId, Traffic>,
    /// The activations where they are kept until their reload.
    kept: BTreeMap<(StageId, MicrobatchId), BufferId>,
}

impl Offloads {
    pub fn new(placement: &Placement) -> Self {
        let slots = usize::try_from(placement.offload_slots()).unwrap_or(usize::MAX);
        let staggered = placement.offload.in_turn;
        Self { slots, staggered, over: BTreeMap::new(), devices: BTreeMap::new(), kept: BTreeMap::new() }
    }
}

impl PipelineLowering<'_> {
    /// Copies the activations in `saved` to the host, after their forward.
    pub(super) fn offload(&mut self, stage: StageId, microbatch: MicrobatchId, (saved, forward): (BufferId, ActionId)) {
        let here = &self.stations[stage];
        let Some(home) = here.stage.offload else { return };
        let (device, layers, bytes, memory) = (here.stage.lead(), here.stage.layers, here.offloaded, here.memory);
        let staging = staging(self.context, &here.stage);
        let host = staging.unwrap_or(home);
        let there = self.builder.buffer(Content::Saved(layers, microbatch), host, bytes, Lifetime::Transient);
        let what = (Payload::Offload, stage, microbatch);
        let out = self.move_saved(what, (memory, host), (Access::new(saved, 1), Access::new(there, 1)));
        let kept = if staging.is_some() { self.write(what, (there, host), (home, out)) } else { there };
        self.offloads.kept.insert((stage, microbatch), kept);
        let slots = self.offloads.slots;
        let traffic = self.offloads.devices.entry(device).or_default();
        let waits = traffic.out.len().checked_sub(slots).map(|index| traffic.out[index]);
        traffic.forwards.push(forward);
        traffic.out.push(out);
        if let Some(before) = waits {
            self.slot(before, forward, Anchor::EndToStart, 0);
        }
    }

    /// Reloads the offloaded activations for a backward. Returns their new place and the copy.
    pub(super) fn reload(&mut self, stage: StageId, microbatch: MicrobatchId) -> Option<(Access, ActionId)> {
        let kept = *self.offloads.kept.get(&(stage, microbatch))?;
        let here = &self.stations[stage];
        let (device, layers, bytes, memory) = (here.stage.lead(), here.stage.layers, here.offloaded, here.memory);
        let (home, staging) = (here.stage.offload?, staging(self.context, &here.stage));
        let what = (Payload::Reload, stage, microbatch);
        let read = staging.map(|host| self.read(what, (kept, home), host));
        let there = read.map_or(kept, |(staged, _)| staged);
        let again = self.builder.buffer(Content::Reloaded(layers, microbatch), memory, bytes, Lifetime::Transient);
        let route = (staging.unwrap_or(home), memory);
        let back = self.move_saved(what, route, (Access::new(there, 1), Access::new(again, 1)));
        if let Some((_, read)) = read {
            self.offloads.devices.entry(device).or_default().read.push((read, back));
        }
        Some((Access::new(again, 1), back))
    }

    /// Writes activations from DRAM to their drive, behind their copy `out`, which waits for a slot.
    fn write(&mut self, what: What, (from, host): (BufferId, MemoryId), (home, out): (MemoryId, ActionId)) -> BufferId {
        let (_, stage, microbatch) = what;
        let here = &self.stations[stage];
        let (device, layers, bytes) = (here.stage.lead(), here.stage.layers, here.offloaded);
        let kept = self.builder.buffer(Content::Saved(layers, microbatch), home, bytes, Lifetime::Transient);
        let write = self.on_drive(what, (host, home), (from, kept));
        let slots = self.offloads.slots;
        let written = &mut self.offloads.devices.entry(device).or_default().written;
        let before = written.len().checked_sub(slots).map(|index| written[index].1);
        written.push((out, write));
        if let Some(before) = before {
            self.slot(before, out, Anchor::EndToStart, 0);
        }
        kept
    }

    /// Reads activations from their drive into a slot in DRAM, which the copy to the device frees.
    fn read(&mut self, what: What, (kept, home): (BufferId, MemoryId), host: MemoryId) -> (BufferId, ActionId) {
        let (_, stage, microbatch) = what;
        let here = &self.stations[stage];
        let (device, layers, bytes) = (here.stage.lead(), here.stage.layers, here.offloaded);
        let staged = self.builder.buffer(Content::Saved(layers, microbatch), host, bytes, Lifetime::Transient);
        let read = self.on_drive(what, (home, host), (kept, staged));
        let slots = self.offloads.slots;
        let before = &self.offloads.devices.entry(device).or_default().read;
        if let Some((_, back)) = before.len().checked_sub(slots).map(|index| before[index]) {
            self.slot(back, read, Anchor::EndToStart, 0);
        }
        (staged, read)
    }

    /// Adds a copy between DRAM and a drive.
    fn on_drive(
        &mut self,
        (payload, stage, microbatch): What,
        (from, to): (MemoryId, MemoryId),
        (read, write): (BufferId, BufferId),
    ) -> ActionId {
        let drive = if payload == Payload::Reload { from } else { to };
        let bytes = self.stations[stage].offloaded;
        let flow = route(self.context, from, to, bytes).map_err(|fault| self.faults.push(fault)).ok();
        let transfer = Transfer { work: SimTime::ZERO, flows: flow.into_iter().collect() };
        let what = (payload, Subject::work(stage, microbatch), transfer);
        copy(self.builder, drive, what, (Access::new(read, 1), Access::new(write, 1)))
    }

    /// Adds a copy on the device's lane for both directions.
    fn move_saved(
        &mut self,
        (payload, stage, microbatch): What,
        (from, to): (MemoryId, MemoryId),
        (read, write): (Access, Access),
    ) -> ActionId {
        let here = &self.stations[stage];
        let (device, bytes) = (here.stage.lead(), here.offloaded);
        let flow = route(self.context, from, to, bytes).map_err(|fault| self.faults.push(fault)).ok();
        let flows = flow.iter().filter(|_| self.offloads.staggered);
        let links: Vec<LinkId> = flows.flat_map(|flow| flow.route.iter().copied()).collect();
        let lane = self.builder.lane(device, "offload", LaneRole::Channel);
        let copy = self.builder.action(NewAction {
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

    /// Lets the copies of several devices take turns on links that each of the copies fills.
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

    /// Whether a copy alone uses nearly all of a link.
    fn fills(&self, copy: ActionId, link: LinkId) -> bool {
        let bandwidth = |link: LinkId| self.context.hardware.links()[link].bandwidth.get();
        let rate = |flow: &Flow| {
            let links = flow.route.iter().map(|link| bandwidth(*link));
            links.fold(flow.rate_cap.map_or(f64::INFINITY, |cap| cap.get()), f64::min)
        };
        self.builder.flows_of(copy).iter().all(|flow| rate(flow) >= NEARLY * bandwidth(link))
    }

    /// Lets a reload wait for an earlier backward on the same device, so that reloaded activations
    /// do not exceed their slots.
    pub(super) fn reloaded_for(&mut self, stage: StageId, back: ActionId, backward: ActionId) {
        let ahead = self.offloads.slots - 1;
        let traffic = self.offloads.devices.entry(self.stations[stage].stage.lead()).or_default();
        let before = traffic.backwards.len().checked_sub(ahead).map(|index| traffic.backwards[index]);
        traffic.backwards.push(backward);
        traffic.back.push(back);
        if let Some(before) = before {
            self.slot(before, back, Anchor::StartToStart, 0);
        }
    }

    /// Adds the turns on links, and the precedences of offload slots across iterations.
    pub(super) fn join_offloads(&mut self) {
        self.stagger();
        let slots = self.offloads.slots;
        let mut edges = Vec::new();
        for traffic in self.offloads.devices.values() {
            let leaving = traffic.out.iter().skip(traffic.out.len().saturating_sub(slots));
            edges.extend(leaving.zip(&traffic.forwards).map(|(out, forward)| (*out, *forward, Anchor::EndToStart)));
            let returning = traffic.backwards.iter().skip(traffic.backwards.len().saturating_sub(slots - 1));
            edges.extend(returning.zip(&traffic.back).map(|(last, first)| (*last, *first, Anchor::StartToStart)));
            let written = traffic.written.iter().skip(traffic.written.len().saturating_sub(slots));
            edges.extend(written.zip(&traffic.written).map(|(last, first)| (last.1, first.0, Anchor::EndToStart)));
            let read = traffic.read.iter().skip(traffic.read.len().saturating_sub(slots));
            edges.extend(read.zip(&traffic.read).map(|(last, first)| (last.1, first.0, Anchor::EndToStart)));
        }
        for (from, to, anchor) in edges {
            self.slot(from, to, anchor, 1);
        }
    }

    fn slot(&mut self, from: ActionId, to: ActionId, anchor: Anchor, distance: u8) {
        self.builder.edge(Edge { from, to, anchor, distance, lag: SimTime::ZERO, cause: IdleCause::Memory });
    }
}
