//! Number formats of device arithmetic.

use crate::UnknownWord;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A number format in which devices compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DataType {
    /// IEEE 754 binary32.
    F32,
    /// 32 bits in memory, 19 in the multiplier (NVIDIA tensor cores).
    Tf32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// Eight bits: E4M3 or E5M2.
    Fp8,
    /// Eight-bit integers.
    Int8,
}

impl DataType {
    /// Every format.
    pub const ALL: [Self; 6] = [Self::F32, Self::Tf32, Self::F16, Self::Bf16, Self::Fp8, Self::Int8];

    /// Returns the name used in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
        }
    }

    /// Returns the size of one number in memory, in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::Tf32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8 | Self::Int8 => 1,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DataType {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|data_type| data_type.name() == word)
            .ok_or_else(|| UnknownWord::new(word, "data type", &Self::ALL.map(Self::name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for data_type in DataType::ALL {
            assert_eq!(data_type.name().parse(), Ok(data_type));
        }
        let unknown = "f8".parse::<DataType>().map_err(|error| error.to_string());
        assert_eq!(unknown, Err("unknown data type `f8` (known: f32, tf32, f16, bf16, fp8, int8)".into()));
    }
}
