//! Shards of parameters that a drive keeps: they are read into DRAM before each gather and before each
//! optimizer step, and written back after the step.
//!
//! ```text
//! nvme0.read        weights in ─┐                      weights in ─┐
//! gpu0.h2d                      └─► weights in ─┐                  │
//! gpu0.collective                               └─► all-gather     │
//! cpu0.optimizer                                                   └─► step ─┐
//! nvme0.write                                                                └─► write back
//! ```
//!
//! A device has [`LOAD_SLOTS`](spipe_plan::LOAD_SLOTS) shards in DRAM for gathers. A ring passes on what
//! the other devices have there, so that a shard is there until all devices have gathered it.

use super::{ShardedLowering, collectives::Whole, optimizer::Step};
use crate::{
    Access, Content, Lifetime,
    lower::drives::{copy, over_route},
};
use spipe_base::{ActionId, BufferId, Bytes, MemoryId, Payload, Subject};
use std::collections::BTreeMap;

/// The shards that have been read for the gather of one stage.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    /// In DRAM, by device.
    shards: BTreeMap<(usize, Content), BufferId>,
    /// The copies and gathers that use them, by device.
    uses: BTreeMap<usize, Vec<ActionId>>,
}

impl ShardedLowering<'_> {
    /// Adds the reads of a stage's shards, and of those that it borrows, where all devices gather it next.
    pub(super) fn read_shards(&mut self, stage: usize) {
        for at in 0..self.participants.len() {
            if self.participants[at].gathered.contains_key(&stage) {
                continue;
            }
            let own = (stage, self.whole(at, stage));
            for (owner, what) in std::iter::once(own).chain(self.borrowed_whole(at, stage)) {
                self.read_shard((at, owner), &what);
            }
        }
    }

    fn read_shard(&mut self, (at, owner): (usize, usize), what: &Whole) {
        let here = &self.participants[at];
        let (part, device) = (&here.parts[owner], here.device);
        let Some(drive) = part.shelf else { return };
        let place = (drive, part.home, part.parameters);
        let (slot, read) = self.read_from(at, place, (what.subject, what.content, what.shard));
        self.loads.enter(self.builder, (device, read));
        self.arrived.shards.insert((at, what.content), slot);
    }

    /// Adds a read from a drive into a slot in DRAM.
    fn read_from(
        &mut self,
        at: usize,
        (drive, home, kept): (MemoryId, MemoryId, BufferId),
        (subject, content, bytes): (Subject, Content, Bytes),
    ) -> (BufferId, ActionId) {
        let slot = self.builder.part(self.share(at), content, home, (bytes, Lifetime::Transient));
        let transfer = over_route(self.context, (drive, home), bytes, &mut self.faults);
        let ends = (Access::new(kept, 0), Access::new(slot, 1));
        (slot, copy(self.builder, drive, (Payload::WeightsIn, subject, transfer), ends))
    }

    /// The shard of a device from which a gather starts: in its home, or where it has been read from
    /// its drive.
    pub(super) fn shard(&self, at: usize, owner: usize, content: Content) -> Access {
        let home = || Access::new(self.participants[at].parts[owner].parameters, 0);
        self.arrived.shards.get(&(at, content)).map_or_else(home, |slot| Access::new(*slot, 1))
    }

    /// Notes that an action uses the shard of a device.
    pub(super) fn uses_shard(&mut self, at: usize, action: ActionId) {
        self.arrived.uses.entry(at).or_default().push(action);
    }

    /// Closes the slots of the shards that all devices have gathered.
    pub(super) fn leave_shards(&mut self) {
        let Arrived { shards, uses } = std::mem::take(&mut self.arrived);
        for (at, uses) in uses {
            if shards.keys().any(|(here, _)| *here == at) {
                self.loads.leave((self.participants[at].device, &uses));
            }
        }
    }

    /// The parameters that a step reads, with the read that has brought them from their drive if they
    /// are on one.
    pub(super) fn parameters_of_step(&mut self, step: &Step) -> (Access, Option<ActionId>) {
        let here = &self.participants[step.at];
        let (part, device) = (&here.parts[step.stage], here.device);
        let Some(drive) = part.shelf else { return (Access::new(part.parameters, 0), None) };
        let (home, content) = (part.home, Content::Parameters(part.stage.layers));
        let what = (step.subject, content, part.bytes.parameter_shard);
        let (slot, read) = self.read_from(step.at, (drive, home, part.parameters), what);
        self.shelved.enter(self.builder, (device, home), read);
        (Access::new(slot, 1), Some(read))
    }

    /// Adds the write of parameters after a step back to their drive; `read` has brought them from there.
    pub(super) fn shelve(&mut self, step: &Step, (stepped, read): (Access, ActionId)) -> Option<ActionId> {
        let here = &self.participants[step.at];
        let (part, device) = (&here.parts[step.stage], here.device);
        let (drive, home, kept) = (part.shelf?, part.home, Access::new(part.parameters, 1));
        let transfer = over_route(self.context, (home, drive), part.bytes.parameter_shard, &mut self.faults);
        let written = copy(self.builder, drive, (Payload::WriteBack, step.subject, transfer), (stepped, kept));
        self.shelved.leave((device, home), (read, written));
        Some(written)
    }
}
