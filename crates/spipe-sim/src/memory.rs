//! What memories hold, and since when.

use spipe_base::{ActionId, BufferId, Bytes, IdVec, MemoryId, SimTime};
use spipe_schedule::{Access, Action, Lifetime, Program};

/// A change of what a memory holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub at: SimTime,
    pub buffer: BufferId,
    pub opened: bool,
}

/// Changes in the order of time, packed.
#[derive(Default)]
pub(crate) struct Changes {
    at: Vec<SimTime>,
    /// The buffer, and in the lowest bit whether it was opened.
    what: Vec<u32>,
}

impl Changes {
    fn push(&mut self, at: SimTime, buffer: BufferId, opened: bool) {
        self.at.push(at);
        self.what.push((buffer.index() as u32) << 1 | u32::from(opened));
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Change> + '_ {
        let change = |(at, what): (&SimTime, &u32)| Change {
            at: *at,
            buffer: BufferId::new(*what >> 1),
            opened: *what & 1 == 1,
        };
        self.at.iter().zip(&self.what).map(change)
    }
}

/// The buffers that an action takes room for when it starts.
pub(crate) fn opened<'a>(program: &'a Program, action: &'a Action) -> impl Iterator<Item = BufferId> + 'a {
    let opens = |write: &&Access| {
        write.version == 1
            && matches!(program.buffers()[write.buffer].lifetime, Lifetime::Transient | Lifetime::Leaves { .. })
    };
    action.writes.iter().filter(opens).map(|write| write.buffer)
}

/// Calls `each` with the buffers that an action reads or writes, each once.
pub(crate) fn used(action: &Action, mut each: impl FnMut(BufferId)) {
    // Plain loops: this is asked of every action that ends.
    let among = |list: &[Access], buffer: BufferId| list.iter().any(|access| access.buffer == buffer);
    for (index, read) in action.reads.iter().enumerate() {
        if !among(&action.reads[..index], read.buffer) {
            each(read.buffer);
        }
    }
    for (index, write) in action.writes.iter().enumerate() {
        if !among(&action.reads, write.buffer) && !among(&action.writes[..index], write.buffer) {
            each(write.buffer);
        }
    }
}

/// How many actions use each buffer that is given back in the iteration; none of the others.
pub(crate) fn users(program: &Program) -> Vec<u32> {
    let mut users = vec![0; program.buffers().len()];
    for action in program.actions() {
        used(action, |buffer| {
            if matches!(program.buffers()[buffer].lifetime, Lifetime::Transient | Lifetime::Arrives) {
                users[buffer.index()] += 1;
            }
        });
    }
    users
}

/// The memories of a program while it runs.
pub(crate) struct Memories {
    pub held: IdVec<MemoryId, Bytes>,
    capacity: IdVec<MemoryId, Option<Bytes>>,
    limited: bool,
    /// How often each buffer was held before the changes that are remembered.
    pub before: Vec<u32>,
    /// The memories that held something before them.
    pub touched: IdVec<MemoryId, bool>,
    pub changes: Changes,
}

impl Memories {
    /// With what is there before the first iteration.
    pub fn new(program: &Program) -> Self {
        let memories = program.memories();
        let mut this = Self {
            held: memories.iter().map(|_| Bytes::ZERO).collect(),
            capacity: memories.iter().map(|memory| memory.capacity).collect(),
            limited: memories.iter().any(|memory| memory.capacity.is_some()),
            before: vec![0; program.buffers().len()],
            touched: memories.iter().map(|_| false).collect(),
            changes: Changes::default(),
        };
        for (id, buffer) in program.buffers().enumerate() {
            if matches!(buffer.lifetime, Lifetime::Resident | Lifetime::Arrives) {
                this.held[buffer.memory] += buffer.bytes;
                this.before[id.index()] = 1;
                this.touched[buffer.memory] = true;
            }
        }
        this
    }

    /// Makes room for the changes of one more iteration.
    pub fn expect(&mut self, program: &Program) {
        let most = 2 * program.buffers().iter().filter(|buffer| buffer.lifetime != Lifetime::Resident).count();
        self.changes.at.reserve(most);
        self.changes.what.reserve(most);
    }

    /// Remembers the changes before `until` by what they come to.
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

    /// A memory that holds more than it can before anything starts.
    pub fn overfull(&self) -> Option<MemoryId> {
        self.held.ids().find(|memory| self.capacity[*memory].is_some_and(|capacity| self.held[*memory] > capacity))
    }

    /// The first memory that has no room for what `action` takes when it starts, with that.
    pub fn lacking(&self, program: &Program, action: ActionId) -> Option<(MemoryId, Bytes)> {
        if !self.limited {
            return None;
        }
        let action = &program.actions()[action];
        let buffers = || opened(program, action).map(|buffer| &program.buffers()[buffer]);
        buffers().find_map(|buffer| {
            let free = self.capacity[buffer.memory]?.saturating_sub(self.held[buffer.memory]);
            let needed = buffers().filter(|other| other.memory == buffer.memory).map(|other| other.bytes).sum();
            (needed > free).then_some((buffer.memory, needed))
        })
    }

    pub fn open(&mut self, program: &Program, buffer: BufferId, at: SimTime) {
        let this = &program.buffers()[buffer];
        self.held[this.memory] += this.bytes;
        // What leaves this iteration is closed under the name that it has in the next.
        let buffer = if let Lifetime::Leaves { into } = this.lifetime { into } else { buffer };
        self.changes.push(at, buffer, true);
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
