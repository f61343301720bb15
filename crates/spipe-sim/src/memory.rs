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
    /// What each action adds to memories of limited size when it starts.
    needs: Vec<(MemoryId, Bytes)>,
    opens_from: Vec<u32>,
    needs_from: Vec<u32>,
    uses_from: Vec<u32>,
    /// How many actions use each buffer.
    pub users: Vec<u32>,
}

impl Uses {
    pub fn of(program: &Program) -> Self {
        let (actions, buffers) = (program.actions().len(), program.buffers().len());
        let from_zero = || {
            let mut from = Vec::with_capacity(actions + 1);
            from.push(0);
            from
        };
        let mut this = Self {
            opens: Vec::with_capacity(buffers),
            uses: Vec::with_capacity(2 * buffers),
            needs: Vec::with_capacity(buffers),
            opens_from: from_zero(),
            needs_from: from_zero(),
            uses_from: from_zero(),
            users: vec![0; program.buffers().len()],
        };
        for action in program.actions() {
            let needs_start = this.needs.len();
            let lifetime = |buffer: BufferId| program.buffers()[buffer].lifetime;
            for write in action.writes.iter().filter(|write| write.version == 1) {
                if matches!(lifetime(write.buffer), Lifetime::Transient | Lifetime::Leaves { .. }) {
                    this.opens.push(write.buffer);
                    this.need(program, needs_start, write.buffer);
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
            this.needs_from.push(this.needs.len() as u32);
            this.uses_from.push(this.uses.len() as u32);
        }
        this
    }

    /// Adds a buffer to the needs of the action whose needs start there.
    fn need(&mut self, program: &Program, start: usize, buffer: BufferId) {
        let buffer = &program.buffers()[buffer];
        if program.memories()[buffer.memory].capacity.is_none() {
            return;
        }
        match self.needs[start..].iter_mut().find(|(memory, _)| *memory == buffer.memory) {
            Some((_, bytes)) => *bytes += buffer.bytes,
            None => self.needs.push((buffer.memory, buffer.bytes)),
        }
    }

    pub fn opens(&self, action: ActionId) -> &[BufferId] {
        &self.opens[self.opens_from[action.index()] as usize..self.opens_from[action.index() + 1] as usize]
    }

    pub fn needs(&self, action: ActionId) -> &[(MemoryId, Bytes)] {
        &self.needs[self.needs_from[action.index()] as usize..self.needs_from[action.index() + 1] as usize]
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

    /// The first memory that has no room for what it needs to take, with that.
    pub fn lacking(&self, needs: &[(MemoryId, Bytes)]) -> Option<(MemoryId, Bytes)> {
        needs.iter().copied().find(|(memory, needed)| {
            self.capacity[*memory].is_some_and(|capacity| self.held[*memory] + *needed > capacity)
        })
    }

    pub fn open(&mut self, program: &Program, buffer: BufferId, at: SimTime) {
        let this = &program.buffers()[buffer];
        self.held[this.memory] += this.bytes;
        // What leaves this iteration is closed under the name that it has in the next.
        let buffer = if let Lifetime::Leaves { into } = this.lifetime { into } else { buffer };
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
