//! A program indexed by action and by buffer: precedences, and the buffers that each action opens
//! and uses.

use spipe_base::{ActionId, BufferId, Bytes, IdVec, LaneId, MemoryId};
use spipe_schedule::{Action, Lifetime, Precedence, Program};

/// Tables over one program.
#[derive(Debug)]
pub(crate) struct ProgramIndex<'a> {
    pub program: &'a Program,
    /// By action, its incoming precedences.
    pub arriving: IdVec<ActionId, Vec<Precedence>>,
    /// By action, the buffers for which it acquires memory when it starts.
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
        let opens = program.actions().iter().map(|action| program.opened_by(action).collect()).collect();
        let uses = program.actions().iter().map(|action| uses(program, action)).collect();
        let mut users = program.users();
        for (id, buffer) in program.buffers().enumerate() {
            if let Lifetime::Leaves { into } = buffer.lifetime {
                let both = users[id] + users[into];
                (users[id], users[into]) = (both, both);
            }
        }
        let resident = program.held_at_start();
        Self { program, arriving, opens, uses, users, resident }
    }

    /// Arriving buffers of the first iteration, with their number of users.
    pub fn arriving_first(&self) -> impl Iterator<Item = (BufferId, u32)> {
        // No iteration before the first one uses them.
        let users = self.program.users();
        let leaves = self.program.buffers().iter().filter_map(|buffer| match buffer.lifetime {
            Lifetime::Leaves { into } => Some(into),
            _ => None,
        });
        leaves.map(move |into| (into, users[into]))
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

/// The buffers that `action` uses, without resident ones, in the order of their ids.
fn uses(program: &Program, action: &Action) -> Vec<BufferId> {
    let mut uses = Vec::new();
    program.each_buffer(action, |buffer| uses.push(buffer));
    uses.retain(|buffer| program.buffers()[*buffer].lifetime != Lifetime::Resident);
    uses.sort_unstable();
    uses
}
