//! Parameters on their way in (and out): k units are resident, k′ are exchanged at a time.

use super::{Rounds, Use};
use crate::{Access, Content, Lifetime};
use spipe_base::{
    ActionId, ActionKind, BufferId, Bytes, Faults, IdleCause, LaneRole, LayerId, LayerRange, MemoryId, Payload, Subject,
};
use std::collections::BTreeMap;

/// Parameters that are loaded once: for one use, or for the last forward and the first backward of a chunk.
struct Resident {
    uses: Vec<Use>,
    /// The copy that brings them, and what must end before their room is free.
    load: Option<ActionId>,
    leaves: Option<ActionId>,
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
            let Some(owner) = owners
                .iter()
                .find(|chunk| chunk.layers.first() <= layers.first() && layers.last() <= chunk.layers.last())
            else {
                continue;
            };
            // A piece has its share of the chunk by layers; the last piece of a chunk takes what rounding leaves.
            let before = layers.first().index() - owner.layers.first().index();
            let share = |layers: usize| owner.weights.get() as u128 * layers as u128 / owner.layers.count() as u128;
            let bytes = Bytes::new((share(before + layers.count()) - share(before)) as u64);
            pieces.push((layers, bytes, owner.home));
        }
        for (layers, bytes, home) in pieces {
            let buffer = self.builder.buffer(Content::Parameters(layers), home, bytes, Lifetime::Resident);
            self.parameters.push((layers, buffer, home));
        }
    }

    /// The pieces of the host's parameters within `layers`.
    pub(super) fn pieces(&self, layers: LayerRange) -> Vec<(BufferId, MemoryId)> {
        let within = |piece: &&(LayerRange, BufferId, MemoryId)| {
            layers.first() <= piece.0.first() && piece.0.last() <= layers.last()
        };
        self.parameters.iter().filter(within).map(|(_, buffer, home)| (*buffer, *home)).collect()
    }

    /// A place on the device for the parameters of every use; the uses that follow each other at the turn share theirs.
    pub(super) fn hold_weights(&mut self, uses: &[Use]) {
        let lifetime = if self.spec.streams { Lifetime::Transient } else { Lifetime::Resident };
        for resident in self.residents(uses) {
            let first = resident.uses[0];
            let (device, layers, bytes) = {
                let chunk = self.chunk(first);
                (chunk.device, chunk.layers, chunk.weights)
            };
            let memory = self.builder.memory_of(device);
            let buffer = self.builder.buffer(Content::Parameters(layers), memory, bytes, lifetime);
            for this in resident.uses {
                self.weights.insert(this, buffer);
            }
        }
    }

    /// What is loaded, in order. At the turn from forward to backward the last k units are there already, in whole exchanges.
    fn residents(&self, uses: &[Use]) -> Vec<Resident> {
        let forward = uses.iter().filter(|this| !this.backward).count();
        let stay = if self.spec.coupled {
            (self.spec.resident / self.spec.swap.max(1) * self.spec.swap).min(forward)
        } else {
            0
        };
        let mut residents: Vec<Resident> = Vec::new();
        for (index, this) in uses.iter().enumerate() {
            let stays = this.backward && index < forward + stay;
            match residents.iter_mut().find(|other| stays && other.uses[0].chunk == this.chunk) {
                Some(other) => other.uses.push(*this),
                None => residents.push(Resident { uses: vec![*this], load: None, leaves: None }),
            }
        }
        residents
    }

    /// Copies of parameters in, `swap` units at a time, each as soon as there is room for it.
    pub(super) fn load(&mut self, uses: &[Use]) -> Result<(), Faults> {
        let mut residents = self.residents(uses);
        let (first, size) = (self.chunk(uses[0]).device, self.spec.swap.max(1));
        let lane = self.lane(first, LaneRole::H2d);
        for group in residents.chunks_mut(size) {
            let pieces = if self.spec.sequential { 1 } else { group.len() };
            for batch in group.chunks_mut(pieces) {
                let load = self.load_batch(lane, batch)?;
                for resident in batch {
                    resident.load = Some(load);
                }
            }
        }
        self.evict(&mut residents)?;
        self.make_room(&residents);
        Ok(())
    }

    fn load_batch(&mut self, lane: spipe_base::LaneId, batch: &[Resident]) -> Result<ActionId, Faults> {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let mut from: BTreeMap<MemoryId, Bytes> = BTreeMap::new();
        let device = self.chunk(batch[0].uses[0]).device;
        let memory = self.builder.memory_of(device);
        for resident in batch {
            let chunk = self.chunk(resident.uses[0]);
            let pieces = self.pieces(chunk.layers);
            let homes = pieces.len() as u64;
            for (piece, home) in &pieces {
                reads.push(Access::new(*piece, 0));
                *from.entry(*home).or_default() += Bytes::new(chunk.weights.get() / homes.max(1));
            }
            writes.push(Access::new(self.weights[&resident.uses[0]], 1));
        }
        let mut transfer = super::Transfer::default();
        for (home, bytes) in from {
            let part = self.links.copy(home, memory, bytes)?;
            transfer.work += part.work;
            transfer.flows.extend(part.flows);
        }
        let first = batch[0].uses[0];
        let subject = Subject { layers: Some(self.chunk(first).layers), ..Subject::stage(self.stage(first)) };
        Ok(self.copy((lane, ActionKind::Copy(Payload::WeightsIn), subject), transfer, (reads, writes)))
    }

    /// What must end before the room of each resident is free: its last use, or the copy back.
    fn evict(&mut self, residents: &mut [Resident]) -> Result<(), Faults> {
        for resident in residents.iter_mut() {
            let last = resident.uses[resident.uses.len() - 1];
            let computed = self.computed[&last].last().copied();
            resident.leaves = computed;
        }
        if !self.spec.write_back {
            return Ok(());
        }
        let mut order: Vec<usize> = (0..residents.len()).collect();
        order.sort_by_key(|index| residents[*index].leaves);
        for group in order.chunks(self.spec.swap.max(1)) {
            let pieces = if self.spec.sequential { 1 } else { group.len() };
            for batch in group.chunks(pieces) {
                let mut bytes = Bytes::ZERO;
                let mut reads = Vec::new();
                let mut home = None;
                for index in batch {
                    let first = residents[*index].uses[0];
                    bytes += self.chunk(first).weights;
                    home = Some(self.chunk(first).home);
                    reads.push(Access::new(self.weights[&first], 1));
                }
                let last = residents[batch[batch.len() - 1]].uses[0];
                let device = self.chunk(last).device;
                let memory = self.builder.memory_of(device);
                let transfer = self.links.copy(memory, home.unwrap_or(memory), bytes)?;
                let lane = self.lane(device, LaneRole::D2h);
                let subject = Subject { layers: Some(self.chunk(last).layers), ..Subject::stage(self.stage(last)) };
                let kind = ActionKind::Copy(Payload::WriteBack);
                let copy = self.copy((lane, kind, subject), transfer, (reads, Vec::new()));
                for index in batch {
                    if let Some(computed) = residents[*index].leaves {
                        self.wait(computed, copy, (0, IdleCause::Order));
                    }
                }
                for index in batch {
                    residents[*index].leaves = Some(copy);
                }
            }
        }
        Ok(())
    }

    /// No more than k units are there at a time: a load waits until enough others have left, in this iteration or the one before.
    fn make_room(&mut self, residents: &[Resident]) {
        let capacity = self.spec.resident.max(self.spec.swap);
        let mut leaving: Vec<ActionId> = residents.iter().filter_map(|resident| resident.leaves).collect();
        leaving.sort_unstable();
        let total = residents.len();
        for (index, resident) in residents.iter().enumerate() {
            // Units that are there or asked for once the exchange of this one has come in.
            let wanted = ((index / self.spec.swap.max(1) + 1) * self.spec.swap.max(1)).min(total);
            let Some(load) = resident.load else { continue };
            if let Some(before) = wanted.checked_sub(capacity + 1) {
                // Whole exchanges leave together.
                let whole =
                    (before / self.spec.swap.max(1) * self.spec.swap.max(1) + self.spec.swap.max(1) - 1).min(total - 1);
                self.wait(leaving[whole], load, (0, IdleCause::Memory));
            } else if let Some(before) = (total + wanted).checked_sub(capacity + 1) {
                self.wait(leaving[before.min(total - 1)], load, (1, IdleCause::Memory));
            }
        }
    }
}
