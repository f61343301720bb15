//! The work of a run's threads with memory: page faults, large allocations, bytes moved.

use super::system;
use spipe_base::Bytes;
use std::{
    cell::Cell,
    sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed},
};

/// The work of some threads with memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostWork {
    /// Minor page faults: pages that the system had to find and clear.
    pub faults: u64,
    /// Allocations of at least 1 MiB, if the process has [`Allocator`](super::Allocator).
    pub allocations: u64,
    /// Bytes that transfers have moved, each counted once: the work of the copy engine of a device, or of the
    /// core that plays it.
    pub moved: Bytes,
    /// Bytes that cores have copied for transfers beyond that.
    pub copied: Bytes,
    /// Bytes that transfers to devices have read from memory that is not pinned.
    pub unpinned: Bytes,
}

impl HostWork {
    /// The work since `before`.
    fn since(self, before: Self) -> Self {
        Self {
            faults: self.faults.saturating_sub(before.faults),
            allocations: self.allocations - before.allocations,
            moved: self.moved - before.moved,
            copied: self.copied - before.copied,
            unpinned: self.unpinned - before.unpinned,
        }
    }
}

/// The work of one thread since it began.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Its number in the system; 0 before it begins and after it ends.
    thread: AtomicI32,
    /// Its page faults when they were last asked for.
    faults: AtomicU64,
    allocations: AtomicU64,
    moved: AtomicU64,
    copied: AtomicU64,
    unpinned: AtomicU64,
}

thread_local! {
    // A constant without a destructor: the allocator looks at it.
    static OWN: Cell<Option<&'static Tally>> = const { Cell::new(None) };
}

impl Tally {
    /// The tally of a thread to come. Its few bytes are never freed, so that an allocator can count without a
    /// lock whenever a thread ends.
    pub fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    /// Begins to count what this thread does.
    pub fn begin(&'static self) {
        self.thread.store(system::thread(), Relaxed);
        OWN.set(Some(self));
    }

    /// Ends the count.
    pub fn end(&self) {
        OWN.set(None);
        self.work();
        self.thread.store(0, Relaxed);
    }

    fn work(&self) -> HostWork {
        let thread = self.thread.load(Relaxed);
        let faults = (thread != 0).then(|| system::faults(thread)).flatten();
        if let Some(faults) = faults {
            self.faults.fetch_max(faults, Relaxed);
        }
        HostWork {
            faults: self.faults.load(Relaxed),
            allocations: self.allocations.load(Relaxed),
            moved: Bytes::new(self.moved.load(Relaxed)),
            copied: Bytes::new(self.copied.load(Relaxed)),
            unpinned: Bytes::new(self.unpinned.load(Relaxed)),
        }
    }
}

/// Counts bytes that this thread moves as a copy engine would.
pub(crate) fn count_moved(bytes: usize) {
    if let Some(tally) = OWN.get() {
        tally.moved.fetch_add(bytes as u64, Relaxed);
    }
}

/// Counts bytes that this thread copies for a transfer beyond that.
pub(crate) fn count_copied(bytes: usize) {
    if let Some(tally) = OWN.get() {
        tally.copied.fetch_add(bytes as u64, Relaxed);
    }
}

/// Counts bytes that a transfer to a device reads from memory that is not pinned.
pub(crate) fn count_unpinned(bytes: usize) {
    if let Some(tally) = OWN.get() {
        tally.unpinned.fetch_add(bytes as u64, Relaxed);
    }
}

/// Counts a large allocation of this thread.
pub(super) fn count_allocation() {
    // A thread that is ending allocates uncounted.
    let _ended = OWN.try_with(|own| own.get().map(|tally| tally.allocations.fetch_add(1, Relaxed)));
}

/// Threads that are counted together.
#[derive(Debug)]
pub(crate) struct Watched {
    pub name: String,
    /// Whether they compute layers.
    pub computes: bool,
    tallies: Vec<&'static Tally>,
    before: HostWork,
}

impl Watched {
    /// Threads that have done nothing yet.
    pub const fn new(name: String, computes: bool, tallies: Vec<&'static Tally>) -> Self {
        let before =
            HostWork { faults: 0, allocations: 0, moved: Bytes::ZERO, copied: Bytes::ZERO, unpinned: Bytes::ZERO };
        Self { name, computes, tallies, before }
    }

    /// Their work since the last call.
    pub fn take(&mut self) -> HostWork {
        let now = self.tallies.iter().map(|tally| tally.work()).fold(HostWork::default(), |sum, work| HostWork {
            faults: sum.faults + work.faults,
            allocations: sum.allocations + work.allocations,
            moved: sum.moved + work.moved,
            copied: sum.copied + work.copied,
            unpinned: sum.unpinned + work.unpinned,
        });
        let work = now.since(self.before);
        self.before = now;
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_is_charged_for_the_pages_that_it_touches() {
        let tally = Tally::new();
        let mut watched = Watched::new("thread".into(), false, vec![tally]);
        std::thread::spawn(|| {
            tally.begin();
            // More than the allocator keeps at hand.
            std::hint::black_box(vec![1u8; 40 << 20]);
            count_moved(3);
            count_copied(2);
            tally.end();
        })
        .join()
        .unwrap();
        let work = watched.take();
        assert!(work.faults >= 20, "{work:?}");
        assert_eq!((work.moved, work.copied), (Bytes::new(3), Bytes::new(2)));
        assert_eq!(watched.take(), HostWork::default());
    }
}
