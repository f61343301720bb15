//! The KV cache: keys and values of earlier tokens, which attention reads instead of computing them
//! again.

use super::Matrix;
use crate::nn::kernels::{self, Join};
use burn::tensor::Tensor;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Keys and values of consecutive layers for one microbatch, in the order of the layers.
#[derive(Clone, Debug)]
pub(crate) struct KvCache {
    /// Number of earlier tokens of each sequence.
    pub past: usize,
    pairs: Arc<Mutex<Pairs>>,
}

/// Keys and values of one layer, a row for each token, sequence by sequence; without a graph.
type Pair = [Matrix; 2];

#[derive(Debug, Default)]
struct Pairs {
    before: VecDeque<Pair>,
    after: Vec<Pair>,
}

impl KvCache {
    /// A cache of `past` tokens; `before` is a result of [`Self::take`], or empty.
    pub fn new(past: usize, before: Vec<Pair>) -> Self {
        Self { past, pairs: Arc::new(Mutex::new(Pairs { before: before.into(), after: Vec::new() })) }
    }

    fn pairs(&self) -> MutexGuard<'_, Pairs> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next layer's keys and values, appended to the cached ones; the last `window` of each
    /// sequence are kept.
    pub fn join(&self, sequences: usize, window: usize, now: Pair) -> Pair {
        let before = self.pairs().before.pop_front();
        let now = now.map(Matrix::inner);
        let all = match before {
            Some([keys, values]) => {
                let [new_keys, new_values] = now;
                [behind(sequences, keys, new_keys), behind(sequences, values, new_values)]
            }
            None => now,
        };
        self.pairs().after.push(all.clone().map(|rows| last(sequences, window, rows)));
        all.map(Matrix::autodiff)
    }

    /// Takes out the keys and values of all layers.
    pub fn take(&self) -> Vec<Pair> {
        std::mem::take(&mut self.pairs().after)
    }
}

fn by_sequence(sequences: usize, rows: Matrix) -> Tensor<3> {
    let [tokens, width] = rows.dims();
    rows.reshape([sequences, tokens / sequences, width])
}

/// Appends `now` to `before`, sequence by sequence.
fn behind(sequences: usize, before: Matrix, now: Matrix) -> Matrix {
    if let Some(all) = kernels::apply(Join { sequences }, [&before, &now]) {
        return all;
    }
    let width = now.dims()[1];
    let all = Tensor::cat(vec![by_sequence(sequences, before), by_sequence(sequences, now)], 1);
    let tokens = all.dims()[1];
    all.reshape([sequences * tokens, width])
}

/// The last `window` rows of each sequence.
fn last(sequences: usize, window: usize, rows: Matrix) -> Matrix {
    let [tokens, width] = rows.dims();
    let each = tokens / sequences;
    if each <= window {
        return rows;
    }
    by_sequence(sequences, rows).narrow(1, each - window, window).reshape([sequences * window, width])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cores;
    use burn::tensor::TensorData;

    fn rows(numbers: &[f32]) -> Matrix {
        Tensor::<2>::from_data(TensorData::new(numbers.to_vec(), [numbers.len(), 1]), &cores()).autodiff()
    }

    fn numbers(matrix: Matrix) -> Vec<f32> {
        matrix.inner().into_data().try_to_vec().unwrap()
    }

    #[test]
    fn sequences_grow_one_by_one_within_a_window() {
        let first = KvCache::new(0, Vec::new());
        let pair = |numbers: &[f32]| [rows(numbers), rows(numbers)];
        let [keys, _] = first.join(2, 3, pair(&[1.0, 2.0, 11.0, 12.0]));
        assert_eq!(numbers(keys), [1.0, 2.0, 11.0, 12.0]);
        let second = KvCache::new(2, first.take());
        let [keys, values] = second.join(2, 3, pair(&[3.0, 13.0]));
        assert_eq!(numbers(keys), [1.0, 2.0, 3.0, 11.0, 12.0, 13.0]);
        assert_eq!(numbers(values), [1.0, 2.0, 3.0, 11.0, 12.0, 13.0]);
        let third = KvCache::new(3, second.take());
        assert_eq!(numbers(third.join(2, 3, pair(&[4.0, 14.0]))[0].clone()).len(), 8);
        let [kept, _] = third.take().remove(0);
        assert_eq!(numbers(kept.autodiff()), [2.0, 3.0, 4.0, 12.0, 13.0, 14.0]);
    }
}
