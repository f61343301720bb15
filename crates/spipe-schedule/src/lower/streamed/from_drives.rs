//! Parameters that a drive keeps: they are read into DRAM before each copy to a device and before
//! each optimizer step, and written back after the step.
//!
//! ```text
//! nvme0.read     weights in ─┐        weights in ─┐
//! gpu0.h2d                   └─► weights in       │
//! cpu0.optimizer                                  └─► step ─┐
//! nvme0.write                                               └─► write back
//! ```
//!
//! A device has [`LOAD_SLOTS`](spipe_plan::LOAD_SLOTS) copies in DRAM; the steps of a socket have slots as those of states.

use super::{StreamedLowering, Visit, optimizer::Complete, tied::Borrowed, weights::Piece};
use crate::{Access, Content, Lifetime, lower::drives::copy_all};
use spipe_base::{ActionId, Bytes, Faults, LayerRange, MemoryId, Payload, Subject};

impl StreamedLowering<'_> {
    /// The parameters of a piece on the host for a copy to the device of `first`: in their home, or
    /// read from their drive, of which the copy moves `moved`.
    pub(super) fn on_host(&mut self, first: Visit, (piece, moved): (Piece, Bytes)) -> Result<Access, Faults> {
        let Some(shelf) = piece.shelf else { return Ok(Access::new(piece.buffer, 0)) };
        let bytes = self.builder.bytes_of(piece.buffer);
        self.read(first, (piece, shelf), (Content::Parameters(piece.layers), [bytes, moved], piece.layers))
    }

    /// The same of tied parameters, of which the piece of their owner is read in part.
    pub(super) fn host_tied(
        &mut self,
        first: Visit,
        piece: Piece,
        Borrowed { tie, parameters, .. }: Borrowed,
    ) -> Result<Access, Faults> {
        let Some(shelf) = piece.shelf else { return Ok(Access::new(piece.buffer, 0)) };
        let layers = LayerRange::new(tie.owner, tie.owner).unwrap_or(piece.layers);
        self.read(first, (piece, shelf), (Content::Shared(tie.user), [parameters; 2], layers))
    }

    /// Adds a read of parameters from their drive into a slot of a device.
    fn read(
        &mut self,
        first: Visit,
        (piece, shelf): (Piece, MemoryId),
        (content, [bytes, moved], layers): (Content, [Bytes; 2], LayerRange),
    ) -> Result<Access, Faults> {
        let staged = Access::new(self.builder.buffer(content, piece.home, bytes, Lifetime::Transient), 1);
        let transfer = self.links.copy(shelf, piece.home, moved)?;
        let subject = Subject { layers: Some(layers), ..Subject::stage(self.stage(first)) };
        let ends = (vec![Access::new(piece.buffer, 0)], vec![staged]);
        let read = copy_all(&mut self.builder, shelf, (Payload::WeightsIn, subject, transfer), ends);
        let device = self.chunk(first).device;
        self.loads.enter(&mut self.builder, (device, read));
        Ok(staged)
    }

    /// The parameters of a step at a version, on the host.
    pub(super) fn parameters_at(&self, complete: &Complete, version: u32) -> Vec<Access> {
        let pieces = self.pieces(self.chunk(complete.this).layers);
        pieces.into_iter().map(|piece| Access::new(piece.buffer, version)).collect()
    }

    /// The parameters that a step on a socket reads, with the read that has brought them from their
    /// drive if they are on one.
    pub(super) fn parameters_of_step(
        &mut self,
        complete: &Complete,
    ) -> Result<(Vec<Access>, Option<ActionId>), Faults> {
        let chunk = self.chunk(complete.this);
        let (Some(shelf), Some(queue), home) = (chunk.shelf, chunk.socket, chunk.home) else {
            return Ok((self.parameters_at(complete, 0), None));
        };
        let pieces = self.pieces(chunk.layers);
        let bytes: Vec<Bytes> = pieces.iter().map(|piece| self.builder.bytes_of(piece.buffer)).collect();
        let transfer = self.links.copy(shelf, home, bytes.iter().copied().sum())?;
        let stage = |(piece, bytes): (&Piece, &Bytes)| {
            let content = Content::Parameters(piece.layers);
            Access::new(self.builder.buffer(content, home, *bytes, Lifetime::Transient), 1)
        };
        let staged: Vec<Access> = pieces.iter().zip(&bytes).map(stage).collect();
        let kept = pieces.iter().map(|piece| Access::new(piece.buffer, 0)).collect();
        let what = (Payload::WeightsIn, complete.subject, transfer);
        let read = copy_all(&mut self.builder, shelf, what, (kept, staged.clone()));
        self.shelved.enter(&mut self.builder, (queue, home), read);
        Ok((staged, Some(read)))
    }

    /// Writes the parameters after a step back to their drive.
    pub(super) fn shelve(&mut self, complete: &Complete, (before, read): (&[Access], ActionId)) -> Result<(), Faults> {
        let chunk = self.chunk(complete.this);
        let (Some(shelf), Some(queue), home) = (chunk.shelf, chunk.socket, chunk.home) else { return Ok(()) };
        let stepped: Vec<Access> = before.iter().map(|one| Access::new(one.buffer, one.version + 1)).collect();
        let bytes = before.iter().map(|one| self.builder.bytes_of(one.buffer)).sum();
        let transfer = self.links.copy(home, shelf, bytes)?;
        let kept = self.parameters_at(complete, 1);
        let written =
            copy_all(&mut self.builder, shelf, (Payload::WriteBack, complete.subject, transfer), (stepped, kept));
        self.shelved.leave((queue, home), (read, written));
        Ok(())
    }
}
