//! Training data, and the microbatches drawn from it with a seed.
//!
//! Nothing carries over from step to step: a sequence is a function of the data, the seed, the step
//! and its place in the step. A resumed run therefore reads what the first run would have read, as
//! does a run with other microbatches.

mod images;
mod tokens;

pub use images::{ImageBatch, Images};
pub use tokens::{Batch, Tokens};

use spipe_model::{Architecture, LayerKind, Model};
use std::f64::consts::TAU;

/// Data for a model.
#[derive(Clone, Debug)]
pub enum Data {
    /// Text, for language models.
    Tokens(Tokens),
    /// Images with classes, for image encoders; or for denoising networks, which predict noise.
    Images(Images),
}

/// The images that a model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Channels of a pixel.
    pub channels: u64,
    /// Height and width.
    pub side: u64,
    /// Number of classes that it distinguishes; none if there is no limit.
    pub classes: Option<u64>,
}

/// A microbatch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The seed of the order of the data.
    pub seed: u64,
    /// The step, from 0.
    pub step: u32,
    /// The microbatch in the step, from 0.
    pub microbatch: usize,
}

/// One microbatch of either kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Microbatch {
    Tokens(Batch),
    Images(ImageBatch),
}

/// Why data does not suit a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// Shorter than one sequence and the token after it.
    #[error("the text has {found} {unit}s, one sequence of {seq_len} tokens and the one after it needs {needed}")]
    TooShort {
        /// Tokens of the text.
        found: u64,
        /// The kind of each: a byte, or a tokenizer's token.
        unit: &'static str,
        /// Tokens of a sequence.
        seq_len: u64,
        /// Tokens that it takes.
        needed: u64,
    },
    /// A file of listed tokens that cannot be read.
    #[error("this is no safetensors file with the tokens of each step: {reason}")]
    Listed {
        /// The fault.
        reason: String,
    },
    /// Listed tokens that are no whole number of steps.
    #[error("{found} tokens are no whole number of steps of {sequences} sequences of {seq_len} tokens and one")]
    Steps {
        /// Tokens of the list.
        found: u64,
        /// Sequences of a step.
        sequences: u64,
        /// Tokens of a sequence.
        seq_len: u64,
    },
    /// The sequence length is zero.
    #[error("the sequence length is zero")]
    NoLength,
    /// A token beyond the model's vocabulary.
    #[error("the text has {unit} {token} at offset {offset}, the model's vocabulary has {vocabulary} tokens")]
    Vocabulary {
        /// Its kind: a byte, or a tokenizer's token.
        unit: &'static str,
        /// The token.
        token: u32,
        /// Its first position.
        offset: usize,
        /// Number of tokens of its kind.
        known: u64,
        /// Tokens of the model.
        vocabulary: u64,
    },
    /// Sequences of another length than the plan's.
    #[error("the data has sequences of {found} tokens, the plan has {wanted}")]
    Length {
        /// Length in the data.
        found: u64,
        /// Length in the plan.
        wanted: u64,
    },
    /// Data of another kind than the model reads.
    #[error("`{model}` reads {wanted}, the data is {found}")]
    Kind {
        /// The model.
        model: String,
        /// The kind that it reads.
        wanted: &'static str,
        /// The kind of the data.
        found: &'static str,
    },
    /// There are no images.
    #[error("there are no images")]
    NoImages,
    /// The size of an image does not match its shape.
    #[error("image {image} has {found} numbers, {channels} channels of {side} × {side} pixels are {wanted}")]
    Pixels {
        /// Its index.
        image: usize,
        /// Numbers that it has.
        found: usize,
        /// Numbers of its shape.
        wanted: u64,
        /// Channels of a pixel.
        channels: u64,
        /// Height and width.
        side: u64,
    },
    /// Images of another shape than the model's.
    #[error(
        "the images have {found_channels} channels of {found} × {found} pixels, `{model}` reads {channels} of {side} × {side}"
    )]
    Shape {
        /// The model.
        model: String,
        /// Channels of the data.
        found_channels: u64,
        /// Height and width of the data.
        found: u64,
        /// Channels that the model reads.
        channels: u64,
        /// Height and width that it reads.
        side: u64,
    },
    /// More classes than the model distinguishes.
    #[error("the images have {found} classes, `{model}` tells {classes} apart")]
    Classes {
        /// The model.
        model: String,
        /// Classes of the data.
        found: u64,
        /// Classes of the model.
        classes: u64,
    },
}

impl From<Tokens> for Data {
    fn from(tokens: Tokens) -> Self {
        Self::Tokens(tokens)
    }
}

impl From<Images> for Data {
    fn from(images: Images) -> Self {
        Self::Images(images)
    }
}

impl Data {
    /// Synthetic images of the shape and with the classes that `model` reads; none for a model that
    /// reads tokens.
    pub fn synthetic(model: &Model) -> Option<Self> {
        ImageShape::of(model).map(|shape| Self::Images(Images::synthetic(shape)))
    }

    /// The microbatch of `draw`; it depends on nothing else.
    pub(crate) fn microbatch(&self, draw: Draw, sequences: usize) -> Microbatch {
        match self {
            Self::Tokens(tokens) => Microbatch::Tokens(tokens.batch(draw, sequences)),
            Self::Images(images) => Microbatch::Images(images.batch(draw, sequences)),
        }
    }

    /// Hash of the data.
    pub(crate) fn sum(&self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        match self {
            Self::Tokens(tokens) => tokens.sum(&mut sum),
            Self::Images(images) => images.sum(&mut sum),
        }
        sum.finalize()
    }

    /// Checks that `model` can be trained on this data with sequences of length `seq_len`.
    ///
    /// # Errors
    /// The mismatch.
    pub fn check(&self, model: &Model, seq_len: u64) -> Result<(), DataError> {
        let kind = |wanted, found| DataError::Kind { model: model.name().into(), wanted, found };
        match (self, ImageShape::of(model)) {
            (Self::Tokens(tokens), None) => tokens.check(vocabulary(model), seq_len),
            (Self::Images(images), Some(shape)) => images.check(model.name(), shape),
            (Self::Tokens(_), Some(_)) => Err(kind("images", "text")),
            (Self::Images(_), None) => Err(kind("text", "images")),
        }
    }
}

impl ImageShape {
    /// The images that `model` reads; none for a model that reads tokens.
    pub fn of(model: &Model) -> Option<Self> {
        match model.architecture() {
            Architecture::Vision(vision) => Some(Self {
                channels: vision.embedding.channels,
                side: vision.embedding.image,
                classes: vision.head().map(|head| head.classes),
            }),
            Architecture::Unet(unet) => Some(Self { channels: unet.channels, side: unet.latent, classes: None }),
            _ => None,
        }
    }
}

/// Size of the model's vocabulary.
fn vocabulary(model: &Model) -> u64 {
    let first = model.layers().iter().find_map(|layer| match &layer.kind {
        LayerKind::Embedding(embedding) => Some(embedding.vocabulary),
        _ => None,
    });
    first.unwrap_or(0)
}

impl Draw {
    /// The key of one of `count` sequences or images of the microbatch. It depends on the place in
    /// the step alone, not on the division into microbatches.
    fn key(self, sequence: usize, count: usize) -> u64 {
        hash(&[self.seed, u64::from(self.step), (self.microbatch * count + sequence) as u64])
    }
}

/// One of `count` things: the high half of a product, uniform to within 2⁻⁶⁴ × count.
fn choice(key: u64, count: u64) -> u64 {
    ((u128::from(key) * u128::from(count)) >> 64) as u64
}

/// A hash of the words of a key by SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) fn hash(key: &[u64]) -> u64 {
    key.iter().fold(0x9E37_79B9_7F4A_7C15, |state, word| mix(state.wrapping_add(*word)))
}

/// One step of SplitMix64.
const fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A uniform number in the open interval from 0 to 1.
pub(crate) fn uniform(key: u64, index: u64) -> f64 {
    let bits = mix(key ^ mix(index)) >> 11;
    (bits as f64 + 0.5) / (1u64 << 53) as f64
}

/// Independent normal numbers, two from each pair of uniform ones (Box, Muller 1958).
pub(crate) fn normals(key: u64) -> impl Iterator<Item = f64> {
    (0..).flat_map(move |pair| {
        let (radius, angle) = ((-2.0 * uniform(key, 2 * pair).ln()).sqrt(), TAU * uniform(key, 2 * pair + 1));
        [radius * angle.cos(), radius * angle.sin()]
    })
}
