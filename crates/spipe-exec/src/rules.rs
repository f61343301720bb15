//! What a program asks of its interpreter, laid out for a quick look: who waits for whom, what each action opens and uses.

use spipe_base::{ActionId, BufferId, Bytes, IdVec, LaneId, MemoryId};
use spipe_schedule::{Lifetime, Precedence, Program};
use std::collections::BTreeSet;

/// Tables over one program.
#[derive(Debug)]
pub(crate) struct Rules<'a> {
    pub program: &'a Program,
    /// By action, what must be met before it starts.
    pub arriving: IdVec<ActionId, Vec<Precedence>>,
    /// By action, the transient buffers of which it is the first writer.
    pub opens: IdVec<ActionId, Vec<BufferId>>,
    /// By action, the transient buffers that it uses.
    pub uses: IdVec<ActionId, Vec<BufferId>>,
    /// By buffer, how many actions use it.
    pub users: IdVec<BufferId, u32>,
    /// By memory, what is held throughout.
    pub resident: IdVec<MemoryId, Bytes>,
}

impl<'a> Rules<'a> {
    pub fn new(program: &'a Program) -> Self {
        let mut arriving: IdVec<ActionId, Vec<Precedence>> = program.actions().iter().map(|_| Vec::new()).collect();
        for precedence in program.precedences() {
            arriving[precedence.to].push(*precedence);
        }
        let mut users: IdVec<BufferId, u32> = program.buffers().iter().map(|_| 0).collect();
        let (mut opens, mut uses) = (IdVec::new(), IdVec::new());
        let transient = |buffer: &BufferId| program.buffers()[*buffer].lifetime == Lifetime::Transient;
        for action in program.actions() {
            let used: BTreeSet<BufferId> =
                action.reads.iter().chain(&action.writes).map(|access| access.buffer).filter(transient).collect();
            for buffer in &used {
                users[*buffer] += 1;
            }
            let first = action.writes.iter().filter(|write| write.version == 1).map(|write| write.buffer);
            opens.push(first.filter(transient).collect());
            uses.push(used.into_iter().collect());
        }
        let mut resident: IdVec<MemoryId, Bytes> = program.memories().iter().map(|_| Bytes::ZERO).collect();
        for buffer in program.buffers().iter().filter(|buffer| buffer.lifetime == Lifetime::Resident) {
            resident[buffer.memory] += buffer.bytes;
        }
        Self { program, arriving, opens, uses, users, resident }
    }

    /// The `position`th action of a lane, counted over all iterations, and its iteration.
    pub fn at(&self, lane: LaneId, position: usize) -> Option<(u32, ActionId)> {
        let queue = &self.program.lanes()[lane].queue;
        if queue.is_empty() {
            return None;
        }
        Some(((position / queue.len()) as u32, queue[position % queue.len()]))
    }

    /// What a memory can hold; everything if it is not limited.
    pub fn capacity(&self, memory: MemoryId) -> Bytes {
        self.program.memories()[memory].capacity.unwrap_or(Bytes::new(u64::MAX))
    }

    /// What `action` must acquire, by memory.
    pub fn needs(&self, action: ActionId) -> Vec<(MemoryId, Bytes)> {
        let mut needs: Vec<(MemoryId, Bytes)> = Vec::new();
        for buffer in &self.opens[action] {
            let buffer = &self.program.buffers()[*buffer];
            match needs.iter_mut().find(|(memory, _)| *memory == buffer.memory) {
                Some((_, bytes)) => *bytes += buffer.bytes,
                None => needs.push((buffer.memory, buffer.bytes)),
            }
        }
        needs
    }
}
