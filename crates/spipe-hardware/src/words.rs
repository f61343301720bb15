//! The enumerations of hardware files: vector extensions, and the data types of `spipe-base`.

use serde::{Deserialize, Serialize};
use spipe_base::DataType;
use std::fmt;

/// An enumeration whose values are written as one word each.
pub(crate) trait Word: Copy + 'static {
    /// The noun for a value, in messages.
    const WHAT: &'static str;

    /// Returns every word with its value; at least one.
    fn words() -> Vec<(&'static str, Self)>;
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
            /// Every value, in the order of reports.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name used in files and reports.
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

            fn words() -> Vec<(&'static str, Self)> {
                vec![$(($word, Self::$variant)),+]
            }
        }
    };
}

pub(crate) use words;

impl Word for DataType {
    const WHAT: &'static str = "data type";

    fn words() -> Vec<(&'static str, Self)> {
        Self::ALL.iter().map(|value| (value.name(), *value)).collect()
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
