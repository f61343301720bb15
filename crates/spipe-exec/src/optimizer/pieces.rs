//! The tasks of a step.

use super::{HalfMut, Numbers, kernel::State};
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

/// The same range of all arrays of a step.
pub(super) struct Piece<'a> {
    pub state: State<'a>,
    pub gradients: Numbers<'a>,
    pub weights: Option<HalfMut<'a>>,
    pub log: Option<State<'a>>,
}

impl<'a> Piece<'a> {
    /// The whole range.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn new(state: State<'a>, gradients: Numbers<'a>) -> Self {
        let same = state.iter().all(|part| part.len() == gradients.len());
        assert!(same, "parameters, gradients and moments differ in length");
        Self { state, gradients, weights: None, log: None }
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
    pub fn change(self, change: impl Fn(State<'_>, Numbers<'_>, Option<HalfMut<'_>>)) {
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

fn split_state(state: State<'_>, count: usize) -> [State<'_>; 2] {
    let [parameters, first, second] = state.map(|part| part.split_at_mut(count));
    [[parameters.0, first.0, second.0], [parameters.1, first.1, second.1]]
}

fn halves<T>(both: Option<[T; 2]>) -> [Option<T>; 2] {
    both.map_or([None, None], |both| both.map(Some))
}
