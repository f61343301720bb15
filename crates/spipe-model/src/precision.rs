//! The choices of a run about a layer: batch, precision, recompute and attention kernel.

use serde::{Deserialize, Serialize};
use spipe_base::{DataType, UnknownWord};
use std::{fmt, str::FromStr};

/// The size of one microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Batch {
    /// Sequences, or images.
    pub microbatch: u64,
    /// Tokens per sequence; ignored by layers whose [`tokens`](crate::Layer::tokens) are fixed.
    pub seq_len: u64,
}

impl Batch {
    /// Returns the tokens of the microbatch.
    pub const fn tokens(self) -> u64 {
        self.microbatch.saturating_mul(self.seq_len)
    }
}

/// The number format of parameters and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// bfloat16.
    Bf16,
    /// IEEE 754 binary16.
    Fp16,
    /// IEEE 754 binary32.
    Fp32,
    /// bfloat16, with the matrix products of blocks in 8 bits where a device has a rate for them.
    Fp8,
}

impl Precision {
    /// Every precision.
    pub const ALL: [Self; 4] = [Self::Bf16, Self::Fp16, Self::Fp32, Self::Fp8];

    /// Returns the name used on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp32 => "fp32",
            Self::Fp8 => "fp8",
        }
    }

    /// Returns the bytes of one number.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bf16 | Self::Fp16 | Self::Fp8 => 2,
            Self::Fp32 => 4,
        }
    }

    /// Returns the data type of parameters and activations, for which hardware files state a peak rate.
    pub const fn data_type(self) -> DataType {
        match self {
            Self::Bf16 | Self::Fp8 => DataType::Bf16,
            Self::Fp16 => DataType::F16,
            Self::Fp32 => DataType::F32,
        }
    }
}

/// Which activations are saved for the backward and which are recomputed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// All activations are saved.
    #[default]
    None,
    /// Large activations that are cheap to recompute are discarded: the inside of materialised
    /// attention (Korthikanti et al. 2022, section 5), or, with fused attention, norms, activation
    /// functions and dropout masks (PipeOffload, arXiv 2503.01328).
    Selective,
    /// Only the layer's input is saved.
    Full,
}

impl Recompute {
    /// Every choice, from the most bytes saved to the fewest.
    pub const ALL: [Self; 3] = [Self::None, Self::Selective, Self::Full];

    /// Returns the name used on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Selective => "selective",
            Self::Full => "full",
        }
    }
}

/// The attention kernel, which decides whether the seq × seq scores and their softmax exist in
/// memory.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// One kernel that keeps the scores on the chip (FlashAttention, arXiv 2205.14135).
    #[default]
    Fused,
    /// Matrix product, softmax, matrix product.
    Materialised,
}

impl Attention {
    /// Every choice.
    pub const ALL: [Self; 2] = [Self::Fused, Self::Materialised];

    /// Returns the name used on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fused => "fused",
            Self::Materialised => "materialised",
        }
    }
}

macro_rules! named {
    ($($name:ident $what:literal),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                Self::ALL
                    .into_iter()
                    .find(|choice| choice.name() == word)
                    .ok_or_else(|| UnknownWord::new(word, $what, &Self::ALL.map(Self::name)))
            }
        }
    )+};
}

named!(Precision "precision", Recompute "recompute choice", Attention "kind of attention");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_serde() {
        for precision in Precision::ALL {
            assert_eq!(precision.name().parse(), Ok(precision));
            assert_eq!(serde_json::to_string(&precision).unwrap(), format!("\"{precision}\""));
        }
        for recompute in Recompute::ALL {
            assert_eq!(serde_json::to_string(&recompute).unwrap(), format!("\"{recompute}\""));
        }
        for attention in Attention::ALL {
            assert_eq!(serde_json::to_string(&attention).unwrap(), format!("\"{attention}\""));
        }
    }
}
