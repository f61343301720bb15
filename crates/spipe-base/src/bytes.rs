//! Sizes in bytes.

use crate::{
    parse::{ParseQuantityError, Units, parse, write_scaled},
    text::Exact,
};
use serde::{Deserialize, Serialize};
use std::{fmt, iter::Sum, str::FromStr};

/// A size in memory or on a wire: 0 to 2⁶² bytes where it is written, more where it is computed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Bytes(#[serde(deserialize_with = "written_bytes")] u64);

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);

    /// Creates a size of `bytes` bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Creates a size of `n` KiB (2¹⁰ bytes).
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// Creates a size of `n` MiB (2²⁰ bytes).
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// Creates a size of `n` GiB (2³⁰ bytes).
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// The largest size that may be written: 2⁶² bytes.
    pub const LARGEST: Self = Self(1 << 62);

    /// Rounds a computed size up to whole bytes; at most 2⁶⁴ − 1.
    ///
    /// # Panics
    /// If `bytes` is negative or not a number.
    pub fn from_f64(bytes: f64) -> Self {
        assert!(bytes >= 0.0, "{bytes} is not a size in bytes");
        Self(bytes.ceil() as u64)
    }

    /// Returns the number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number of bytes as a float, for ratios.
    pub const fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// Converts to GiB.
    pub fn to_gib(self) -> f64 {
        self.as_f64() / (1u64 << 30) as f64
    }

    /// Rounds up to the next size that prints without rounding, apart from a fraction of a byte.
    ///
    /// ```
    /// use spipe_base::Bytes;
    ///
    /// let up = Bytes::new(1_000_000).up_to_printed();
    /// assert_eq!((up, up.to_string().as_str()), (Bytes::new(1_000_038), "976.6 KiB"));
    /// assert_eq!(up.up_to_printed(), up);
    /// ```
    pub fn up_to_printed(self) -> Self {
        let unit = [40, 30, 20, 10].into_iter().map(|power| 1u128 << power).find(|unit| u128::from(self.0) >= *unit);
        let up = unit.map(|unit| ((u128::from(self.0) * 10).div_ceil(unit)) * unit / 10);
        up.and_then(|up| u64::try_from(up).ok()).map_or(self, Self)
    }

    /// Subtracts `other`; the result is zero if `other` is larger.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Subtracts `other`; `None` if `other` is larger.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(left) => Some(Self(left)),
            None => None,
        }
    }
}

fn written_bytes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bytes = u64::deserialize(deserializer)?;
    if bytes > Bytes::LARGEST.0 {
        return Err(serde::de::Error::custom(BYTES.out_of_range(&bytes.to_string())));
    }
    Ok(bytes)
}

const BYTES: Units = Units {
    quantity: "size",
    example: "24 GiB",
    range: "0 B to 2^62 B",
    table: &[
        ("B", 1.0),
        ("KB", 1e3),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("TiB", 1_099_511_627_776.0),
    ],
};

impl FromStr for Bytes {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let value = parse(text, &BYTES)?;
        if value > Self::LARGEST.as_f64() {
            return Err(BYTES.out_of_range(text));
        }
        Ok(Self(value.round() as u64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SCALES: [(&str, f64); 5] =
            [("TiB", 1_099_511_627_776.0), ("GiB", 1_073_741_824.0), ("MiB", 1_048_576.0), ("KiB", 1024.0), ("B", 1.0)];
        write_scaled(f, self.as_f64(), &SCALES, if self.0 < 1024 { 0 } else { 1 })
    }
}

impl Exact for Bytes {
    fn exact(&self) -> String {
        let scales = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
        let (unit, factor) =
            scales.into_iter().find(|(_, factor)| self.0 > 0 && self.0.is_multiple_of(*factor)).unwrap_or(("B", 1));
        format!("{} {unit}", self.0 / factor)
    }
}

impl std::ops::Add for Bytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.saturating_add(other.0);
    }
}

impl std::ops::Sub for Bytes {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl std::ops::SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        self.0 -= other.0;
    }
}

impl std::ops::Mul<u64> for Bytes {
    type Output = Self;

    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::ZERO, |total, size| total + size)
    }
}
