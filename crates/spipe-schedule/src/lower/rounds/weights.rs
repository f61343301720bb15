//! Parameters on their way in (and out): k units are resident, k′ are exchanged at a time; chunks that stay take no part in it.

use super::Rounds;
use crate::{Access, Content, Lifetime};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, Faults, IdleCause, LaneId, LaneRole, LayerId, LayerRange, MemoryId, Payload,
    Subject,
};
use spipe_plan::{Exchanges, Visit};
use std::collections::BTreeMap;

/// Units whose parameters come in together and leave together.
struct Exchange {
    units: Vec<Unit>,
    /// The copies that bring them.
    loads: Vec<ActionId>,
    /// What must end before their room is free: their last uses, or copies back.
    leaves: Vec<ActionId>,
}

/// Parameters that are loaded once: for one use, or for the last forward and the first backward of a chunk.
pub(super) struct Unit {
    pub uses: Vec<Visit>,
}

/// Parameters on a host, of the finest runs of layers that chunks of either pass are made of.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub layers: LayerRange,
    pub buffer: BufferId,
    pub home: MemoryId,
}

impl Rounds<'_> {
    /// The host's parameters, in pieces such that every chunk of either pass is made of whole ones.
    pub(super) fn hold_parameters(&mut self) {
        let owners = if self.spec.backward.is_empty() { &self.spec.forward } else { &self.spec.backward };
        let mut cuts: Vec<usize> = Vec::new();
        for chunk in self.spec.forward.iter().chain(&self.spec.backward) {
            cuts.extend([chunk.layers.first().index(), chunk.layers.last().index() + 1]);
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut pieces = Vec::new();
        for pair in cuts.windows(2) {
            let Some(layers) = LayerRange::new(LayerId::from(pair[0]), LayerId::from(pair[1] - 1)) else { continue };
            let within =
                |chunk: &&super::Chunk| chunk.layers.first() <= layers.first() && layers.last() <= chunk.layers.last();
            let Some(owner) = owners.iter().find(within).filter(|owner| !owner.stays) else {
                continue;
            };
            pieces.push((layers, owner.weights_of(layers), owner.home));
        }
        for (layers, bytes, home) in pieces {
            let buffer = self.builder.buffer(Content::Parameters(layers), home, bytes, Lifetime::Resident);
            self.parameters.push(Piece { layers, buffer, home });
        }
    }

    /// The pieces of the host's parameters within `layers`.
    pub(super) fn pieces(&self, layers: LayerRange) -> Vec<Piece> {
        let within = |piece: &&Piece| layers.first() <= piece.layers.first() && piece.layers.last() <= layers.last();
        self.parameters.iter().filter(within).copied().collect()
    }

    /// Keys and values stay on the device of their chunk.
    pub(super) fn hold_caches(&mut self) {
        let spec = self.spec;
        for (index, chunk) in spec.forward.iter().enumerate().filter(|(_, chunk)| chunk.cache > Bytes::ZERO) {
            let memory = self.builder.memory_of(chunk.device);
            let cache = self.builder.buffer(Content::Cache(chunk.layers), memory, chunk.cache, Lifetime::Resident);
            self.caches.insert(index, cache);
        }
    }

    /// A place on the device for the parameters of every use; the uses that follow each other at the turn share theirs, and so do all
    /// of a chunk that stays.
    pub(super) fn hold_weights(&mut self, uses: &[Visit]) {
        let again = |this: &Visit| Visit { backward: true, ..*this };
        let stay = uses.iter().filter(|this| !this.backward && self.chunk(**this).stays);
        let stay: Vec<Unit> = stay.map(|this| Unit { uses: vec![*this, again(this)] }).collect();
        let move_on = self.exchanges(uses).1.into_iter().flat_map(|exchange| exchange.units);
        for unit in move_on.chain(stay) {
            let (device, layers, bytes) = {
                let chunk = self.chunk(unit.uses[0]);
                (chunk.device, chunk.layers, chunk.weights())
            };
            let streamed = self.streamed(unit.uses[0]);
            let lifetime = if streamed { Lifetime::Transient } else { Lifetime::Resident };
            let memory = self.builder.memory_of(device);
            let buffer = self.builder.buffer(Content::Parameters(layers), memory, bytes, lifetime);
            if !self.chunk(unit.uses[0]).stays {
                self.hold_shared(&unit, lifetime);
            }
            for this in unit.uses {
                self.weights.insert(this, buffer);
            }
        }
    }

    /// What the device exchanges of which these are all visits.
    fn exchanges(&self, uses: &[Visit]) -> (Exchanges, Vec<Exchange>) {
        let uses: Vec<Visit> = uses.iter().copied().filter(|this| !self.chunk(*this).stays).collect();
        let exchanges = Exchanges::new(&uses, &self.spec.exchanging);
        let unit = |visits: &Vec<usize>| Unit { uses: visits.iter().map(|visit| uses[*visit]).collect() };
        let exchange = |units: &Vec<Vec<usize>>| Exchange {
            units: units.iter().map(unit).collect(),
            loads: Vec::new(),
            leaves: Vec::new(),
        };
        let list = exchanges.units.iter().map(exchange).collect();
        (exchanges, list)
    }

    /// Copies of parameters in, each exchange as soon as there is room for it: once enough others have left. What has been used keeps its
    /// room until something takes it.
    pub(super) fn load(&mut self, uses: &[Visit]) -> Result<(), Faults> {
        let (order, mut exchanges) = self.exchanges(uses);
        let device = self.chunk(uses[0]).device;
        let lane = self.lane(device, LaneRole::H2d);
        for (index, room) in order.room.iter().enumerate() {
            // Those that are evicted have come before.
            let evicted: Vec<&Exchange> =
                order.leaving[room.evicts.clone()].iter().map(|leaving| &exchanges[*leaving]).collect();
            let eviction = if evicted.is_empty() { None } else { Some(self.evict(lane, &evicted)) };
            let mut loads = Vec::new();
            let pieces = if self.spec.sequential { 1 } else { exchanges[index].units.len() };
            for batch in exchanges[index].units.chunks(pieces) {
                loads.push(self.load_batch(lane, batch)?);
                for unit in batch {
                    loads.extend(self.load_shared(lane, unit)?);
                }
            }
            if let Some(eviction) = eviction {
                loads.iter().for_each(|load| self.wait(eviction, *load, (0, IdleCause::Memory)));
            }
            exchanges[index].loads = loads;
            self.leave(&mut exchanges[index])?;
        }
        for (exchange, room) in exchanges.iter().zip(&order.room) {
            let behind = &exchanges[order.leaving[room.behind]];
            for load in &exchange.loads {
                for leaves in &behind.leaves {
                    self.wait(*leaves, *load, (u8::from(room.before), IdleCause::Memory));
                }
            }
        }
        Ok(())
    }

    fn load_batch(&mut self, lane: LaneId, batch: &[Unit]) -> Result<ActionId, Faults> {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let mut from: BTreeMap<MemoryId, Bytes> = BTreeMap::new();
        let first = batch[0].uses[0];
        let memory = self.builder.memory_of(self.chunk(first).device);
        for unit in batch {
            let chunk = self.chunk(unit.uses[0]);
            let pieces = self.pieces(chunk.layers);
            let there = !unit.uses[0].backward && unit.uses[0].chunk < self.spec.there;
            for piece in &pieces {
                reads.push(Access::new(piece.buffer, 0));
                let bytes = if there { Bytes::ZERO } else { chunk.weights_of(piece.layers) };
                *from.entry(piece.home).or_default() += bytes;
            }
            writes.push(self.weights(unit.uses[0]));
        }
        let mut transfer = super::Transfer::default();
        for (home, bytes) in from {
            let part = self.links.copy(home, memory, bytes)?;
            transfer.work += part.work;
            transfer.flows.extend(part.flows);
        }
        let subject = Subject { layers: Some(self.chunk(first).layers), ..Subject::stage(self.stage(first)) };
        Ok(self.copy((lane, ActionKind::Copy(Payload::WeightsIn), subject), transfer, (reads, writes)))
    }

    /// What must end before the room of an exchange is free: the last use of each unit, or their copies back.
    fn leave(&mut self, exchange: &mut Exchange) -> Result<(), Faults> {
        let last = |unit: &Unit| self.computed[&unit.uses[unit.uses.len() - 1]].last().copied();
        let computed: Vec<ActionId> = exchange.units.iter().filter_map(last).collect();
        if !self.spec.write_back {
            exchange.leaves = computed;
            return Ok(());
        }
        let pieces = if self.spec.sequential { 1 } else { exchange.units.len() };
        for (batch, computed) in exchange.units.chunks(pieces).zip(computed.chunks(pieces)) {
            let first = batch[0].uses[0];
            let bytes = batch.iter().map(|unit| self.chunk(unit.uses[0]).weights()).sum();
            let reads = batch.iter().map(|unit| self.weights(unit.uses[0])).collect();
            let (device, home) = (self.chunk(first).device, self.chunk(first).home);
            let transfer = self.links.copy(self.builder.memory_of(device), home, bytes)?;
            let lane = self.lane(device, LaneRole::D2h);
            let subject = Subject { layers: Some(self.chunk(first).layers), ..Subject::stage(self.stage(first)) };
            let copy = self.copy((lane, ActionKind::Copy(Payload::WriteBack), subject), transfer, (reads, Vec::new()));
            for computed in computed {
                self.wait(*computed, copy, (0, IdleCause::Order));
            }
            exchange.leaves.push(copy);
        }
        Ok(())
    }

    /// The last reader of what has been used: it holds the room until `lane` is about to fill it.
    fn evict(&mut self, lane: LaneId, leaving: &[&Exchange]) -> ActionId {
        let units = || leaving.iter().flat_map(|exchange| &exchange.units);
        let held = |unit: &Unit| {
            let weights = self.weights(unit.uses[0]);
            std::iter::once(weights).chain(self.shared_parameters(unit.uses[0]))
        };
        let reads = units().flat_map(held).collect();
        let layers = units().next().map(|unit| self.chunk(unit.uses[0]).layers);
        let subject = Subject { layers, ..Subject::default() };
        let what = (lane, ActionKind::Barrier, subject);
        let eviction = self.copy(what, super::Transfer::default(), (reads, Vec::new()));
        for leaves in leaving.iter().flat_map(|exchange| &exchange.leaves) {
            self.wait(*leaves, eviction, (0, IdleCause::Memory));
        }
        eviction
    }
}
