//! The loss of a language model.

use super::{
    Array, Kernel, KernelOutput,
    exponential::{exp, largest, sum},
};
use crate::device::simd::for_each_width;
use rayon::prelude::*;
use std::sync::Arc;

/// Rows per task.
const ROWS: usize = 16;

/// Mean over rows of log Σ eˣ − x at the row's target.
#[derive(Clone, Debug)]
pub(crate) struct CrossEntropy {
    /// The target column of each row.
    pub targets: Arc<[usize]>,
}

for_each_width! {
    /// log Σ eˣ of each row.
    fn totals(width: usize, logits: &[f32], to: &mut [f32]) {
        for (row, to) in logits.chunks_exact(width).zip(to) {
            let top = largest(row);
            *to = sum(width, |index| exp(row[index] - top)).ln() + top;
        }
    }

    fn shares(width: usize, scale: f32, logits: &[f32], totals: &[f32], to: &mut [f32]) {
        for ((row, total), to) in logits.chunks_exact(width).zip(totals).zip(to.chunks_exact_mut(width)) {
            for (to, logit) in to.iter_mut().zip(row) {
                *to = scale * exp(logit - total);
            }
        }
    }
}

impl Kernel<1> for CrossEntropy {
    /// log Σ eˣ of each row.
    type Saved = Arc<[f32]>;

    fn forward(&self, [logits]: [Array<'_>; 1]) -> (KernelOutput, Self::Saved) {
        let [rows, width] = logits.shape;
        assert_eq!(rows, self.targets.len(), "a target for each row");
        let mut kept = vec![0.0; rows];
        let chunks = kept.par_chunks_mut(ROWS).zip(logits.numbers.par_chunks(ROWS * width));
        chunks.for_each(|(to, logits)| totals(width, logits, to));
        let at = |row: usize| logits.numbers[row * width + self.targets[row]];
        let loss = sum(rows, |row| kept[row] - at(row)) / rows as f32;
        (KernelOutput { numbers: vec![loss], shape: [1, 1] }, kept.into())
    }

    fn backward(
        &self,
        [logits]: [Array<'_>; 1],
        kept: &Self::Saved,
        gradient: &[f32],
        _: [bool; 1],
    ) -> [Option<Vec<f32>>; 1] {
        let [rows, width] = logits.shape;
        let scale = gradient[0] / rows as f32;
        let mut numbers = vec![0.0; rows * width];
        let inputs = logits.numbers.par_chunks(ROWS * width).zip(kept.par_chunks(ROWS));
        let chunks = numbers.par_chunks_mut(ROWS * width).zip(inputs);
        chunks.for_each(|(to, (logits, totals))| shares(width, scale, logits, totals, to));
        for (row, target) in numbers.chunks_exact_mut(width).zip(self.targets.iter()) {
            row[*target] -= scale;
        }
        [Some(numbers)]
    }
}
