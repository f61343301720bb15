//! Appends new keys and values to those in a cache, sequence by sequence.

use super::{Array, Kernel, KernelOutput};
use rayon::prelude::*;

/// Numbers per task at least: waking a thread pays from about 20 µs of copying.
const TASK: usize = 1 << 16;

/// Appends each sequence's rows of the second matrix to those of the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Join {
    pub sequences: usize,
}

impl Kernel<2> for Join {
    type Saved = ();

    fn forward(&self, [before, now]: [Array<'_>; 2]) -> (KernelOutput, ()) {
        let [first, second] = [before, now].map(|array| (array.numbers.len() / self.sequences).max(1));
        let mut numbers = vec![0.0; before.numbers.len() + now.numbers.len()];
        let parts = before.numbers.par_chunks(first).zip(now.numbers.par_chunks(second));
        let places = numbers.par_chunks_mut(first + second).zip(parts);
        places.with_min_len(TASK.div_ceil(first + second)).for_each(|(to, (before, now))| {
            let (start, end) = to.split_at_mut(before.len());
            start.copy_from_slice(before);
            end.copy_from_slice(now);
        });
        (KernelOutput { numbers, shape: [before.shape[0] + now.shape[0], now.shape[1]] }, ())
    }

    fn backward(
        &self,
        [before, now]: [Array<'_>; 2],
        (): &(),
        gradient: &[f32],
        wanted: [bool; 2],
    ) -> [Option<Vec<f32>>; 2] {
        let first = before.numbers.len() / self.sequences;
        let whole = first + now.numbers.len() / self.sequences;
        let parts = || gradient.chunks_exact(whole.max(1));
        [
            wanted[0].then(|| parts().flat_map(|part| &part[..first]).copied().collect()),
            wanted[1].then(|| parts().flat_map(|part| &part[first..]).copied().collect()),
        ]
    }
}
