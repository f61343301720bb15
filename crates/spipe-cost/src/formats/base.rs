//! The storage of frozen matrices.

use serde::{Deserialize, Serialize};
use spipe_base::{Bytes, similar_word};
use spipe_model::{Precision, Tensor};
use std::{fmt, str::FromStr};

/// The number format of frozen matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BaseFormat {
    /// 16 bits.
    Bf16,
    /// 8 bits and a 32-bit constant per row (arXiv 2208.07339).
    Int8,
    /// 4 bits of a normal distribution's quantiles (QLoRA, arXiv 2305.14314).
    Nf4,
    /// 4 bits of a floating-point number.
    Fp4,
    /// 8 bits of a floating-point number, and a 32-bit scale per matrix.
    Fp8,
    /// 4 bits, with a scale of 16 bits and a zero of 4 bits per group, and the group of each input in
    /// 32 bits (GPTQ, arXiv 2210.17323).
    GptqInt4,
}

/// A format with its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Base {
    /// The number format.
    pub format: BaseFormat,
    /// The weights of a block with a constant of its own.
    pub block: u64,
    /// Whether the constants of 4-bit blocks are stored in 8 bits, with a 32-bit constant per 256.
    pub double: bool,
}

/// Bytes of a constant in 32 bits.
const CONSTANT: u64 = 4;

/// The constants of a block of double quantisation.
const CONSTANTS_PER_BLOCK: u64 = 256;

/// The share of a device's memory bandwidth at which matrices are converted. GPTQ: 85 G weights/s on an
/// A100 with 2039 GB/s, which reads 0.52 and writes 2 bytes per weight (Qwen's Q-LoRA runs at 256
/// tokens). The others: estimate for kernels that only read, look up and write.
const fn bandwidth_share(format: BaseFormat) -> f64 {
    match format {
        BaseFormat::GptqInt4 => 0.105,
        _ => 0.6,
    }
}

/// Names with their formats.
const NAMES: [(&str, BaseFormat); 6] = [
    ("bf16", BaseFormat::Bf16),
    ("int8", BaseFormat::Int8),
    ("nf4", BaseFormat::Nf4),
    ("fp4", BaseFormat::Fp4),
    ("fp8", BaseFormat::Fp8),
    ("gptq-int4", BaseFormat::GptqInt4),
];

impl BaseFormat {
    /// Returns the name of the format.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }
}

impl Base {
    /// Returns `format` with its usual sizes: blocks of 64 with double quantisation for 4-bit floats,
    /// groups of 128 for GPTQ.
    pub const fn usual(format: BaseFormat) -> Self {
        let (block, double) = match format {
            BaseFormat::Nf4 | BaseFormat::Fp4 => (64, true),
            BaseFormat::GptqInt4 => (128, false),
            _ => (0, false),
        };
        Self { format, block, double }
    }

    /// Whether numbers have fewer than 16 bits.
    pub fn is_quantised(&self) -> bool {
        self.format != BaseFormat::Bf16
    }

    /// Returns the bytes that `tensor` takes.
    pub fn bytes(&self, tensor: &Tensor) -> Bytes {
        let elements = tensor.rows.saturating_mul(tensor.columns);
        let blocks = elements.div_ceil(self.block.max(1));
        let one = match self.format {
            BaseFormat::Bf16 => elements.saturating_mul(Precision::Bf16.bytes()),
            BaseFormat::Int8 => elements + CONSTANT * tensor.rows,
            BaseFormat::Fp8 => elements + CONSTANT,
            BaseFormat::Nf4 | BaseFormat::Fp4 if self.double => {
                // The mean of the constants is taken off them, and kept.
                elements.div_ceil(2) + blocks + CONSTANT * blocks.div_ceil(CONSTANTS_PER_BLOCK) + CONSTANT
            }
            BaseFormat::Nf4 | BaseFormat::Fp4 => elements.div_ceil(2) + CONSTANT * blocks,
            BaseFormat::GptqInt4 => {
                let groups = tensor.rows * tensor.columns.div_ceil(self.block.max(1));
                elements.div_ceil(2) + 2 * groups + groups.div_ceil(2) + CONSTANT * tensor.columns
            }
        };
        Bytes::new(one.saturating_mul(tensor.count))
    }

    /// Returns the bytes that a conversion of `tensor` to numbers of `width` bytes moves, as if at the
    /// full bandwidth of the device; zero if nothing is converted.
    pub fn converting(&self, tensor: &Tensor, width: u64) -> Bytes {
        if !self.is_quantised() {
            return Bytes::ZERO;
        }
        let moved = self.bytes(tensor).as_f64() + (tensor.elements() * width) as f64;
        Bytes::new((moved / bandwidth_share(self.format)) as u64)
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::usual(self.format);
        f.write_str(self.format.name())?;
        if self.block != usual.block {
            write!(f, ":block={}", self.block)?;
        }
        if usual.double && !self.double {
            write!(f, ":single")?;
        }
        Ok(())
    }
}

impl FromStr for Base {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let known = NAMES.iter().find(|(known, _)| *known == name).ok_or_else(|| {
            let all = NAMES.map(|(known, _)| known);
            let near = similar_word(name, all).map_or(String::new(), |near| format!("; did you mean `{near}`"));
            format!("unknown format `{name}` (known: {}){near}", all.join(", "))
        })?;
        let mut base = Self::usual(known.1);
        for word in words {
            match (word, word.split_once('=')) {
                (_, Some(("block", size))) if base.block > 0 => {
                    let size = size.parse().ok().filter(|size: &u64| size.is_power_of_two() && *size >= 16);
                    base.block = size.ok_or_else(|| format!("`{word}` is no power of two from 16"))?;
                }
                ("double" | "single", _) if Self::usual(base.format).double => base.double = word == "double",
                _ => {
                    return Err(format!(
                        "`{name}` has no part `{word}` (4-bit formats have `block=64`, `double`, `single`)"
                    ));
                }
            }
        }
        Ok(base)
    }
}

impl TryFrom<String> for Base {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Base> for String {
    fn from(base: Base) -> Self {
        base.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(text: &str) -> f64 {
        let base: Base = text.parse().unwrap();
        let tensor = Tensor { rows: 4096, columns: 4096, count: 3 };
        base.bytes(&tensor).as_f64() * 8.0 / tensor.elements() as f64
    }

    #[test]
    fn bits_per_weight_are_those_of_the_papers() {
        for (text, expected) in [
            ("bf16", 16.0),
            ("int8", 8.0 + 32.0 / 4096.0),
            ("nf4:single", 4.5),
            ("nf4", 4.0 + 8.0 / 64.0 + 32.0 / (64.0 * 256.0) + 32.0 / (4096.0 * 4096.0)),
            ("fp4:block=128:single", 4.25),
            ("gptq-int4", 4.0 + 16.0 / 128.0 + 4.0 / 128.0 + 32.0 / 4096.0),
        ] {
            assert!((bits(text) - expected).abs() < 1e-9, "{text}: {}", bits(text));
        }
    }

    #[test]
    fn texts_are_read_back_and_nonsense_is_refused() {
        for text in ["bf16", "int8", "nf4", "nf4:single", "fp4:block=128", "gptq-int4", "fp8"] {
            assert_eq!(text.parse::<Base>().map(|base| base.to_string()), Ok(text.into()));
        }
        assert_eq!("nf4:block=64:double".parse::<Base>().unwrap().to_string(), "nf4");
        for (text, expected) in [
            ("nf5", "did you mean `nf4`"),
            ("nf4:block=60", "no power of two"),
            ("int8:double", "has no part `double`"),
        ] {
            let fault = text.parse::<Base>().unwrap_err();
            assert!(fault.contains(expected), "{fault}");
        }
    }
}
