//! Text encoders: BERT (Devlin et al. 2019, arXiv 1810.04805) and its kin, which read whole sequences
//! and end in a task. They are planned, not run.
//!
//! A block normalises after each sum and not before it; sizes and work are the same. No norm follows the
//! last block.

use crate::{Block, EncoderEnd, EncoderHead};

/// A text encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Encoder {
    /// The size of the vocabulary, in tokens.
    pub vocabulary: u64,
    /// The kinds of segments, each with a vector that is added to its tokens (two in BERT).
    pub token_types: u64,
    /// The number of blocks.
    pub layers: u64,
    /// The shape of each block.
    pub block: Block,
    /// The default sequence length, in tokens.
    pub seq_len: u64,
    /// The task.
    pub end: EncoderEnd,
}

impl Encoder {
    /// Returns the last layer.
    pub const fn head(&self) -> EncoderHead {
        EncoderHead { hidden: self.block.hidden, vocabulary: self.vocabulary, end: self.end }
    }
}
