//! The tasks of a step.

use super::{HalfMut, Numbers};
use rayon::prelude::*;

/// Elements per task at most: four arrays of this size fit the second-level cache of a core.
pub(super) const CHUNK: usize = 1 << 16;
/// Elements per task at least: some 5 µs of memory traffic.
const LEAST: usize = 1 << 13;
/// Tasks per thread, so that others take over the share of a thread that is late.
const TASKS: usize = 16;
/// Bytes of a cache line, and of the widest vector. Large arrays of the C library begin 16 bytes
/// after a multiple.
const LINE: usize = 64;
/// Elements per block with a log: few enough to stay in the first-level cache until they are used.
const BLOCK: usize = 1 << 10;

/// Parameters, then the buffers of their state, of the same numbers.
pub(super) type State<'a, const N: usize> = [&'a mut [f32]; N];

/// The same range of all arrays of a step.
pub(super) struct Piece<'a, const N: usize> {
    pub state: State<'a, N>,
    pub gradients: Numbers<'a>,
    pub weights: Option<HalfMut<'a>>,
    pub log: Option<State<'a, N>>,
}

impl<'a, const N: usize> Piece<'a, N> {
    /// The whole range.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn new(state: State<'a, N>, gradients: Numbers<'a>) -> Self {
        let same = state.iter().all(|part| part.len() == gradients.len());
        assert!(same, "parameters, gradients and state differ in length");
        Self { state, gradients, weights: None, log: None }
    }

    /// The same with a destination of the new parameters in 16 bits.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn with_weights(self, weights: Option<HalfMut<'a>>) -> Self {
        let same = weights.as_ref().is_none_or(|weights| weights.len() == self.gradients.len());
        assert!(same, "weights and parameters differ in length");
        Self { weights, ..self }
    }

    /// The tasks of the threads of the current pool.
    pub fn tasks(self) -> impl IndexedParallelIterator<Item = Self> {
        // By default the library would hand out several tasks as one.
        self.split(rayon::current_num_threads()).into_par_iter().with_max_len(1)
    }

    fn split(self, threads: usize) -> Vec<Self> {
        let count = self.gradients.len();
        let size = (count / (TASKS * threads)).next_multiple_of(BLOCK).clamp(LEAST, CHUNK);
        let mut pieces = Vec::with_capacity(1 + count.div_ceil(size));
        // Vectors across two lines cost a third of the speed, so the elements before the first line
        // are a piece of their own.
        let ahead = self.state[0].as_ptr().align_offset(LINE).min(count);
        let [first, mut rest] = self.split_at(ahead);
        pieces.push(first);
        while rest.gradients.len() > size {
            let [piece, after] = rest.split_at(size);
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        pieces
    }

    fn split_at(self, count: usize) -> [Self; 2] {
        let [state, states] = split_state(self.state, count);
        let [gradient, gradients] = self.gradients.split_at(count);
        let [weight, weights] = halves(self.weights.map(|weights| weights.split_at(count)));
        let [log, logs] = halves(self.log.map(|log| split_state(log, count)));
        [
            Self { state, gradients: gradient, weights: weight, log },
            Self { state: states, gradients, weights, log: logs },
        ]
    }

    /// Applies `change`; with a log block by block, each of which is copied to the log while it is
    /// in the first-level cache.
    pub fn change(self, change: impl Fn(State<'_, N>, Numbers<'_>, Option<HalfMut<'_>>)) {
        let mut rest = self;
        while !rest.gradients.is_empty() {
            let most = if rest.log.is_some() { BLOCK } else { usize::MAX };
            let count = rest.gradients.len().min(most);
            let [block, after] = rest.split_at(count);
            for (to, from) in block.log.into_iter().flatten().zip(&block.state) {
                to.copy_from_slice(from);
            }
            change(block.state, block.gradients, block.weights);
            rest = after;
        }
    }
}

fn split_state<const N: usize>(state: State<'_, N>, count: usize) -> [State<'_, N>; 2] {
    let mut both = state.map(|part| part.split_at_mut(count));
    let first = both.each_mut().map(|(first, _)| std::mem::take(first));
    [first, both.map(|(_, second)| second)]
}

fn halves<T>(both: Option<[T; 2]>) -> [Option<T>; 2] {
    both.map_or([None, None], |both| both.map(Some))
}
