//! Parameters on their way in (and out): k units are resident, k′ are exchanged at a time; chunks that stay take no part in it.

use super::{Rounds, Use};
use crate::{Access, Content, Lifetime};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, Faults, IdleCause, LaneId, LaneRole, LayerId, LayerRange, MemoryId, Payload,
    Subject,
};
use std::collections::BTreeMap;

/// Units whose parameters come in together and leave together, in the order in which they are used.
struct Exchange {
    units: Vec<Unit>,
    /// The copies that bring them.
    loads: Vec<ActionId>,
    /// What must end before their room is free: their last uses, or copies back.
    leaves: Vec<ActionId>,
}

/// Parameters that are loaded once: for one use, or for the last forward and the first backward of a chunk.
pub(super) struct Unit {
    pub uses: Vec<Use>,
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
    pub(super) fn hold_weights(&mut self, uses: &[Use]) {
        let again = |this: &Use| Use { backward: true, ..*this };
        let stay = uses.iter().filter(|this| !this.backward && self.chunk(**this).stays);
        let stay: Vec<Unit> = stay.map(|this| Unit { uses: vec![*this, again(this)] }).collect();
        let move_on = self.exchanges(uses).into_iter().flat_map(|exchange| exchange.units);
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

    /// What is loaded, k′ units at a time, in order. At the turn from forward to backward the last exchanges that fit among k units
    /// are there already.
    fn exchanges(&self, uses: &[Use]) -> Vec<Exchange> {
        let uses: Vec<Use> = uses.iter().copied().filter(|this| !self.chunk(*this).stays).collect();
        let turn = uses.iter().position(|this| this.backward).unwrap_or(uses.len());
        let (forward, backward) = uses.split_at(turn);
        let size = self.spec.swap.max(1);
        let alone = |this: &Use| Unit { uses: vec![*this] };
        let exchange = |units: &[Use]| Exchange {
            units: units.iter().map(alone).collect(),
            loads: Vec::new(),
            leaves: Vec::new(),
        };
        let mut exchanges: Vec<Exchange> = forward.chunks(size).map(exchange).collect();
        let mut stay = 0;
        for exchange in exchanges.iter_mut().rev().filter(|_| self.spec.coupled) {
            if stay + exchange.units.len() > self.spec.resident {
                break;
            }
            stay += exchange.units.len();
            for unit in &mut exchange.units {
                let again = Use { backward: true, chunk: unit.uses[0].chunk };
                unit.uses.extend(backward.contains(&again).then_some(again));
            }
        }
        exchanges.extend(backward[stay.min(backward.len())..].chunks(size).map(exchange));
        exchanges
    }

    /// Copies of parameters in, each exchange as soon as there is room for it.
    pub(super) fn load(&mut self, uses: &[Use]) -> Result<(), Faults> {
        let mut exchanges = self.exchanges(uses);
        let device = self.chunk(uses[0]).device;
        let lane = self.lane(device, LaneRole::H2d);
        for exchange in &mut exchanges {
            let pieces = if self.spec.sequential { 1 } else { exchange.units.len() };
            for batch in exchange.units.chunks(pieces) {
                let load = self.load_batch(lane, batch)?;
                exchange.loads.push(load);
                for unit in batch {
                    exchange.loads.extend(self.load_shared(lane, unit)?);
                }
            }
            self.leave(exchange)?;
        }
        self.make_room(lane, &exchanges);
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

    /// No more than k units are there at a time: an exchange comes in once enough others have left, in this iteration or the one
    /// before. What has been used keeps its room until something takes it.
    fn make_room(&mut self, lane: LaneId, exchanges: &[Exchange]) {
        let capacity = self.spec.resident.max(self.spec.swap);
        let mut leaving: Vec<&Exchange> = exchanges.iter().collect();
        leaving.sort_by_key(|exchange| {
            exchange.units.last().map(|unit| self.computed[&unit.uses[unit.uses.len() - 1]].last())
        });
        // How many units have left once the first so many exchanges have.
        let gone: Vec<usize> = leaving
            .iter()
            .scan(0, |sum, exchange| {
                *sum += exchange.units.len();
                Some(*sum)
            })
            .collect();
        let total = gone.last().copied().unwrap_or(0);
        let mut edges = Vec::new();
        let mut evicted = 0;
        let mut wanted = 0;
        for exchange in exchanges {
            wanted += exchange.units.len();
            let (must_leave, distance) = if wanted > capacity {
                (wanted - capacity, 0)
            } else {
                ((total + wanted).saturating_sub(capacity).max(wanted), 1)
            };
            let Some(index) = gone.iter().position(|gone| *gone >= must_leave).filter(|_| must_leave > 0) else {
                continue;
            };
            if distance == 0 && evicted <= index {
                let eviction = self.evict(lane, &leaving[evicted..=index]);
                edges.extend(exchange.loads.iter().map(|load| (eviction, *load, 0)));
                evicted = index + 1;
            }
            for load in &exchange.loads {
                edges.extend(leaving[index].leaves.iter().map(|leaves| (*leaves, *load, distance)));
            }
        }
        for (leaves, load, distance) in edges {
            self.wait(leaves, load, (distance, IdleCause::Memory));
        }
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
