//! Model files of kind `bert`.

use super::{encoder_block, transformer::NORM_EPSILON};
use crate::{Block, Encoder, EncoderEnd, Positions, read::check::Check};
use serde::{Deserialize, Serialize};

/// A text encoder: BERT and its kin.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct EncoderFile {
    /// The version of the file format: 1.
    #[schemars(range(min = 1, max = 1))]
    pub format_version: u32,
    /// The kind of network.
    pub kind: EncoderKind,
    /// The model's name.
    pub name: String,
    /// The source of the numbers.
    pub source: Option<String>,
    /// Frozen layers: indices, names, or ranges of either including both ends (`"0..3"`); none if
    /// absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// The size of the vocabulary, in tokens.
    pub vocabulary: u64,
    /// The default sequence length, in tokens.
    pub seq_len: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// The number of blocks.
    pub layers: u64,
    /// Heads of the attention.
    pub heads: u64,
    /// Inner width of the feed-forward network.
    pub intermediate: u64,
    /// The number of learned positions; `seq-len` if absent.
    pub places: Option<u64>,
    /// The kinds of segments with a vector each; 2 if absent.
    #[serde(default = "two")]
    pub token_types: u64,
    /// The norms' epsilon; 1e-5 if absent.
    pub norm_epsilon: Option<f64>,
    /// Whether training applies dropout, which keeps masks; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dropout: bool,
    /// Classes of each token, such as 2 for the start and the end of answers; without it and `classes`,
    /// masked tokens are predicted.
    pub token_classes: Option<u64>,
    /// Classes of each sequence.
    pub classes: Option<u64>,
}

/// The `kind` of text encoders.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EncoderKind {
    /// A text encoder.
    Bert,
}

const fn two() -> u64 {
    2
}

impl EncoderFile {
    /// Returns the network, and reports options that contradict each other.
    pub(crate) fn resolve(&self, check: &mut Check<'_>) -> Encoder {
        let end = match (self.token_classes, self.classes) {
            (None, None) => EncoderEnd::Vocabulary,
            (Some(classes), None) => EncoderEnd::Tokens(classes),
            (None, Some(classes)) => EncoderEnd::Classes(classes),
            (Some(_), Some(classes)) => {
                let message = "an encoder ends in `token-classes` or in `classes`, not in both";
                check.error("classes", message.into());
                EncoderEnd::Classes(classes)
            }
        };
        let epsilon = self.norm_epsilon.unwrap_or(NORM_EPSILON);
        let block = encoder_block(check, (self.hidden, self.heads, self.intermediate), epsilon);
        let positions = Positions::Learned { places: self.places.unwrap_or(self.seq_len) };
        Encoder {
            vocabulary: self.vocabulary,
            token_types: self.token_types,
            layers: self.layers,
            block: Block { positions, dropout: self.dropout, ..block },
            seq_len: self.seq_len,
            end,
        }
    }

    /// Returns the file that describes a network.
    pub(crate) fn from_encoder(name: &str, source: Option<&str>, encoder: &Encoder) -> Self {
        let places = match encoder.block.positions {
            Positions::Learned { places } => Some(places),
            _ => None,
        };
        let (token_classes, classes) = match encoder.end {
            EncoderEnd::Vocabulary => (None, None),
            EncoderEnd::Tokens(classes) => (Some(classes), None),
            EncoderEnd::Classes(classes) => (None, Some(classes)),
        };
        Self {
            format_version: super::FORMAT_VERSION,
            kind: EncoderKind::Bert,
            name: name.into(),
            source: source.map(Into::into),
            frozen: Vec::new(),
            vocabulary: encoder.vocabulary,
            seq_len: encoder.seq_len,
            hidden: encoder.block.hidden,
            layers: encoder.layers,
            heads: encoder.block.heads,
            intermediate: encoder.block.intermediate,
            places,
            token_types: encoder.token_types,
            norm_epsilon: Some(encoder.block.norm_epsilon),
            dropout: encoder.block.dropout,
            token_classes,
            classes,
        }
    }
}
