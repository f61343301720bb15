//! The shape of the data: padding, packing, and lengths that vary.
//!
//! ```text
//!                          tokens per sequence that
//!                          are computed      count          keys per token of causal attention, before masking
//! plain                    s                 s              s
//! padding p                s                 s·(1 − p)      s
//! lengths                  E[M]              E[L]           E[M²] ÷ E[M]
//! lengths, bucketing       E[L]              E[L]           E[L²] ÷ E[L]
//! lengths, packing         s                 s              E[L²] ÷ E[L]; s if scores are materialised
//! ```
//!
//! L is the length of a document, M the longest length in a microbatch, s the sequence length. Memory is
//! that of the longest microbatch. Materialised scores of packed documents are computed and masked.

use crate::{Lengths, Workload};
use serde::{Deserialize, Serialize};
use spipe_model::{Attention, Batch, Layer, LayerWork, Op};

/// A share of tokens that are padding, from 0 to below 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "f64", into = "f64")]
pub struct PaddingShare(f64);

// No value is NaN.
impl Eq for PaddingShare {}

impl TryFrom<f64> for PaddingShare {
    type Error = String;

    fn try_from(share: f64) -> Result<Self, String> {
        if (0.0..1.0).contains(&share) {
            Ok(Self(share))
        } else {
            Err(format!("{share} is no share of padding: it must be at least 0 and below 1"))
        }
    }
}

impl From<PaddingShare> for f64 {
    fn from(share: PaddingShare) -> Self {
        share.0
    }
}

impl PaddingShare {
    /// Whether nothing is padding.
    pub fn is_zero(&self) -> bool {
        self.0 <= 0.0
    }
}

/// The shape of the sequences of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DataShape {
    /// Whether documents are joined, so that sequences are full.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub packing: bool,
    /// Whether the documents of a microbatch are of like length.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bucketing: bool,
    /// The share of the tokens of each sequence that are padding, where lengths do not say it.
    #[serde(default, skip_serializing_if = "PaddingShare::is_zero")]
    pub padding: PaddingShare,
    /// The lengths of documents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lengths: Option<Lengths>,
}

impl DataShape {
    /// Full sequences, each one document.
    pub const PLAIN: Self = Self { packing: false, bucketing: false, padding: PaddingShare(0.0), lengths: None };

    /// Whether every sequence is full, and one document.
    pub fn is_plain(&self) -> bool {
        *self == Self::PLAIN
    }

    /// Checks that the parts agree with each other and with sequences of `seq_len` tokens.
    ///
    /// # Errors
    /// The first part that does not, and what to do about it.
    pub fn check(&self, seq_len: u64) -> Result<(), (String, String)> {
        let longest = self.lengths.map_or(0, |lengths| lengths.longest());
        let fault = |message: &str, hint: &str| Err((message.to_owned(), hint.to_owned()));
        if longest > seq_len {
            let message = format!("a length of {longest} is above the sequence length of {seq_len}");
            return Err((message, format!("plan with `--seq-len {longest}`, or leave longer documents out")));
        }
        match (self.packing, self.bucketing, self.lengths.is_some()) {
            (true, true, _) => fault("packed sequences are all full", "leave `--bucketing` or `--packing` out"),
            (true, ..) if !self.padding.is_zero() => {
                fault("packed sequences have no padding", "leave `--padding` or `--packing` out")
            }
            (_, _, true) if !self.padding.is_zero() => {
                fault("the padding follows from the lengths", "leave `--padding` or `--lengths` out")
            }
            (_, true, false) => fault("nothing is known to sort into buckets", "add `--lengths`"),
            _ => Ok(()),
        }
    }

    /// The lengths of what is computed as one: packed or bucketed documents, or else the longest of each
    /// microbatch. None if all are full.
    fn computed(&self, microbatch: u64) -> Option<Lengths> {
        let lengths = self.lengths?;
        Some(if self.packing || self.bucketing { lengths } else { lengths.longest_of(microbatch) })
    }
}

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
