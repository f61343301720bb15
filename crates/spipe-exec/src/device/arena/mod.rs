//! Host memory of a run: one region for each memory of the program, touched before the first step, from which
//! the tensors take their memory and to which they return it. Beside a GPU whose driver pins memory it is pinned, and
//! the GPU's engines copy from it without help.
//!
//! ```text
//! planned bytes ─► region ─► touched in parallel, pinned ─► range ─► Block ─► Bytes of a tensor
//!                     ▲                                                │ clones share it; a change copies it
//!                     └──────────── range, with its last owner ────────┘
//! ```

mod block;
mod ranges;
mod region;

use crate::device::pinning::Pin;
use block::Block;
use burn::tensor::{Bytes, DType, Shape, TensorData};
use ranges::FreeRanges;
use region::Region;
use std::{
    io::{self, Read},
    sync::{Arc, Mutex, PoisonError},
};

/// Bytes of a cache line, and of the widest vector: where ranges begin.
const ALIGN: usize = 64;

/// Addresses for each planned byte: a tensor may have its successor beside it for the time of one action, and
/// ranges of different sizes leave gaps. What is never used is never touched.
const ADDRESSES: usize = 2;

/// Bytes that are pinned beyond those, for the successors of tensors that the library of a device still holds: it lets
/// go of what it has copied from 64 tensors or 64 MiB later, and of that one batch later (`drop_queue` of
/// cubecl-server 0.11).
const SPARE: usize = 256 << 20;

/// Host memory for tensors.
#[derive(Debug)]
pub(crate) struct Arena {
    region: Region,
    free: Mutex<FreeRanges>,
}

impl Arena {
    /// Memory for `planned` bytes, which the threads of the current pool touch.
    ///
    /// # Errors
    /// A system that has no addresses left.
    pub fn new(planned: usize) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self::touched(planned)?))
    }

    /// The same, pinned; what the driver says if it refuses that.
    ///
    /// # Errors
    /// A system that has no addresses left.
    pub fn pinned(planned: usize, pin: &Pin<'_>) -> io::Result<(Arc<Self>, Option<String>)> {
        let mut arena = Self::touched(planned)?;
        let refused = arena.region.pin(planned + planned.min(SPARE), pin).err();
        Ok((Arc::new(arena), refused))
    }

    fn touched(planned: usize) -> io::Result<Self> {
        let region = Region::new((ADDRESSES * planned).max(1))?;
        region.touch(planned);
        let free = Mutex::new(FreeRanges::new(if planned == 0 { 0 } else { region.bytes() }));
        Ok(Self { region, free })
    }

    /// Its addresses.
    pub const fn bytes(&self) -> usize {
        self.region.bytes()
    }

    fn take(&self, bytes: usize) -> Option<usize> {
        self.ranges(|free| free.take(bytes.next_multiple_of(ALIGN).max(ALIGN)))
    }

    fn give(&self, start: usize, bytes: usize) {
        self.ranges(|free| free.give(start, bytes.next_multiple_of(ALIGN).max(ALIGN)));
    }

    fn ranges<T>(&self, change: impl FnOnce(&mut FreeRanges) -> T) -> T {
        change(&mut self.free.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A tensor with any numbers in it.
    pub fn tensor(self: &Arc<Self>, shape: impl Into<Shape>, dtype: DType) -> TensorData {
        self.filled(shape, dtype, |_| {})
    }

    /// A copy of a tensor.
    pub fn copied(self: &Arc<Self>, data: &TensorData) -> TensorData {
        self.filled(data.shape().clone(), data.dtype(), |to| to.copy_from_slice(data.as_bytes()))
    }

    /// A tensor whose bytes are read.
    ///
    /// # Errors
    /// Errors of `from`; too few bytes.
    pub fn read(
        self: &Arc<Self>,
        shape: impl Into<Shape>,
        dtype: DType,
        from: &mut dyn Read,
    ) -> io::Result<TensorData> {
        let mut read = Ok(());
        let data = self.filled(shape, dtype, |to| read = from.read_exact(to));
        read.map(|()| data)
    }

    /// A tensor whose bytes `fill` writes.
    pub fn filled(self: &Arc<Self>, shape: impl Into<Shape>, dtype: DType, fill: impl FnOnce(&mut [u8])) -> TensorData {
        let shape = shape.into();
        let bytes = dtype.size() * shape.num_elements();
        // SAFETY: a block has the bytes that it was asked for, and all bytes of a region are initialised: by the
        // system, then by tensors.
        #[expect(unsafe_code, reason = "the library's way to memory of one's own")]
        let mut bytes = unsafe { Bytes::from_controller(Box::new(Block::new(self, bytes)), bytes) };
        fill(&mut bytes);
        TensorData::from_bytes(bytes, shape, dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(arena: &Arc<Arena>, count: usize, number: f32) -> TensorData {
        let mut data = arena.tensor([1, count], DType::F32);
        data.as_mut_slice::<f32>().unwrap().fill(number);
        data
    }

    fn address(data: &TensorData) -> usize {
        data.as_bytes().as_ptr() as usize
    }

    #[test]
    fn memory_comes_back_and_is_used_again() {
        let arena = Arena::new(1 << 20).unwrap();
        let first = filled(&arena, 1000, 1.0);
        let second = filled(&arena, 1000, 2.0);
        assert!(address(&first).is_multiple_of(ALIGN) && address(&second).is_multiple_of(ALIGN));
        let place = address(&first);
        drop(first);
        assert_eq!(address(&filled(&arena, 900, 3.0)), place);
        assert_eq!(second.as_slice::<f32>().unwrap(), [2.0; 1000]);
    }

    #[test]
    fn clones_share_memory_until_one_is_changed() {
        let arena = Arena::new(1 << 20).unwrap();
        let first = filled(&arena, 10, 1.0);
        let mut second = first.clone();
        assert_eq!(address(&first), address(&second));
        second.as_mut_slice::<f32>().unwrap()[0] = 5.0;
        assert_ne!(address(&first), address(&second));
        assert_eq!(
            (first.as_slice::<f32>().unwrap()[0], second.as_slice::<f32>().unwrap()[..2].to_vec()),
            (1.0, vec![5.0, 1.0])
        );
        drop(first);
        let place = address(&second);
        second.as_mut_slice::<f32>().unwrap()[1] = 6.0;
        assert_eq!(address(&second), place);
    }

    #[test]
    fn tensors_without_room_take_other_memory() {
        let arena = Arena::new(0).unwrap();
        let data = filled(&arena, 100, 4.0);
        assert_eq!(data.clone().as_slice::<f32>().unwrap(), [4.0; 100]);
        let small = Arena::new(1 << 10).unwrap();
        let all: Vec<_> = (0..3).map(|_| filled(&small, 1 << 19, 1.0)).collect();
        assert!(all.iter().all(|data| data.as_slice::<f32>().unwrap() == [1.0; 1 << 19]));
    }
}
