//! What memories hold, and since when.

use spipe_base::{ActionId, BufferId, Bytes, IdVec, MemoryId, SimTime};
use spipe_schedule::{Lifetime, Program};

/// A change of what a memory holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub at: SimTime,
    pub buffer: BufferId,
    pub opened: bool,
}

/// Which buffers an action opens when it starts, and which it uses until it ends.
pub(crate) struct Uses {
    opens: Vec<BufferId>,
    uses: Vec<BufferId>,
    opens_from: Vec<u32>,
    uses_from: Vec<u32>,
    /// How many actions use each buffer.
    pub users: Vec<u32>,
}

impl Uses {
    pub fn of(program: &Program) -> Self {
        let mut this = Self {
            opens: Vec::new(),
            uses: Vec::new(),
            opens_from: vec![0],
            uses_from: vec![0],
            users: vec![0; program.buffers().len()],
        };
        for action in program.actions() {
            let lifetime = |buffer: BufferId| program.buffers()[buffer].lifetime;
            for write in action.writes.iter().filter(|write| write.version == 1) {
                if matches!(lifetime(write.buffer), Lifetime::Transient | Lifetime::Leaves { .. }) {
                    this.opens.push(write.buffer);
                }
            }
            let start = this.uses.len();
            for access in action.reads.iter().chain(&action.writes) {
                let counted = matches!(lifetime(access.buffer), Lifetime::Transient | Lifetime::Arrives);
                if counted && !this.uses[start..].contains(&access.buffer) {
                    this.uses.push(access.buffer);
                    this.users[access.buffer.index()] += 1;
                }
            }
            this.opens_from.push(this.opens.len() as u32);
            this.uses_from.push(this.uses.len() as u32);
        }
        this
    }

    pub fn opens(&self, action: ActionId) -> &[BufferId] {
        &self.opens[self.opens_from[action.index()] as usize..self.opens_from[action.index() + 1] as usize]
    }

    pub fn uses(&self, action: ActionId) -> &[BufferId] {
        &self.uses[self.uses_from[action.index()] as usize..self.uses_from[action.index() + 1] as usize]
    }
}

/// The memories of a program while it runs.
pub(crate) struct Memories {
    pub held: IdVec<MemoryId, Bytes>,
    capacity: IdVec<MemoryId, Option<Bytes>>,
    pub changes: Vec<Change>,
}

impl Memories {
    /// With what is there before the first iteration.
    pub fn new(program: &Program) -> Self {
        let mut this = Self {
            held: program.memories().iter().map(|_| Bytes::ZERO).collect(),
            capacity: program.memories().iter().map(|memory| memory.capacity).collect(),
            changes: Vec::new(),
        };
        for (id, buffer) in program.buffers().enumerate() {
            if matches!(buffer.lifetime, Lifetime::Resident | Lifetime::Arrives) {
                this.held[buffer.memory] += buffer.bytes;
                this.changes.push(Change { at: SimTime::ZERO, buffer: id, opened: true });
            }
        }
        this
    }

    /// A memory that holds more than it can before anything starts.
    pub fn overfull(&self) -> Option<MemoryId> {
        self.held.ids().find(|memory| self.capacity[*memory].is_some_and(|capacity| self.held[*memory] > capacity))
    }

    /// The first memory that has no room for what `buffers` add to it, with what they need there.
    pub fn lacking(&self, program: &Program, buffers: &[BufferId]) -> Option<(MemoryId, Bytes)> {
        buffers.iter().enumerate().find_map(|(index, buffer)| {
            let memory = program.buffers()[*buffer].memory;
            let capacity = self.capacity[memory]?;
            let needed: Bytes = buffers[..=index]
                .iter()
                .map(|buffer| &program.buffers()[*buffer])
                .filter(|buffer| buffer.memory == memory)
                .map(|buffer| buffer.bytes)
                .sum();
            (self.held[memory] + needed > capacity).then_some((memory, needed))
        })
    }

    pub fn open(&mut self, program: &Program, buffer: BufferId, at: SimTime) {
        let this = &program.buffers()[buffer];
        self.held[this.memory] += this.bytes;
        self.changes.push(Change { at, buffer, opened: true });
    }

    pub fn close(&mut self, program: &Program, buffer: BufferId, at: SimTime) {
        let this = &program.buffers()[buffer];
        self.held[this.memory] -= this.bytes;
        self.changes.push(Change { at, buffer, opened: false });
    }

    pub fn capacity(&self, memory: MemoryId) -> Bytes {
        self.capacity[memory].unwrap_or(Bytes::new(u64::MAX))
    }
}
