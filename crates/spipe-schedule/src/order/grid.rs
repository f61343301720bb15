//! One value for each stage and microbatch, or for each of their passes: an array, because orders have
//! millions of passes, and maps of them are slow and large.

use super::Token;
use spipe_base::{MicrobatchId, StageId};
use std::ops::{Index, IndexMut};

/// The number of passes of a stage on a microbatch: `F`, `B`, `I` and `W`.
const PASSES: usize = 4;

/// One value for each stage and microbatch.
#[derive(Clone, Debug)]
pub(crate) struct Grid<T> {
    microbatches: usize,
    values: Vec<T>,
}

/// One value for each pass of each stage and microbatch.
pub(crate) type PassGrid<T> = Grid<[T; PASSES]>;

impl<T: Clone> Grid<T> {
    /// The grid of `stages` and `microbatches`, with `value` everywhere.
    pub fn new([stages, microbatches]: [usize; 2], value: T) -> Self {
        Self { microbatches, values: vec![value; stages * microbatches] }
    }
}

impl<T> Grid<T> {
    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.values.iter()
    }
}

impl<T: Copy> PassGrid<T> {
    /// The grid of the passes of `stages` and `microbatches`, with `value` everywhere.
    pub fn of_passes(shape: [usize; 2], value: T) -> Self {
        Self::new(shape, [value; PASSES])
    }
}

impl<T> Index<(StageId, MicrobatchId)> for Grid<T> {
    type Output = T;

    fn index(&self, (stage, microbatch): (StageId, MicrobatchId)) -> &T {
        &self.values[stage.index() * self.microbatches + microbatch.index()]
    }
}

impl<T> IndexMut<(StageId, MicrobatchId)> for Grid<T> {
    fn index_mut(&mut self, (stage, microbatch): (StageId, MicrobatchId)) -> &mut T {
        &mut self.values[stage.index() * self.microbatches + microbatch.index()]
    }
}

impl<T> Index<Token> for PassGrid<T> {
    type Output = T;

    fn index(&self, token: Token) -> &T {
        &self[(token.stage, token.microbatch)][token.pass as usize]
    }
}

impl<T> IndexMut<Token> for PassGrid<T> {
    fn index_mut(&mut self, token: Token) -> &mut T {
        &mut self[(token.stage, token.microbatch)][token.pass as usize]
    }
}
