//! The lifetimes of buffers: which action acquires memory, which actions use it, and what is held
//! at the start.
//!
//! Every interpreter of programs follows these rules. An action acquires the buffers that it opens
//! when it starts. A buffer is released when the last of its users ends.

use super::{Access, Action, Lifetime, Program};
use spipe_base::{BufferId, Bytes, IdVec, MemoryId};

impl Program {
    /// The buffers for which `action` acquires memory when it starts: those that it writes first,
    /// unless they are held from the start of the iteration.
    pub fn opened_by<'a>(&'a self, action: &'a Action) -> impl Iterator<Item = BufferId> + 'a {
        let opens = |write: &&Access| {
            write.version == 1
                && matches!(self.buffers[write.buffer].lifetime, Lifetime::Transient | Lifetime::Leaves { .. })
        };
        self.writes(action).iter().filter(opens).map(|write| write.buffer)
    }

    /// By buffer, the number of actions of an iteration that use it. Zero for resident buffers,
    /// which are never released.
    pub fn users(&self) -> IdVec<BufferId, u32> {
        let mut users: IdVec<BufferId, u32> = self.buffers.iter().map(|_| 0).collect();
        for action in &self.actions {
            let counts = |buffer| self.buffers[buffer].lifetime != Lifetime::Resident;
            self.each_buffer(action, |buffer| users[buffer] += u32::from(counts(buffer)));
        }
        users
    }

    /// Calls `each` with every buffer that `action` reads or writes, without repetition.
    pub fn each_buffer(&self, action: &Action, mut each: impl FnMut(BufferId)) {
        // A plain loop: the simulator asks at the end of every action.
        let all = self.accesses(action);
        for (index, access) in all.iter().enumerate() {
            if !all[..index].iter().any(|before| before.buffer == access.buffer) {
                each(access.buffer);
            }
        }
    }

    /// By memory, the bytes that are held before the first action: resident buffers, and those that
    /// arrive.
    pub fn held_at_start(&self) -> IdVec<MemoryId, Bytes> {
        let mut held: IdVec<MemoryId, Bytes> = self.memories.iter().map(|_| Bytes::ZERO).collect();
        for buffer in self.buffers.iter().filter(|buffer| buffer.lifetime.is_held_at_start()) {
            held[buffer.memory] += buffer.bytes;
        }
        held
    }

    /// The name of a buffer of iteration `iteration` after that iteration, and the iteration to
    /// which it then belongs. Resident buffers belong to iteration 0, and a buffer that leaves is
    /// one that arrives in the next iteration.
    pub fn instance(&self, buffer: BufferId, iteration: u32) -> (BufferId, u32) {
        match self.buffers[buffer].lifetime {
            Lifetime::Resident => (buffer, 0),
            Lifetime::Leaves { into } => (into, iteration + 1),
            Lifetime::Transient | Lifetime::Arrives => (buffer, iteration),
        }
    }
}

impl Lifetime {
    /// Whether the buffer is held before the first action.
    pub const fn is_held_at_start(self) -> bool {
        matches!(self, Self::Resident | Self::Arrives)
    }
}
