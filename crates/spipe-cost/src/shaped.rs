//! The work of a workload on data of its shape: the tokens that are computed, those that count, and the
//! keys of each query ([`DataShape`](crate::DataShape)).

use crate::Workload;
use spipe_model::{Attention, Batch, Layer, LayerWork, Op};

impl Workload {
    /// Returns the mean number of tokens per sequence that are computed.
    fn computed_tokens(&self) -> f64 {
        let full = self.seq_len as f64;
        match self.data.computed(self.microbatch) {
            Some(lengths) if !self.data.packing => lengths.mean().min(full),
            _ => full,
        }
    }

    /// Returns the share of the computed tokens that count: that are not padding.
    pub fn counted_share(&self) -> f64 {
        match self.data.lengths {
            Some(_) if self.data.packing => 1.0,
            Some(lengths) => (lengths.mean() / self.computed_tokens()).min(1.0),
            None => 1.0 - f64::from(self.data.padding),
        }
    }

    /// Returns the tokens per iteration that count.
    pub(crate) fn counted_tokens(&self) -> u64 {
        if self.data.is_plain() {
            return self.global_batch().saturating_mul(self.seq_len);
        }
        (self.global_batch() as f64 * self.computed_tokens() * self.counted_share()).round() as u64
    }

    /// Returns the mean microbatch, whose passes are computed.
    pub fn mean_batch(&self) -> Batch {
        Batch { seq_len: (self.computed_tokens().round() as u64).max(1), ..self.batch() }
    }

    /// Returns the longest microbatch, whose memory is needed.
    pub fn longest_batch(&self) -> Batch {
        let longest = self.data.lengths.filter(|_| !self.data.packing).map_or(self.seq_len, |all| all.longest());
        Batch { seq_len: longest.min(self.seq_len), ..self.batch() }
    }

    /// Returns the work of a layer on the mean microbatch, with its adapters.
    pub fn work(&self, layer: &Layer) -> LayerWork {
        self.shaped(layer, layer.work(self.mean_batch()))
    }

    /// Returns `work` on the mean microbatch with the keys that the data's lengths leave to each query.
    pub(crate) fn shaped(&self, layer: &Layer, mut work: LayerWork) -> LayerWork {
        for ops in [&mut work.forward, &mut work.backward_input] {
            self.shape(layer, ops);
        }
        work
    }

    /// The same for the operations of one pass. A query of a document of length l attends to the keys of
    /// its document, and to at most those of its window.
    pub(crate) fn shape(&self, layer: &Layer, ops: &mut [Op]) {
        let masked = self.data.packing && self.attention == Attention::Materialised;
        let Some(lengths) = self.data.computed(self.microbatch).filter(|_| !masked && layer.tokens.is_none()) else {
            return;
        };
        let window = layer.as_block().and_then(|block| block.sliding_window).map_or(f64::INFINITY, |keys| keys as f64);
        for op in ops {
            if let Op::Attention { seq_k, .. } = op {
                let length = |one: u32| f64::from(one).min(self.seq_len as f64);
                let sum = |of: &dyn Fn(f64) -> f64| {
                    lengths.shares().iter().map(|one| one.share * of(length(one.length))).sum::<f64>()
                };
                let keys = sum(&|length| length * length.min(window)) / sum(&|length| length);
                *seq_k = (keys.round() as u64).max(1);
            }
        }
    }
}
