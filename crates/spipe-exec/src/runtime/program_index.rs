//! A program indexed by action and by buffer: precedences, and the buffers that each action opens
//! and uses.

use spipe_base::{ActionId, BufferId, Bytes, IdVec, LaneId, MemoryId};
use spipe_schedule::{Lifetime, Precedence, Program};
use std::collections::BTreeSet;

/// Tables over one program.
#[derive(Debug)]
pub(crate) struct ProgramIndex<'a> {
    pub program: &'a Program,
    /// By action, its incoming precedences.
    pub arriving: IdVec<ActionId, Vec<Precedence>>,
    /// By action, the buffers that it writes first, without resident ones.
    pub opens: IdVec<ActionId, Vec<BufferId>>,
    /// By action, the buffers that it uses, without resident ones.
    pub uses: IdVec<ActionId, Vec<BufferId>>,
    /// By buffer, the number of actions that use it; for a buffer that is carried into the next
    /// iteration, in both iterations.
    pub users: IdVec<BufferId, u32>,
    /// By memory, the bytes of resident and arriving buffers, which are held before the first
    /// action.
    pub resident: IdVec<MemoryId, Bytes>,
}

impl<'a> ProgramIndex<'a> {
    pub fn new(program: &'a Program) -> Self {
        let mut arriving: IdVec<ActionId, Vec<Precedence>> = program.actions().iter().map(|_| Vec::new()).collect();
        for precedence in program.precedences() {
            arriving[precedence.to].push(*precedence);
        }
        let mut users: IdVec<BufferId, u32> = program.buffers().iter().map(|_| 0).collect();
        let (mut opens, mut uses) = (IdVec::new(), IdVec::new());
        let comes_and_goes = |buffer: &BufferId| program.buffers()[*buffer].lifetime != Lifetime::Resident;
        for action in program.actions() {
            let used: BTreeSet<BufferId> =
                action.reads.iter().chain(&action.writes).map(|access| access.buffer).filter(comes_and_goes).collect();
            for buffer in &used {
                users[*buffer] += 1;
            }
            let first = action.writes.iter().filter(|write| write.version == 1).map(|write| write.buffer);
            opens.push(first.filter(comes_and_goes).collect());
            uses.push(used.into_iter().collect());
        }
        let mut resident: IdVec<MemoryId, Bytes> = program.memories().iter().map(|_| Bytes::ZERO).collect();
        for (id, buffer) in program.buffers().enumerate() {
            match buffer.lifetime {
                Lifetime::Resident | Lifetime::Arrives => resident[buffer.memory] += buffer.bytes,
                Lifetime::Leaves { into } => {
                    let both = users[id] + users[into];
                    (users[id], users[into]) = (both, both);
                }
                Lifetime::Transient => {}
            }
        }
        Self { program, arriving, opens, uses, users, resident }
    }

    /// Arriving buffers of the first iteration, with their number of users.
    pub fn arriving_first(&self) -> impl Iterator<Item = (BufferId, u32)> {
        let leaves = self.program.buffers().enumerate().filter_map(|(id, buffer)| match buffer.lifetime {
            Lifetime::Leaves { into } => Some((id, into)),
            _ => None,
        });
        leaves.map(|(id, into)| {
            // There is no iteration before the first one to use it.
            let before = self
                .program
                .actions()
                .iter()
                .filter(|action| action.reads.iter().chain(&action.writes).any(|access| access.buffer == id));
            (into, self.users[into] - before.count() as u32)
        })
    }

    /// The `position`th action of a lane, counted over all iterations, and its iteration.
    pub fn at(&self, lane: LaneId, position: usize) -> Option<(u32, ActionId)> {
        let queue = &self.program.lanes()[lane].queue;
        if queue.is_empty() {
            return None;
        }
        Some(((position / queue.len()) as u32, queue[position % queue.len()]))
    }

    /// The capacity of a memory; the largest number of bytes if it is not limited.
    pub fn capacity(&self, memory: MemoryId) -> Bytes {
        self.program.memories()[memory].capacity.unwrap_or(Bytes::new(u64::MAX))
    }

    /// Bytes that `action` must acquire, by memory.
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
