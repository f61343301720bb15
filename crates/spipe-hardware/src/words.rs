//! The fixed words of hardware files: data types and vector extensions.

use serde::{Deserialize, Serialize};
use spipe_base::Bytes;
use std::fmt;

/// An enum of which each value is one word in files.
pub(crate) trait Word: Copy + 'static {
    /// What the words name, in messages.
    const WHAT: &'static str;
    /// Every word with its value.
    const WORDS: &'static [(&'static str, Self)];
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
        )]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// Every value, in the order in which reports list them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its name in files and reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl Word for $name {
            const WHAT: &'static str = $what;
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),+];
        }
    };
}

words! {
    /// The type of numbers that an arithmetic rate is about.
    DataType, "data type" {
        /// IEEE 754 single precision.
        F32 = "f32",
        /// Single precision storage, 10 bits of mantissa in products (NVIDIA tensor cores).
        Tf32 = "tf32",
        /// IEEE 754 half precision.
        F16 = "f16",
        /// The upper half of single precision.
        Bf16 = "bf16",
        /// Eight-bit floating point (E4M3 or E5M2).
        F8 = "f8",
        /// Eight-bit integers.
        I8 = "i8",
    }
}

impl DataType {
    /// How much memory one number takes.
    pub const fn size(self) -> Bytes {
        Bytes::new(match self {
            Self::F32 | Self::Tf32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::F8 | Self::I8 => 1,
        })
    }
}

words! {
    /// Vector and matrix instructions of a CPU.
    VectorExtension, "vector extension" {
        /// 256-bit vectors of x86.
        Avx2 = "avx2",
        /// 512-bit vectors of x86.
        Avx512 = "avx512",
        /// Dot products of bf16 in 512-bit vectors.
        Avx512Bf16 = "avx512-bf16",
        /// Arithmetic of f16 in 512-bit vectors.
        Avx512Fp16 = "avx512-fp16",
        /// Dot products of 8-bit integers in 512-bit vectors.
        Avx512Vnni = "avx512-vnni",
        /// Matrix tiles of bf16 (Sapphire Rapids and later).
        AmxBf16 = "amx-bf16",
        /// Matrix tiles of 8-bit integers (Sapphire Rapids and later).
        AmxInt8 = "amx-int8",
        /// 128-bit vectors of Arm.
        Neon = "neon",
        /// Scalable vectors of Arm.
        Sve = "sve",
    }
}
