//! Streamed parameters: k units are resident, and k′ are exchanged at a time. Chunks that stay are
//! not part of the exchange.

use super::{Chunk, StreamedLowering, Transfer};
use crate::{Content, Lifetime};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, Faults, IdleCause, LaneId, LaneRole, LayerId, LayerRange, MemoryId, Payload,
    Subject,
};
use spipe_plan::{Exchanges, Visit};
use std::collections::BTreeMap;

/// Units that arrive and leave together.
struct Exchange {
    units: Vec<Unit>,
    /// The copies that bring them.
    loads: Vec<ActionId>,
    /// The actions that must end before their memory is free: their last uses, or the copies back.
    leaves: Vec<ActionId>,
}

/// Parameters that are loaded once: for one visit, or for both visits of a chunk that stays when
/// the backward begins.
pub(super) struct Unit {
    pub visits: Vec<Visit>,
}

/// Parameters on a host of a run of layers that no chunk of either pass divides.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub layers: LayerRange,
    /// The parameters in their home, or on their drive.
    pub buffer: BufferId,
    pub home: MemoryId,
    /// The drive that keeps them.
    pub shelf: Option<MemoryId>,
}

impl StreamedLowering<'_> {
    /// Adds the buffers of parameters on the host, in pieces such that every chunk of either pass
    /// consists of whole pieces.
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
                |chunk: &&Chunk| chunk.layers.first() <= layers.first() && layers.last() <= chunk.layers.last();
            let Some(owner) = owners.iter().find(within).filter(|owner| !owner.stays) else {
                continue;
            };
            pieces.push((layers, owner.weights_of(layers), (owner.home, owner.shelf)));
        }
        for (layers, bytes, (home, shelf)) in pieces {
            let kept = shelf.unwrap_or(home);
            let buffer = self.builder.buffer(Content::Parameters(layers), kept, bytes, Lifetime::Resident);
            self.parameters.push(Piece { layers, buffer, home, shelf });
        }
    }

    /// The pieces of parameters on the host within `layers`.
    pub(super) fn pieces(&self, layers: LayerRange) -> Vec<Piece> {
        let within = |piece: &&Piece| layers.first() <= piece.layers.first() && piece.layers.last() <= layers.last();
        self.parameters.iter().filter(within).copied().collect()
    }

    /// Adds the caches of keys and values, on the devices of their chunks.
    pub(super) fn hold_caches(&mut self) {
        let spec = self.spec;
        for (index, chunk) in spec.forward.iter().enumerate().filter(|(_, chunk)| chunk.cache > Bytes::ZERO) {
            let memory = self.builder.memory_of(chunk.device);
            let cache = self.builder.buffer(Content::Cache(chunk.layers), memory, chunk.cache, Lifetime::Resident);
            self.caches.insert(index, cache);
        }
    }

    /// Adds the buffers of parameters on the device for every visit. Both visits of a chunk share
    /// one if it stays, or if it is still resident when the backward begins.
    pub(super) fn hold_weights(&mut self, visits: &[Visit]) {
        let again = |this: &Visit| Visit { backward: true, ..*this };
        let stay = visits.iter().filter(|this| !this.backward && self.chunk(**this).stays);
        let stay: Vec<Unit> = stay.map(|this| Unit { visits: vec![*this, again(this)] }).collect();
        let streamed = self.exchanges(visits).1.into_iter().flat_map(|exchange| exchange.units);
        for unit in streamed.chain(stay) {
            let (device, layers, bytes) = {
                let chunk = self.chunk(unit.visits[0]);
                (chunk.device, chunk.layers, chunk.weights())
            };
            let lifetime = if self.streamed(unit.visits[0]) { Lifetime::Transient } else { Lifetime::Resident };
            let memory = self.builder.memory_of(device);
            let buffer = self.builder.buffer(Content::Parameters(layers), memory, bytes, lifetime);
            if !self.chunk(unit.visits[0]).stays {
                self.hold_tied(&unit, lifetime);
            }
            for this in unit.visits {
                self.weights.insert(this, buffer);
            }
        }
    }

    /// The exchanges of a device with these visits.
    fn exchanges(&self, visits: &[Visit]) -> (Exchanges, Vec<Exchange>) {
        let visits: Vec<Visit> = visits.iter().copied().filter(|this| !self.chunk(*this).stays).collect();
        let exchanges = Exchanges::new(&visits, &self.spec.exchange);
        let unit = |numbers: &Vec<usize>| Unit { visits: numbers.iter().map(|number| visits[*number]).collect() };
        let exchange = |units: &Vec<Vec<usize>>| Exchange {
            units: units.iter().map(unit).collect(),
            loads: Vec::new(),
            leaves: Vec::new(),
        };
        let list = exchanges.units.iter().map(exchange).collect();
        (exchanges, list)
    }

    /// Adds the copies of parameters to a device, each exchange once enough others have left. Used
    /// parameters hold their memory until an exchange replaces them.
    pub(super) fn load(&mut self, visits: &[Visit]) -> Result<(), Faults> {
        let (order, mut exchanges) = self.exchanges(visits);
        let device = self.chunk(visits[0]).device;
        let lane = self.lane(device, LaneRole::H2d);
        for (index, room) in order.room.iter().enumerate() {
            // Evicted exchanges have been loaded before.
            let evicted: Vec<&Exchange> =
                order.leaving[room.evicts.clone()].iter().map(|leaving| &exchanges[*leaving]).collect();
            let eviction = if evicted.is_empty() { None } else { Some(self.evict(lane, &evicted)) };
            let mut loads = Vec::new();
            let pieces = if self.spec.sequential { 1 } else { exchanges[index].units.len() };
            for batch in exchanges[index].units.chunks(pieces) {
                let mut copies = vec![self.load_batch(lane, batch)?];
                for unit in batch {
                    copies.extend(self.load_tied(lane, unit)?);
                }
                self.loads.leave((device, &copies));
                loads.extend(copies);
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

    /// Adds the copy of some units of an exchange.
    fn load_batch(&mut self, lane: LaneId, batch: &[Unit]) -> Result<ActionId, Faults> {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let mut from: BTreeMap<MemoryId, Bytes> = BTreeMap::new();
        let first = batch[0].visits[0];
        let memory = self.builder.memory_of(self.chunk(first).device);
        for unit in batch {
            let chunk = self.chunk(unit.visits[0]).clone();
            let pieces = self.pieces(chunk.layers);
            let preloaded = !unit.visits[0].backward && unit.visits[0].chunk < self.spec.preloaded;
            for piece in &pieces {
                let streamed = chunk.streamed_of(piece.layers);
                reads.push(self.on_host(first, (*piece, streamed))?);
                let bytes = if preloaded { Bytes::ZERO } else { streamed };
                *from.entry(piece.home).or_default() += bytes;
            }
            writes.push(self.weights(unit.visits[0]));
        }
        let mut transfer = Transfer::default();
        for (home, bytes) in from {
            let part = self.links.copy(home, memory, bytes)?;
            transfer.work += part.work;
            transfer.flows.extend(part.flows);
        }
        let subject = Subject { layers: Some(self.chunk(first).layers), ..Subject::stage(self.stage(first)) };
        Ok(self.copy((lane, ActionKind::Copy(Payload::WeightsIn), subject), transfer, (reads, writes)))
    }

    /// Sets the actions that must end before the memory of an exchange is free: the last use of
    /// each unit, or their copies back.
    fn leave(&mut self, exchange: &mut Exchange) -> Result<(), Faults> {
        let last = |unit: &Unit| self.computed[&unit.visits[unit.visits.len() - 1]].last().copied();
        let computed: Vec<ActionId> = exchange.units.iter().filter_map(last).collect();
        if !self.spec.write_back {
            exchange.leaves = computed;
            return Ok(());
        }
        let pieces = if self.spec.sequential { 1 } else { exchange.units.len() };
        for (batch, computed) in exchange.units.chunks(pieces).zip(computed.chunks(pieces)) {
            let first = batch[0].visits[0];
            let moved = |unit: &Unit| self.chunk(unit.visits[0]).streamed.iter().copied().sum::<Bytes>();
            let bytes = batch.iter().map(moved).sum();
            let reads = batch.iter().map(|unit| self.weights(unit.visits[0])).collect();
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

    /// Adds the eviction of used parameters: a last reader that holds their memory until `lane` is
    /// about to replace them.
    fn evict(&mut self, lane: LaneId, leaving: &[&Exchange]) -> ActionId {
        let units = || leaving.iter().flat_map(|exchange| &exchange.units);
        let held = |unit: &Unit| {
            let weights = self.weights(unit.visits[0]);
            std::iter::once(weights).chain(self.tied_parameters(unit.visits[0]))
        };
        let reads = units().flat_map(held).collect();
        let layers = units().next().map(|unit| self.chunk(unit.visits[0]).layers);
        let subject = Subject { layers, ..Subject::default() };
        let what = (lane, ActionKind::Barrier, subject);
        let eviction = self.copy(what, Transfer::default(), (reads, Vec::new()));
        for leaves in leaving.iter().flat_map(|exchange| &exchange.leaves) {
            self.wait(*leaves, eviction, (0, IdleCause::Memory));
        }
        eviction
    }
}
