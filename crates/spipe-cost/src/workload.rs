//! The workload of a model: training or inference, and the batch sizes.

use crate::{CostError, DataShape, Formats, Optimizer, words::words};
use serde::{Deserialize, Serialize};
use spipe_hardware::{DataType, Device, DeviceKind, LossKernel, Runtime, VectorExtension};
use spipe_model::{Attention, Batch, Operations, Precision};
use std::{fmt, str::FromStr};

/// Training or inference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Forward, backward and an optimizer step.
    #[default]
    Train,
    /// The forward of all tokens of each sequence: for a language model the prefill, which leaves
    /// keys and values in a cache; for an image encoder an embedding; for a denoising network one
    /// step.
    Infer,
    /// The forward of the next token of each sequence. With it the sequence has the sequence
    /// length; the keys and values of its other tokens are in a cache.
    Generate,
}

/// The largest norm of all gradients of a step (Pascanu et al. 2013), positive and finite.
/// Gradients with a larger norm are scaled by c ÷ (norm + 10⁻⁶), as in
/// `torch.nn.utils.clip_grad_norm_`, so no parameter can be updated before the norm is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "f64", into = "f64")]
pub struct ClipNorm(f64);

impl ClipNorm {
    /// Returns the norm.
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Returns the factor by which gradients with this norm are multiplied; 1 if the norm is small
    /// enough.
    pub fn factor(self, norm: f64) -> f32 {
        (self.0 / (norm + 1e-6)).min(1.0) as f32
    }
}

// No value is NaN.
impl Eq for ClipNorm {}

impl TryFrom<f64> for ClipNorm {
    type Error = String;

    fn try_from(norm: f64) -> Result<Self, String> {
        if norm > 0.0 && norm.is_finite() {
            Ok(Self(norm))
        } else {
            Err(format!("{norm} is not a valid norm: it must be finite and above 0"))
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
        let norm: f64 = word.parse().map_err(|_| format!("`{word}` is not a number"))?;
        norm.try_into()
    }
}

words!(Mode: "train" => Self::Train, "infer" => Self::Infer, "generate" => Self::Generate);
words!(
    Optimizer: "adamw" => Self::Adamw, "adamw-8bit" => Self::Adamw8bit, "paged-adamw" => Self::PagedAdamw,
    "paged-adamw-8bit" => Self::PagedAdamw8bit, "adafactor" => Self::Adafactor, "lion" => Self::Lion,
    "sgd" => Self::Sgd, "muon" => Self::Muon
);

/// The work of one iteration.
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
    /// The data type of parameters and activations on devices that support it.
    pub precision: Precision,
    /// The optimizer that updates parameters.
    pub optimizer: Optimizer,
    /// The attention kernel, which decides whether attention scores exist in memory.
    pub attention: Attention,
    /// The norm to which all gradients are clipped, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<ClipNorm>,
    /// The formats that differ from those of plain mixed precision.
    #[serde(default, skip_serializing_if = "Formats::is_plain")]
    pub formats: Formats,
    /// Padding, packing and lengths.
    #[serde(default, skip_serializing_if = "DataShape::is_plain")]
    pub data: DataShape,
    /// The operations of blocks whose outputs the backward recomputes, whatever else a plan recomputes.
    #[serde(default, skip_serializing_if = "Operations::is_empty")]
    pub recompute_ops: Operations,
    /// The kernels of the loss, in place of the runtime's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossKernel>,
}

/// The largest number of tokens of a microbatch: far more than is trained, and small enough that
/// its products with the sizes of a model fit in 64 bits.
pub const MOST_TOKENS: u64 = 1 << 24;

/// The largest number of microbatches of an iteration, each of which is simulated.
const MOST_MICROBATCHES: u64 = 1 << 16;

/// Checks that the sizes of a microbatch are positive and not too large.
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
    /// Training in 16 bits with AdamW on one sequence of one token: what differs is stated.
    pub const PLAIN: Self = Self {
        mode: Mode::Train,
        seq_len: 1,
        microbatch: 1,
        microbatches: 1,
        precision: Precision::Bf16,
        optimizer: Optimizer::Adamw,
        attention: Attention::Fused,
        clip_norm: None,
        formats: Formats::PLAIN,
        data: DataShape::PLAIN,
        recompute_ops: Operations::NONE,
        loss: None,
    };

    /// Checks that all sizes are positive and not too large.
    ///
    /// # Errors
    /// The first figure that is zero or too large.
    pub fn check(&self) -> Result<(), CostError> {
        countable("the number of microbatches", self.microbatches, MOST_MICROBATCHES)?;
        check_batch(self.batch())
    }

    /// Returns the kernels of the loss: the workload's own, or else the runtime's.
    pub fn loss(&self, runtime: &Runtime) -> LossKernel {
        self.loss.unwrap_or_else(|| runtime.loss())
    }

    /// Returns the size of one microbatch.
    pub const fn batch(&self) -> Batch {
        Batch { microbatch: self.microbatch, seq_len: self.seq_len }
    }

    /// Returns the sequences per iteration.
    pub const fn global_batch(&self) -> u64 {
        self.microbatch * self.microbatches
    }

    /// Whether the optimizer must wait for all gradients: to clip their norm, or in fp16, where
    /// scaled losses may overflow and the step must then be skipped.
    pub fn checks_gradients(&self) -> bool {
        self.mode == Mode::Train && (self.clip_norm.is_some() || self.precision == Precision::Fp16)
    }

    /// Returns the tokens per iteration that count, without padding; when generating, one per sequence.
    pub fn tokens(&self) -> u64 {
        match self.mode {
            Mode::Train | Mode::Infer => self.counted_tokens(),
            Mode::Generate => self.global_batch(),
        }
    }
}

/// Returns the data type in which `device` computes for `precision`. GPUs use that type if they
/// have a peak for it. CPU sockets use bf16 for bf16 if their vector extensions support it.
/// Otherwise both use f32; CPU sockets never use f16.
pub fn compute_type(device: &Device, precision: Precision) -> DataType {
    let asked = precision.data_type();
    match &device.kind {
        DeviceKind::Gpu if device.peak.contains_key(&asked) => asked,
        DeviceKind::Socket { vector_extensions, .. }
            if asked == DataType::Bf16
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

/// Returns the data type of the matrix products of blocks: 8 bits if `precision` asks for them and `device` has a peak for
/// them, otherwise that in which it computes.
pub fn product_type(device: &Device, precision: Precision) -> DataType {
    let narrow = precision == Precision::Fp8 && device.is_gpu() && device.peak.contains_key(&DataType::Fp8);
    if narrow { DataType::Fp8 } else { compute_type(device, precision) }
}

/// Returns the precision in which `device` stores parameters and activations.
pub(crate) fn storage(device: &Device, precision: Precision) -> Precision {
    match compute_type(device, precision) {
        DataType::Bf16 => Precision::Bf16,
        DataType::F16 => Precision::Fp16,
        _ => Precision::Fp32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_clipped_to_positive_numbers() {
        for word in ["0", "-1", "inf", "NaN", "one"] {
            assert!(word.parse::<ClipNorm>().is_err(), "{word}");
        }
        let one: ClipNorm = "1".parse().unwrap();
        assert_eq!((one.factor(0.5).to_bits(), one.factor(4.0)), (1.0f32.to_bits(), 0.249_999_94));
    }
}
