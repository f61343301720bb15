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

use crate::Lengths;
use serde::{Deserialize, Serialize};

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
            return Err((message, format!("plan with `option seq-len {longest}`, or leave longer documents out")));
        }
        match (self.packing, self.bucketing, self.lengths.is_some()) {
            (true, true, _) => {
                fault("packed sequences are all full", "leave `option bucketing` or `option packing` out")
            }
            (true, ..) if !self.padding.is_zero() => {
                fault("packed sequences have no padding", "leave `option padding` or `option packing` out")
            }
            (_, _, true) if !self.padding.is_zero() => {
                fault("the padding follows from the lengths", "leave `option padding` or `option lengths` out")
            }
            (_, true, false) => fault("nothing is known to sort into buckets", "add `option lengths`"),
            _ => Ok(()),
        }
    }

    /// The lengths of what is computed as one: packed or bucketed documents, or else the longest of each
    /// microbatch. None if all are full.
    pub(crate) fn computed(&self, microbatch: u64) -> Option<Lengths> {
        let lengths = self.lengths?;
        Some(if self.packing || self.bucketing { lengths } else { lengths.longest_of(microbatch) })
    }
}
