//! A range of addresses of the system's memory.

use crate::device::pinning::{Lock, Pin};
use rayon::prelude::*;
use std::{fmt, io, ptr::NonNull};

/// A page of the smallest size.
const PAGE: usize = 4096;
/// Bytes that one task touches: a huge page.
const HUGE: usize = 2 << 20;

/// Addresses that nothing else uses. The system gives a page to them at the first touch, filled with zeros.
pub(super) struct Region {
    start: NonNull<u8>,
    bytes: usize,
    /// Pinned bytes at its beginning, and what keeps them so.
    pinned: usize,
    lock: Option<Lock>,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("bytes", &self.bytes).field("pinned", &self.pinned).finish_non_exhaustive()
    }
}

// SAFETY: the region is memory without an owner among threads; who may touch a range of it is decided by
// the ranges that are handed out.
#[expect(unsafe_code, reason = "a pointer to memory of its own")]
unsafe impl Send for Region {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a pointer to memory of its own")]
unsafe impl Sync for Region {}

impl Region {
    /// Addresses for `bytes`, in huge pages if the system has them.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.next_multiple_of(HUGE);
        let (protection, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        #[cfg(target_os = "linux")]
        let kind = kind | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the system's choice touches no memory in use.
        #[expect(unsafe_code, reason = "a call of the C library")]
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        #[cfg(target_os = "linux")]
        {
            // SAFETY: advice about the mapping above; where it is refused, pages are small.
            #[expect(unsafe_code, reason = "a call of the C library")]
            unsafe {
                libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
            }
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        Ok(Self { start, bytes, pinned: 0, lock: None })
    }

    /// Pins the first `bytes`.
    ///
    /// # Errors
    /// The words of the driver.
    pub fn pin(&mut self, bytes: usize, pin: &Pin<'_>) -> Result<(), String> {
        let bytes = bytes.next_multiple_of(PAGE).min(self.bytes);
        if bytes > 0 {
            self.lock = Some(pin(self.start, bytes)?);
            self.pinned = bytes;
        }
        Ok(())
    }

    /// Whether the bytes before `end` are pinned.
    pub const fn is_pinned(&self, end: usize) -> bool {
        end <= self.pinned
    }

    /// Touches the first `bytes` on the threads of the current pool: on a machine of several NUMA nodes, their
    /// pages are next to the cores that did it.
    pub fn touch(&self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        if bytes == 0 {
            // Without a pool the library would start one for nothing, and a system may have no threads left.
            return;
        }
        (0..bytes.div_ceil(HUGE)).into_par_iter().for_each(|part| {
            for page in (part * HUGE..bytes.min((part + 1) * HUGE)).step_by(PAGE) {
                // SAFETY: inside the mapping, of which nothing has been handed out yet.
                #[expect(unsafe_code, reason = "a page that no reference leads to")]
                unsafe {
                    self.start.add(page).write_volatile(0);
                }
            }
        });
    }

    /// Its size.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of a byte.
    ///
    /// # Panics
    /// If the region is shorter.
    pub fn at(&self, place: usize) -> NonNull<u8> {
        assert!(place <= self.bytes, "a place behind the region");
        // SAFETY: inside the mapping or at its end.
        #[expect(unsafe_code, reason = "pointer arithmetic")]
        unsafe {
            self.start.add(place)
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        drop(self.lock.take());
        // SAFETY: the mapping is its own, and whatever was handed out has held the region.
        #[expect(unsafe_code, reason = "a call of the C library")]
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.bytes);
        }
    }
}
