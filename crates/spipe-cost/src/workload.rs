//! What is asked of a model: how it is trained or run, and in which batches.

use crate::CostError;
use serde::{Deserialize, Serialize};
use spipe_hardware::{DataType, Device, DeviceKind, VectorExtension};
use spipe_model::{Attention, Batch, Precision};
use std::{fmt, str::FromStr};

/// Training or inference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Forward, backward and an optimizer step.
    #[default]
    Train,
    /// Forward only, of all tokens of each sequence: of a language model the prefill, which leaves keys and values in a cache,
    /// of an image encoder an embedding, of a denoising network one step.
    Infer,
    /// The forward of the next token of each sequence, whose other tokens, to the sequence length in all, are in a cache of keys
    /// and values.
    Generate,
}

/// How parameters are updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Adam with decoupled weight decay (Loshchilov, Hutter 2019): two moments per parameter.
    #[default]
    Adamw,
}

impl Optimizer {
    /// Bytes of state per parameter, an f32 master copy included where the parameters themselves are narrower.
    pub const fn state_bytes(self, parameter_bytes: u64) -> u64 {
        match self {
            Self::Adamw => 8 + if parameter_bytes < 4 { 4 } else { 0 },
        }
    }
}

impl Optimizer {
    /// Bytes that a step moves through memory per parameter: the gradient in, the parameter out, its state in and out, and
    /// the parameter in where it is its own master copy. For AdamW that is 28, whatever the precision.
    pub const fn step_bytes(self, parameter_bytes: u64) -> u64 {
        let parameter_in = if parameter_bytes < 4 { 0 } else { parameter_bytes };
        2 * parameter_bytes + parameter_in + 2 * self.state_bytes(parameter_bytes)
    }
}

/// The most that the norm of all gradients of a step may be (Pascanu et al. 2013), more than 0 and finite. Longer ones are scaled
/// down to it as `torch.nn.utils.clip_grad_norm_` does, by c ÷ (norm + 10⁻⁶), so that no parameter is stepped before the norm is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "f64", into = "f64")]
pub struct ClipNorm(f64);

impl ClipNorm {
    /// What gradients with this norm are multiplied with; 1 where it is not too long.
    pub fn factor(self, norm: f64) -> f32 {
        (self.0 / (norm + 1e-6)).min(1.0) as f32
    }
}

// No value is not a number.
impl Eq for ClipNorm {}

impl TryFrom<f64> for ClipNorm {
    type Error = String;

    fn try_from(norm: f64) -> Result<Self, String> {
        if norm > 0.0 && norm.is_finite() {
            Ok(Self(norm))
        } else {
            Err(format!("{norm} is no norm to clip to: it must be above 0"))
        }
    }
}

impl From<ClipNorm> for f64 {
    fn from(norm: ClipNorm) -> Self {
        norm.0
    }
}

impl FromStr for ClipNorm {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let norm: f64 = word.parse().map_err(|_| format!("`{word}` is no number"))?;
        norm.try_into()
    }
}

macro_rules! words {
    ($name:ident: $($word:literal => $value:expr),+) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(if *self == $value { return f.pad($word); })+
                Ok(())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                $(if word == $word { return Ok($value); })+
                Err(format!("`{word}` is not known here (known: {})", [$($word),+].join(", ")))
            }
        }
    };
}

words!(Mode: "train" => Self::Train, "infer" => Self::Infer, "generate" => Self::Generate);
words!(Optimizer: "adamw" => Self::Adamw);

/// What one iteration consumes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Workload {
    /// Training or inference.
    pub mode: Mode,
    /// Tokens per sequence.
    pub seq_len: u64,
    /// Sequences (images) per microbatch.
    pub microbatch: u64,
    /// Microbatches per iteration.
    pub microbatches: u64,
    /// The data type of parameters and activations on devices that have it.
    pub precision: Precision,
    /// How parameters are updated.
    pub optimizer: Optimizer,
    /// Whether attention scores exist in memory.
    pub attention: Attention,
    /// What the norm of all gradients is clipped to, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<ClipNorm>,
}

/// The most tokens of a microbatch: far beyond what is trained, and no product of them with the sizes of a model leaves 64 bits.
pub const MOST_TOKENS: u64 = 1 << 24;

/// The most microbatches of an iteration, each of which is simulated.
const MOST_MICROBATCHES: u64 = 1 << 16;

/// Whether there is something to compute in a microbatch, and no more than can be counted.
///
/// # Errors
/// The first figure that is zero or too large.
pub fn check_batch(batch: Batch) -> Result<(), CostError> {
    countable("the microbatch", batch.microbatch, MOST_TOKENS)?;
    countable("the sequence length", batch.seq_len, MOST_TOKENS)?;
    countable("the number of tokens of a microbatch", batch.microbatch.saturating_mul(batch.seq_len), MOST_TOKENS)
}

const fn countable(what: &'static str, figure: u64, most: u64) -> Result<(), CostError> {
    match figure {
        0 => Err(CostError::Zero { what }),
        figure if figure > most => Err(CostError::TooLarge { what, most }),
        _ => Ok(()),
    }
}

impl Workload {
    /// Whether there is something to compute, and no more than can be counted.
    ///
    /// # Errors
    /// The first figure that is zero or too large.
    pub fn check(&self) -> Result<(), CostError> {
        countable("the number of microbatches", self.microbatches, MOST_MICROBATCHES)?;
        check_batch(self.batch())
    }

    /// One microbatch.
    pub const fn batch(&self) -> Batch {
        Batch { microbatch: self.microbatch, seq_len: self.seq_len }
    }

    /// Sequences per iteration.
    pub const fn global_batch(&self) -> u64 {
        self.microbatch * self.microbatches
    }

    /// Whether no gradient may be used before all are known: those that are clipped to a norm, and those of losses that are scaled for
    /// fp16, any of which may overflow, so that nothing is to be stepped.
    pub fn checks_gradients(&self) -> bool {
        self.mode == Mode::Train && (self.clip_norm.is_some() || self.precision == Precision::Fp16)
    }

    /// Tokens per iteration; of generating, one a sequence.
    pub const fn tokens(&self) -> u64 {
        match self.mode {
            Mode::Train | Mode::Infer => self.global_batch() * self.seq_len,
            Mode::Generate => self.global_batch(),
        }
    }
}

/// The data type that `device` computes in when `precision` is asked for: GPUs in it, as long as they have a peak for it;
/// CPU sockets in bf16 where their vector extensions have it and bf16 is asked for, otherwise in f32, never in f16.
pub fn compute_type(device: &Device, precision: Precision) -> DataType {
    let asked = precision.data_type();
    match &device.kind {
        DeviceKind::Gpu if device.peak.contains_key(&asked) => asked,
        DeviceKind::Socket { vector_extensions, .. }
            if precision == Precision::Bf16
                && device.peak.contains_key(&DataType::Bf16)
                && vector_extensions
                    .iter()
                    .any(|extension| matches!(extension, VectorExtension::AmxBf16 | VectorExtension::Avx512Bf16)) =>
        {
            DataType::Bf16
        }
        _ => DataType::F32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adamw_holds_twelve_or_eight_and_moves_twenty_eight() {
        assert_eq!((Optimizer::Adamw.state_bytes(2), Optimizer::Adamw.state_bytes(4)), (12, 8));
        assert_eq!((Optimizer::Adamw.step_bytes(2), Optimizer::Adamw.step_bytes(4)), (28, 28));
    }

    #[test]
    fn norms_are_clipped_to_positive_numbers() {
        for word in ["0", "-1", "inf", "NaN", "one"] {
            assert!(word.parse::<ClipNorm>().is_err(), "{word}");
        }
        let one: ClipNorm = "1".parse().unwrap();
        assert_eq!((one.factor(0.5).to_bits(), one.factor(4.0)), (1.0f32.to_bits(), 0.249_999_94));
    }
}
