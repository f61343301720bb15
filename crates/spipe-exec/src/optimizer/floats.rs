//! Numbers in f32 in memory of their own, or of an arena.

use crate::device::arena::Arena;
use burn::tensor::{DType, TensorData};
use std::{
    io::{self, Read},
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// Numbers in f32. In an arena, clones share them until one is changed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Floats(TensorData);

impl Floats {
    /// Reads `count` numbers to the memory of `arena`, with bytes in the machine's order.
    pub fn read(count: usize, from: &mut dyn Read, arena: &Arc<Arena>) -> io::Result<Self> {
        arena.read([1, count], DType::F32, from).map(Self)
    }

    /// The same numbers in the memory of `arena`.
    pub fn moved_to(self, arena: &Arc<Arena>) -> Self {
        Self(arena.copied(&self.0))
    }

    /// The bytes of all numbers, in the machine's order.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl From<Vec<f32>> for Floats {
    fn from(numbers: Vec<f32>) -> Self {
        let count = numbers.len();
        Self(TensorData::new(numbers, [1, count]))
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.0.as_slice().expect("they are f32")
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.0.as_mut_slice().expect("they are f32")
    }
}
