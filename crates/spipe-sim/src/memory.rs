//! The memories of a program over time.

use spipe_base::{ActionId, BufferId, Bytes, IdVec, MemoryId, SimTime};
use spipe_schedule::{Lifetime, Program};

/// The opening or closing of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub at: SimTime,
    pub buffer: BufferId,
    pub opened: bool,
}

/// Changes in chronological order, packed.
#[derive(Default)]
pub(crate) struct Changes {
    at: Vec<SimTime>,
    /// The buffer, with its opening in the lowest bit.
    what: Vec<u32>,
}

impl Changes {
    fn push(&mut self, at: SimTime, buffer: BufferId, opened: bool) {
        self.at.push(at);
        self.what.push((buffer.index() as u32) << 1 | u32::from(opened));
    }

    /// All changes.
    pub fn iter(&self) -> impl Iterator<Item = Change> + '_ {
        let change = |(at, what): (&SimTime, &u32)| Change {
            at: *at,
            buffer: BufferId::new(*what >> 1),
            opened: *what & 1 == 1,
        };
        self.at.iter().zip(&self.what).map(change)
    }
}

/// By buffer, the number of actions after which an instance is released; zero for buffers that are
/// never released in their own iteration. A buffer that leaves is released in the next iteration,
/// under the name that it has there.
pub(crate) fn releasing_users(program: &Program) -> IdVec<BufferId, u32> {
    let mut users = program.users();
    for (users, buffer) in users.iter_mut().zip(program.buffers()) {
        if let Lifetime::Leaves { .. } = buffer.lifetime {
            *users = 0;
        }
    }
    users
}

/// The memories of a program while it runs.
pub(crate) struct Memories {
    pub held: IdVec<MemoryId, Bytes>,
    capacity: IdVec<MemoryId, Option<Bytes>>,
    limited: bool,
    /// The instances of each buffer that were held before `changes`.
    pub before: Vec<u32>,
    /// The memories that held anything before `changes`.
    pub touched: IdVec<MemoryId, bool>,
    pub changes: Changes,
}

impl Memories {
    /// The memories before the first iteration.
    pub fn new(program: &Program) -> Self {
        let memories = program.memories();
        let mut this = Self {
            held: program.held_at_start(),
            capacity: memories.iter().map(|memory| memory.capacity).collect(),
            limited: memories.iter().any(|memory| memory.capacity.is_some()),
            before: vec![0; program.buffers().len()],
            touched: memories.iter().map(|_| false).collect(),
            changes: Changes::default(),
        };
        for (id, buffer) in program.buffers().enumerate().filter(|(_, buffer)| buffer.lifetime.is_held_at_start()) {
            this.before[id.index()] = 1;
            this.touched[buffer.memory] = true;
        }
        this
    }

    /// Reserves space for the changes of one more iteration.
    pub fn expect(&mut self, program: &Program) {
        let most = 2 * program.buffers().iter().filter(|buffer| buffer.lifetime != Lifetime::Resident).count();
        self.changes.at.reserve(most);
        self.changes.what.reserve(most);
    }

    /// Folds the changes before `until` into `before`.
    pub fn forget(&mut self, program: &Program, until: SimTime) {
        let old = self.changes.at.partition_point(|at| *at < until);
        for change in self.changes.iter().take(old) {
            let count = &mut self.before[change.buffer.index()];
            *count = if change.opened { *count + 1 } else { *count - 1 };
            self.touched[program.buffers()[change.buffer].memory] = true;
        }
        self.changes.at.drain(..old);
        self.changes.what.drain(..old);
    }

    /// A memory whose capacity is exceeded before the first action.
    pub fn overfull(&self) -> Option<MemoryId> {
        self.held.ids().find(|memory| self.capacity[*memory].is_some_and(|capacity| self.held[*memory] > capacity))
    }

    /// The first memory that lacks room for the buffers that `action` opens, with their bytes.
    pub fn lacking(&self, program: &Program, action: ActionId) -> Option<(MemoryId, Bytes)> {
        if !self.limited {
            return None;
        }
        let action = &program.actions()[action];
        let buffers = || program.opened_by(action).map(|buffer| &program.buffers()[buffer]);
        buffers().find_map(|buffer| {
            let free = self.capacity[buffer.memory]?.saturating_sub(self.held[buffer.memory]);
            let needed = buffers().filter(|other| other.memory == buffer.memory).map(|other| other.bytes).sum();
            (needed > free).then_some((buffer.memory, needed))
        })
    }

    pub fn open(&mut self, program: &Program, buffer: BufferId, at: SimTime) {
        let this = &program.buffers()[buffer];
        self.held[this.memory] += this.bytes;
        let (instance, _) = program.instance(buffer, 0);
        self.changes.push(at, instance, true);
    }

    pub fn close(&mut self, program: &Program, buffer: BufferId, at: SimTime) {
        let this = &program.buffers()[buffer];
        self.held[this.memory] -= this.bytes;
        self.changes.push(at, buffer, false);
    }

    pub fn capacity(&self, memory: MemoryId) -> Bytes {
        self.capacity[memory].unwrap_or(Bytes::new(u64::MAX))
    }
}
