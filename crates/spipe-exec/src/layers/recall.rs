//! Keys and values of tokens that came before: what attention recalls instead of computing it again.

use super::Matrix;
use crate::kernels::{self, Join};
use burn::tensor::Tensor;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Those of consecutive layers on one microbatch, in the order in which the layers are computed.
#[derive(Clone, Debug)]
pub(crate) struct Recall {
    /// Tokens of each sequence that came before.
    pub past: usize,
    kept: Arc<Mutex<Kept>>,
}

/// Keys and values of one layer, a row for each token, sequence by sequence; without a graph.
type Pair = [Matrix; 2];

#[derive(Debug, Default)]
struct Kept {
    before: VecDeque<Pair>,
    after: Vec<Pair>,
}

impl Recall {
    /// `before` is what [`Self::take`] has given of the tokens before; nothing if there are none.
    pub fn new(past: usize, before: Vec<Pair>) -> Self {
        Self { past, kept: Arc::new(Mutex::new(Kept { before: before.into(), after: Vec::new() })) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next layer's keys and values with those of the tokens before, of which the last `window` of each sequence are kept.
    pub fn join(&self, sequences: usize, window: usize, now: Pair) -> Pair {
        let before = self.kept().before.pop_front();
        let now = now.map(Matrix::inner);
        let all = match before {
            Some([keys, values]) => {
                let [new_keys, new_values] = now;
                [behind(sequences, keys, new_keys), behind(sequences, values, new_values)]
            }
            None => now,
        };
        self.kept().after.push(all.clone().map(|rows| last(sequences, window, rows)));
        all.map(Matrix::autodiff)
    }

    /// What is kept of all layers.
    pub fn take(&self) -> Vec<Pair> {
        std::mem::take(&mut self.kept().after)
    }
}

fn by_sequence(sequences: usize, rows: Matrix) -> Tensor<3> {
    let [tokens, width] = rows.dims();
    rows.reshape([sequences, tokens / sequences, width])
}

/// Each sequence's rows, the new ones behind those before.
fn behind(sequences: usize, before: Matrix, now: Matrix) -> Matrix {
    if let Some(all) = kernels::apply(Join { sequences }, [&before, &now]) {
        return all;
    }
    let width = now.dims()[1];
    let all = Tensor::cat(vec![by_sequence(sequences, before), by_sequence(sequences, now)], 1);
    let tokens = all.dims()[1];
    all.reshape([sequences * tokens, width])
}

/// The last rows of each sequence.
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
    use burn::tensor::TensorData;

    fn rows(numbers: &[f32]) -> Matrix {
        Tensor::<2>::from_data(TensorData::new(numbers.to_vec(), [numbers.len(), 1]), &kernels::cores()).autodiff()
    }

    fn numbers(matrix: Matrix) -> Vec<f32> {
        matrix.inner().into_data().try_to_vec().unwrap()
    }

    #[test]
    fn sequences_grow_one_by_one_within_a_window() {
        let first = Recall::new(0, Vec::new());
        let pair = |numbers: &[f32]| [rows(numbers), rows(numbers)];
        let [keys, _] = first.join(2, 3, pair(&[1.0, 2.0, 11.0, 12.0]));
        assert_eq!(numbers(keys), [1.0, 2.0, 11.0, 12.0]);
        let second = Recall::new(2, first.take());
        let [keys, values] = second.join(2, 3, pair(&[3.0, 13.0]));
        assert_eq!(numbers(keys), [1.0, 2.0, 3.0, 11.0, 12.0, 13.0]);
        assert_eq!(numbers(values), [1.0, 2.0, 3.0, 11.0, 12.0, 13.0]);
        let third = Recall::new(3, second.take());
        assert_eq!(numbers(third.join(2, 3, pair(&[4.0, 14.0]))[0].clone()).len(), 8);
        let [kept, _] = third.take().remove(0);
        assert_eq!(numbers(kept.autodiff()), [2.0, 3.0, 4.0, 12.0, 13.0, 14.0]);
    }
}
