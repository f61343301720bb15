//! The memory of one tensor.

use super::Arena;
use cubecl_environment::bytes::{AccessError, AccessPolicy, AllocationController, AllocationProperty};
use std::{mem::MaybeUninit, sync::Arc};

/// The alignment that the library may rely on; blocks begin at a multiple of [`super::ALIGN`].
const ALIGN: usize = align_of::<u128>();

/// Memory with one owner or several, all bytes of which are initialised.
enum Memory {
    /// A range of the region.
    Range { arena: Arc<Arena>, start: usize, bytes: usize },
    /// Memory of the allocator, where the region had no room.
    Heap(Vec<u128>),
}

impl Memory {
    fn new(arena: &Arc<Arena>, bytes: usize) -> Self {
        match arena.take(bytes) {
            Some(start) => Self::Range { arena: Arc::clone(arena), start, bytes },
            None => Self::Heap(vec![0; bytes.div_ceil(size_of::<u128>())]),
        }
    }

    fn pointer(&self) -> *const u8 {
        match self {
            Self::Range { arena, start, .. } => arena.region.at(*start).as_ptr(),
            Self::Heap(memory) => memory.as_ptr().cast(),
        }
    }

    fn pointer_mut(&mut self) -> *mut u8 {
        match self {
            Self::Range { arena, start, .. } => arena.region.at(*start).as_ptr(),
            Self::Heap(memory) => memory.as_mut_ptr().cast(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Self::Range { arena, start, bytes } = self {
            arena.give(*start, *bytes);
        }
    }
}

/// The memory of one tensor. Duplicates share it until one of them is changed.
pub(super) struct Block {
    arena: Arc<Arena>,
    memory: Arc<Memory>,
    bytes: usize,
}

impl Block {
    /// Memory for `bytes`, with any numbers in it.
    pub fn new(arena: &Arc<Arena>, bytes: usize) -> Self {
        Self { arena: Arc::clone(arena), memory: Arc::new(Memory::new(arena, bytes)), bytes }
    }

    fn bytes(&self) -> &[MaybeUninit<u8>] {
        // SAFETY: the memory has as many bytes, and is changed by no one while it is shared.
        #[expect(unsafe_code, reason = "memory of a region")]
        unsafe {
            std::slice::from_raw_parts(self.memory.pointer().cast(), self.bytes)
        }
    }
}

impl AllocationController for Block {
    fn alloc_align(&self) -> usize {
        ALIGN
    }

    fn property(&self) -> AllocationProperty {
        match &*self.memory {
            Memory::Range { arena, start, bytes } if arena.region.is_pinned(start + bytes) => {
                AllocationProperty::Pinned
            }
            _ => AllocationProperty::Other,
        }
    }

    #[expect(unsafe_code, reason = "the signature of the library")]
    unsafe fn memory_mut(&mut self, policy: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        if Arc::get_mut(&mut self.memory).is_none() {
            if !policy.copy_allowed() {
                return Err(AccessError::WouldCopy);
            }
            let mut own = Self::new(&self.arena, self.bytes);
            // SAFETY: it is filled from initialised bytes.
            unsafe { own.memory_mut(policy) }?.copy_from_slice(self.bytes());
            *self = own;
        }
        let bytes = self.bytes;
        let memory = Arc::get_mut(&mut self.memory).ok_or(AccessError::WouldCopy)?;
        // SAFETY: the memory has as many bytes and no other owner.
        Ok(unsafe { std::slice::from_raw_parts_mut(memory.pointer_mut().cast(), bytes) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        Ok(self.bytes())
    }

    fn duplicate(&self) -> Option<Box<dyn AllocationController>> {
        let (arena, memory) = (Arc::clone(&self.arena), Arc::clone(&self.memory));
        Some(Box::new(Self { arena, memory, bytes: self.bytes }))
    }
}
