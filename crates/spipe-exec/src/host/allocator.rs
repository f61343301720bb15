//! An allocator that counts.

use super::work;
use std::alloc::{GlobalAlloc, Layout, System};

/// Bytes from which an allocation counts as large.
const LARGE: usize = 1 << 20;

/// The system's allocator. It counts allocations of at least 1 MiB of the threads of a run
/// ([`HostWork`](super::HostWork)), if a program makes it its global allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

fn count(bytes: usize) {
    if bytes >= LARGE {
        work::count_allocation();
    }
}

// SAFETY: everything is done by the system's allocator; counting allocates nothing.
#[expect(unsafe_code, reason = "the trait of allocators")]
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}
