//! Rotary position embedding of queries or keys by themselves, for keys that go to a cache.

use super::{Angles, Array, Kernel, KernelOutput};
use rayon::prelude::*;

/// Rows per task.
const ROWS: usize = 16;

/// Rotates every head of rows of tokens × (heads · width), as [`Attention`](super::Attention) does
/// with its own.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// A row for each token of a sequence, the same for all sequences.
    pub angles: Angles,
    pub width: usize,
}

impl Rope {
    fn turned(&self, numbers: &[f32], shape: [usize; 2], direction: f32) -> Vec<f32> {
        let half = self.angles.turned / 2;
        let mut rows = numbers.to_vec();
        if half == 0 || shape[1] == 0 {
            return rows;
        }
        let positions = self.angles.cosines.len() / half;
        rows.par_chunks_exact_mut(shape[1]).with_min_len(ROWS).enumerate().for_each(|(token, row)| {
            let at = token % positions * half;
            let (cosines, sines) = (&self.angles.cosines[at..at + half], &self.angles.sines[at..at + half]);
            for head in row.chunks_exact_mut(self.width) {
                let (first, second) = head[..2 * half].split_at_mut(half);
                for (((x, y), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
                    let sine = direction * sine;
                    (*x, *y) = (*x * cosine - *y * sine, *y * cosine + *x * sine);
                }
            }
        });
        rows
    }
}

impl Kernel<1> for Rope {
    type Saved = ();

    fn forward(&self, [input]: [Array<'_>; 1]) -> (KernelOutput, ()) {
        (KernelOutput { numbers: self.turned(input.numbers, input.shape, 1.0), shape: input.shape }, ())
    }

    /// The transpose of a rotation is the inverse one; a factor of the angles' cosines and sines is that of both.
    fn backward(&self, [input]: [Array<'_>; 1], (): &(), gradient: &[f32], wanted: [bool; 1]) -> [Option<Vec<f32>>; 1] {
        [wanted[0].then(|| self.turned(gradient, input.shape, -1.0))]
    }
}
