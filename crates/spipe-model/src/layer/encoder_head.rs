//! The last layer of a text encoder, with its loss.

use crate::{
    Batch, Norm, Precision,
    layer::ends::LOGIT,
    work::{LayerWork, Op, product, sum},
};
use spipe_base::Bytes;

/// The task of a text encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderEnd {
    /// Masked tokens: a projection with a norm, then the embedding's table with a bias.
    Vocabulary,
    /// A class of each token with this many classes: answers in a text (two: start and end), or words.
    Tokens(u64),
    /// A class of each sequence with this many classes, from a projection of its first token.
    Classes(u64),
}

/// The last layer of a text encoder, with its loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderHead {
    /// Width of the input.
    pub hidden: u64,
    /// The size of the vocabulary.
    pub vocabulary: u64,
    /// The task.
    pub end: EncoderEnd,
}

impl EncoderHead {
    /// Whether it uses the embedding's table.
    pub(crate) const fn is_tied(&self) -> bool {
        matches!(self.end, EncoderEnd::Vocabulary)
    }

    /// Returns the parameters that it shares with the embedding.
    pub(crate) const fn tied_parameters(&self) -> u64 {
        if self.is_tied() { self.hidden * self.vocabulary } else { 0 }
    }

    const fn classes(&self) -> u64 {
        match self.end {
            EncoderEnd::Vocabulary => self.vocabulary,
            EncoderEnd::Tokens(classes) | EncoderEnd::Classes(classes) => classes,
        }
    }

    /// Whether a square projection comes before that to classes.
    const fn projects(&self) -> bool {
        !matches!(self.end, EncoderEnd::Tokens(_))
    }

    pub(crate) fn parameters(&self) -> u64 {
        let table = if self.is_tied() { 0 } else { self.hidden * self.classes() };
        let projection = if self.projects() { self.hidden * self.hidden + self.hidden } else { 0 };
        let norm = if self.is_tied() { Norm::LayerNorm.parameters(self.hidden) } else { 0 };
        projection + norm + table + self.classes()
    }

    /// The number of classified tokens.
    fn rows(&self, batch: Batch) -> u64 {
        match self.end {
            EncoderEnd::Classes(_) => batch.microbatch,
            _ => batch.tokens(),
        }
    }

    pub(crate) fn work(&self, batch: Batch) -> LayerWork {
        let rows = self.rows(batch);
        let logits = product(&[rows, self.classes()]);
        let mut work = LayerWork::default();
        if self.projects() {
            work.linear(1, rows, (self.hidden, self.hidden));
            work.bias(rows, self.hidden);
            work.copy(product(&[rows, self.hidden]));
        }
        if self.is_tied() {
            work.norm(product(&[rows, self.hidden]));
        }
        work.linear(1, rows, (self.classes(), self.hidden));
        work.bias(rows, self.classes());
        work.forward.push(Op::Elementwise { elements: product(&[2, logits]), kernels: 2 });
        work.backward_input.push(Op::elementwise(product(&[2, logits])));
        work.backward_input.reverse();
        work.backward_weight.reverse();
        work
    }

    /// The input, and the projected rows with their logits in 32 bits.
    pub(crate) fn saved(&self, batch: Batch, precision: Precision, keep_all: bool) -> Bytes {
        let input = product(&[batch.tokens(), self.hidden, precision.bytes()]);
        Bytes::new(sum(&[input, if keep_all { self.inner(batch, precision) } else { 0 }]))
    }

    /// The gradients of these.
    pub(crate) fn workspace(&self, batch: Batch, precision: Precision) -> Bytes {
        Bytes::new(self.inner(batch, precision))
    }

    fn inner(&self, batch: Batch, precision: Precision) -> u64 {
        let rows = self.rows(batch);
        let tensors = match self.end {
            EncoderEnd::Vocabulary => 3,
            EncoderEnd::Classes(_) => 2,
            EncoderEnd::Tokens(_) => 0,
        };
        let projected = product(&[tensors, rows, self.hidden, precision.bytes()]);
        sum(&[projected, product(&[LOGIT, rows, self.classes()])])
    }

    pub(crate) fn signature(&self) -> String {
        let end = match self.end {
            EncoderEnd::Vocabulary => "vocabulary".to_owned(),
            EncoderEnd::Tokens(classes) => format!("tokens {classes}"),
            EncoderEnd::Classes(classes) => format!("classes {classes}"),
        };
        format!("encoder-head h{} v{} {end}", self.hidden, self.vocabulary)
    }
}
