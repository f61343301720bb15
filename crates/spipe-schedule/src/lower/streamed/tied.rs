//! Tied parameters of layers in two chunks, such as the table of an embedding and its head.
//!
//! The host holds them once. They are loaded with the chunk that borrows them. The gradients from
//! its use leave with its own, and are added to the owner's on the host before the optimizer step.
//!
//! If both chunks stay on their devices, the owner's device holds and updates them. A borrowing
//! chunk on the same device reads them there; one on another device has a copy, which is renewed
//! after each optimizer step.

use super::{StreamedLowering, Transfer, Unit, Visit};
use crate::{Access, Content, Lifetime, NewAction};
use spipe_base::{ActionId, ActionKind, BufferId, Bytes, Faults, LaneId, LaneRole, LayerRange, Payload, Subject};
use spipe_model::Tie;

/// Tied parameters that a chunk borrows from another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Borrowed {
    pub tie: Tie,
    pub parameters: Bytes,
    /// Zero if they are not trained.
    pub gradients: Bytes,
}

/// Gradients from a borrowing chunk that have arrived where the owner's optimizer step runs.
#[derive(Clone, Copy)]
pub(super) struct Arrived {
    tie: Tie,
    gradients: Access,
}

impl StreamedLowering<'_> {
    /// Adds the buffer of borrowed parameters for a unit.
    pub(super) fn hold_tied(&mut self, unit: &Unit, lifetime: Lifetime) {
        let first = unit.visits[0];
        let Some(borrowed) = self.chunk(first).borrowed else { return };
        let memory = self.builder.memory_of(self.chunk(first).device);
        let buffer = self.builder.buffer(Content::Shared(borrowed.tie.user), memory, borrowed.parameters, lifetime);
        self.tied.extend(unit.visits.iter().map(|this| (*this, buffer)));
    }

    /// Adds the buffers of borrowed parameters for chunks that stay, unless the owner is on the
    /// same device.
    pub(super) fn hold_tied_of_resident(&mut self) {
        for chunk in (0..self.spec.forward.len()).filter(|chunk| self.spec.forward[*chunk].stays) {
            let forward = Visit { backward: false, chunk };
            let unit = Unit { visits: vec![forward, Visit { backward: true, chunk }] };
            match self.owner_beside(forward) {
                Some(buffer) => self.tied.extend(unit.visits.iter().map(|this| (*this, buffer))),
                None => self.hold_tied(&unit, Lifetime::Resident),
            }
        }
    }

    /// The chunk that owns the borrowed parameters of a chunk.
    fn owner(&self, this: Visit) -> Option<Visit> {
        let owner = self.chunk(this).borrowed?.tie.owner;
        let chunk = self.spec.forward.iter().position(|chunk| chunk.layers.contains(owner))?;
        Some(Visit { chunk, ..this })
    }

    /// The parameters of the owner, if it is on the same device.
    fn owner_beside(&self, this: Visit) -> Option<BufferId> {
        let owner = self.owner(this).filter(|owner| self.chunk(*owner).device == self.chunk(this).device)?;
        self.weights.get(&owner).copied()
    }

    /// The borrowed parameters that a chunk reads.
    pub(super) fn tied_parameters(&self, this: Visit) -> Option<Access> {
        self.tied.get(&this).map(|buffer| Access::new(*buffer, self.version_of_weights(this)))
    }

    /// Adds the copy of borrowed parameters to the device, if a unit has any.
    pub(super) fn load_tied(&mut self, lane: LaneId, unit: &Unit) -> Result<Option<ActionId>, Faults> {
        let first = unit.visits[0];
        let (Some(borrowed), Some(target)) = (self.chunk(first).borrowed, self.tied_parameters(first)) else {
            return Ok(None);
        };
        let owner = borrowed.tie.owner;
        let Some(piece) = self.parameters.iter().find(|piece| piece.layers.contains(owner)).copied() else {
            return Ok(None);
        };
        let transfer =
            self.links.copy(piece.home, self.builder.memory_of(self.chunk(first).device), borrowed.parameters)?;
        let subject = self.about(first, borrowed.tie);
        let from = self.host_tied(first, piece, borrowed)?;
        let what = (lane, ActionKind::Copy(Payload::WeightsIn), subject);
        Ok(Some(self.copy(what, transfer, (vec![from], vec![target]))))
    }

    fn about(&self, this: Visit, tie: Tie) -> Subject {
        Subject { layers: LayerRange::new(tie.owner, tie.owner), ..Subject::stage(self.stage(this)) }
    }

    /// Adds the accesses of a backward to the gradients of borrowed parameters.
    pub(super) fn add_tied_gradients(
        &mut self,
        (this, microbatch): (Visit, usize),
        (reads, writes): (&mut Vec<Access>, &mut Vec<Access>),
    ) {
        let Some(gradients) = self.buffer_of_tied_gradients(this) else { return };
        let done = microbatch as u32;
        reads.extend((done > 0).then_some(Access::new(gradients, done)));
        writes.push(Access::new(gradients, done + 1));
    }

    fn buffer_of_tied_gradients(&mut self, this: Visit) -> Option<BufferId> {
        let borrowed = self.chunk(this).borrowed.filter(|borrowed| borrowed.gradients > Bytes::ZERO)?;
        if let Some(gradients) = self.tied_gradients.get(&this.chunk) {
            return Some(*gradients);
        }
        let content = Content::SharedGradients(borrowed.tie.user);
        let gradients = self.on_device(this, content, borrowed.gradients);
        self.tied_gradients.insert(this.chunk, gradients);
        Some(gradients)
    }

    /// Adds the copy of the gradients of borrowed parameters to the host of their owner.
    pub(super) fn tied_gradients_out(&mut self, this: Visit) -> Result<Option<(ActionId, Arrived)>, Faults> {
        let (Some(borrowed), Some(gradients)) =
            (self.chunk(this).borrowed, self.tied_gradients.get(&this.chunk).copied())
        else {
            return Ok(None);
        };
        let tie = borrowed.tie;
        let owner = self.spec.backward.iter().find(|chunk| chunk.layers.contains(tie.owner));
        let Some(home) = owner.map(|owner| owner.home) else { return Ok(None) };
        let device = self.chunk(this).device;
        let (content, bytes) = (Content::SharedGradients(tie.user), borrowed.gradients);
        let there = Access::new(self.builder.buffer(content, home, bytes, Lifetime::Transient), 1);
        let transfer = self.links.copy(self.builder.memory_of(device), home, bytes)?;
        let lane = self.lane(device, LaneRole::D2h);
        let what = (lane, ActionKind::Copy(Payload::GradientsOut), self.about(this, tie));
        let last = self.complete(gradients);
        let copy = self.copy(what, transfer, (vec![last], vec![there]));
        Ok(Some((copy, Arrived { tie, gradients: there })))
    }

    /// Passes the gradients of parameters borrowed by a chunk that stays to the device of their
    /// owner.
    pub(super) fn tied_gradients_to_owner(&mut self, this: Visit) -> Result<Option<Arrived>, Faults> {
        let (Some(borrowed), Some(gradients), Some(owner)) =
            (self.chunk(this).borrowed, self.tied_gradients.get(&this.chunk).copied(), self.owner(this))
        else {
            return Ok(None);
        };
        let (tie, last) = (borrowed.tie, self.complete(gradients));
        if self.owner_beside(this).is_some() {
            return Ok(Some(Arrived { tie, gradients: last }));
        }
        let there = self.on_device(owner, Content::SharedGradients(tie.user), borrowed.gradients);
        let there = Access::new(there, 1);
        self.copy_tied((this, owner), (Payload::GradientsOut, borrowed.gradients, tie), (last, there))?;
        Ok(Some(Arrived { tie, gradients: there }))
    }

    /// Copies the updated parameters of `owner` to the chunks on other devices that borrow them.
    pub(super) fn return_tied_parameters(&mut self, owner: Visit) -> Result<(), Faults> {
        let users = (0..self.spec.backward.len()).map(|chunk| Visit { chunk, ..owner });
        let users: Vec<Visit> = users.filter(|user| self.owner(*user) == Some(owner)).collect();
        for user in users {
            let Some(borrowed) = self.chunk(user).borrowed.filter(|_| self.owner_beside(user).is_none()) else {
                continue;
            };
            let (Some(copy), stepped) = (self.tied.get(&user).copied(), self.weights[&owner]) else { continue };
            let (stepped, copy) = (Access::new(stepped, 1), Access::new(copy, 1));
            self.copy_tied((owner, user), (Payload::WeightsIn, borrowed.parameters, borrowed.tie), (stepped, copy))?;
        }
        Ok(())
    }

    /// Adds a copy between the devices of two chunks.
    fn copy_tied(
        &mut self,
        (from, to): (Visit, Visit),
        (payload, bytes, tie): (Payload, Bytes, Tie),
        (read, write): (Access, Access),
    ) -> Result<(), Faults> {
        let (sender, receiver) = (self.chunk(from).device, self.chunk(to).device);
        let transfer = self.links.copy(self.builder.memory_of(sender), self.builder.memory_of(receiver), bytes)?;
        let what = (self.channel(sender, receiver, payload), ActionKind::Copy(payload), self.about(from, tie));
        self.copy(what, transfer, (vec![read], vec![write]));
        Ok(())
    }

    /// Adds gradients that have arrived for a chunk's parameters to its own, on the lane of the
    /// optimizer step.
    pub(super) fn accumulate_tied(
        &mut self,
        (this, lane): (Visit, LaneId),
        gradients: Access,
        arrived: Option<Arrived>,
    ) -> Access {
        let Some(arrived) = arrived.filter(|arrived| self.chunk(this).layers.contains(arrived.tie.owner)) else {
            return gradients;
        };
        let Transfer { work, flows } = self.chunk(this).accumulate.clone();
        let sum = Access::new(gradients.buffer, gradients.version + 1);
        self.builder.action(NewAction {
            lane,
            kind: ActionKind::Accumulate,
            subject: self.about(this, arrived.tie),
            reads: vec![arrived.gradients, gradients],
            writes: vec![sum],
            work,
            flows,
            guard: None,
        });
        sum
    }
}
