//! Quantities: each holds one private number. Constructors and accessors are named after units, and
//! only the operators with a physical meaning exist.
//!
//! Each type has one range for what people write (text, files, options): rates from 1 to 10¹⁸ per
//! second, durations up to 10⁹ s, sizes up to 2⁶² bytes, work up to 10³⁰ operations. Values outside,
//! denormal ones, infinities and NaN are refused with the range. Computed values may leave it; they
//! saturate instead of overflowing.

use crate::{
    bytes::Bytes,
    parse::{ParseQuantityError, Units, parse, scale, write_scaled},
    text::Exact,
};
use serde::{Deserialize, Serialize};
use std::{cmp::Ordering, fmt, iter::Sum, str::FromStr};

/// The largest computed value. Products of a few such values with counts are still finite.
const LARGEST_COMPUTED: f64 = 1e100;

/// Defines a quantity held as a finite, non-negative `f64` in its base unit. A rate cannot be zero,
/// because it divides. `range` holds the least and largest value that may be written, in the base
/// unit and in words.
macro_rules! quantity {
    (
        $(#[$doc:meta])* $name:ident, $quantity:literal, $example:literal,
        range: $least:literal, $most:literal, $range:literal,
        units: [$($unit:literal = $factor:literal),+],
        display: [$($shown:literal = $scale:literal),+],
        $($(#[$cdoc:meta])* $ctor:ident = $cfactor:literal),*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
        #[serde(try_from = "f64", into = "f64")]
        #[schemars(with = "f64")]
        pub struct $name(f64);

        impl $name {
            #[doc = concat!("Creates a quantity from `value` in the base unit; `None` outside of ", $range, ", or if denormal.")]
            pub fn new(value: f64) -> Option<Self> {
                let in_range = ($least..=$most).contains(&value) && !value.is_subnormal();
                in_range.then_some(Self(value + 0.0))
            }

            /// The computed `value` in the base unit. It saturates at 10¹⁰⁰, and above zero for a
            /// rate.
            ///
            /// # Panics
            /// If `value` is negative or not a number.
            fn computed(value: f64) -> Self {
                assert!(value >= 0.0, "{value} is out of range for a {}", $quantity);
                let least: f64 = if $least > 0.0 { 1.0 / LARGEST_COMPUTED } else { 0.0 };
                Self(value.clamp(least, LARGEST_COMPUTED))
            }

            $(
                $(#[$cdoc])*
                ///
                /// A computed value may lie outside of the range of written ones; it saturates.
                ///
                /// # Panics
                /// If `value` is negative or not a number.
                pub fn $ctor(value: f64) -> Self {
                    Self::computed(scale(value, $cfactor))
                }
            )*

            /// Returns the value in the base unit.
            pub const fn get(self) -> f64 {
                self.0
            }

            const UNITS: Units =
                Units { quantity: $quantity, example: $example, range: $range, table: &[$(($unit, $factor)),+] };
        }

        impl Eq for $name {}

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                self.0.total_cmp(&other.0)
            }
        }

        impl TryFrom<f64> for $name {
            type Error = ParseQuantityError;

            fn try_from(value: f64) -> Result<Self, Self::Error> {
                let base = Self::UNITS.table[0].0;
                Self::new(value).ok_or_else(|| Self::UNITS.out_of_range(&format!("{value:e} {base}")))
            }
        }

        impl From<$name> for f64 {
            fn from(quantity: $name) -> f64 {
                quantity.0
            }
        }

        impl FromStr for $name {
            type Err = ParseQuantityError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let value = parse(text, &Self::UNITS)?;
                Self::new(value).ok_or_else(|| Self::UNITS.out_of_range(text))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_scaled(f, self.0, &[$(($shown, $scale)),+], 1)
            }
        }

        impl Exact for $name {
            fn exact(&self) -> String {
                let scales = [$(($shown, $scale)),+];
                let exact = |(unit, factor): (&str, f64)| Some(format!("{} {unit}", self.0 / factor))
                    .filter(|text| self.0 >= factor && text.parse() == Ok(*self));
                let (base, _) = Self::UNITS.table[0];
                scales.into_iter().find_map(exact).unwrap_or_else(|| format!("{} {base}", self.0))
            }
        }

        impl std::ops::Mul<f64> for $name {
            type Output = Self;

            fn mul(self, factor: f64) -> Self {
                Self::computed(self.0 * factor)
            }
        }

        impl std::ops::Add for $name {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Self::computed(self.0 + other.0)
            }
        }

        impl std::ops::Div for $name {
            type Output = f64;

            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }
    };
}

quantity! {
    /// A duration in seconds, computed or measured. The simulator's clock is
    /// [`SimTime`](crate::SimTime).
    Seconds, "duration", "18.5 ms",
    range: 0.0, 1e9, "0 s to 1e9 s",
    units: ["s" = 1.0, "ms" = 1e-3, "us" = 1e-6, "µs" = 1e-6, "μs" = 1e-6, "ns" = 1e-9, "min" = 60.0, "m" = 60.0, "h" = 3600.0],
    display: ["s" = 1.0, "ms" = 1e-3, "us" = 1e-6, "ns" = 1e-9],
    /// Creates a duration of `value` seconds.
    s = 1.0,
    /// Creates a duration of `value` milliseconds.
    ms = 1e-3,
    /// Creates a duration of `value` microseconds.
    us = 1e-6
}

quantity! {
    /// Floating-point operations; a multiply-add counts as two.
    Flops, "number of operations", "4 GFLOP",
    range: 0.0, 1e30, "0 FLOP to 1e30 FLOP",
    units: ["FLOP" = 1.0, "kFLOP" = 1e3, "MFLOP" = 1e6, "GFLOP" = 1e9, "TFLOP" = 1e12, "PFLOP" = 1e15],
    display: ["PFLOP" = 1e15, "TFLOP" = 1e12, "GFLOP" = 1e9, "MFLOP" = 1e6, "FLOP" = 1.0],
    /// Creates a count of `value` operations.
    flop = 1.0
}

quantity! {
    /// A bandwidth. Bits and bytes are distinguished: 1 Gb/s is an eighth of 1 GB/s.
    BytesPerSecond, "bandwidth", "32 GB/s",
    range: 1.0, 1e18, "1 B/s to 1 EB/s",
    units: ["B/s" = 1.0, "KB/s" = 1e3, "MB/s" = 1e6, "GB/s" = 1e9, "TB/s" = 1e12, "KiB/s" = 1024.0, "MiB/s" = 1_048_576.0,
        "GiB/s" = 1_073_741_824.0, "TiB/s" = 1_099_511_627_776.0, "PB/s" = 1e15, "EB/s" = 1e18, "Mb/s" = 125e3, "Gb/s" = 125e6],
    display: ["TB/s" = 1e12, "GB/s" = 1e9, "MB/s" = 1e6, "KB/s" = 1e3, "B/s" = 1.0],
    /// Creates a bandwidth of `value` bytes per second.
    bytes = 1.0,
    /// Creates a bandwidth of `value` GB (10⁹ bytes) per second.
    gb = 1e9
}

quantity! {
    /// An arithmetic rate.
    FlopsPerSecond, "arithmetic rate", "165 TFLOP/s",
    range: 1.0, 1e18, "1 FLOP/s to 1 EFLOP/s",
    units: ["FLOP/s" = 1.0, "MFLOP/s" = 1e6, "GFLOP/s" = 1e9, "TFLOP/s" = 1e12, "PFLOP/s" = 1e15, "EFLOP/s" = 1e18],
    display: ["PFLOP/s" = 1e15, "TFLOP/s" = 1e12, "GFLOP/s" = 1e9, "MFLOP/s" = 1e6, "FLOP/s" = 1.0],
    /// Creates a rate of `value` operations per second.
    flops = 1.0,
    /// Creates a rate of `value` TFLOP (10¹² operations) per second.
    tflops = 1e12
}

quantity! {
    /// The number of parameters that an optimizer updates per second.
    ParamsPerSecond, "optimizer rate", "2 Gparam/s",
    range: 1.0, 1e18, "1 param/s to 1e18 param/s",
    units: ["param/s" = 1.0, "Mparam/s" = 1e6, "Gparam/s" = 1e9],
    display: ["Gparam/s" = 1e9, "Mparam/s" = 1e6, "param/s" = 1.0],
    /// Creates a rate of `value` parameters per second.
    params = 1.0,
    /// Creates a rate of `value` · 10⁹ parameters per second.
    gparams = 1e9
}

impl Seconds {
    /// A duration of zero.
    pub const ZERO: Self = Self(0.0);

    /// Converts to milliseconds.
    pub fn to_ms(self) -> f64 {
        self.0 * 1e3
    }
}

impl Sum for Seconds {
    fn sum<I: Iterator<Item = Self>>(durations: I) -> Self {
        durations.fold(Self::ZERO, |total, duration| total + duration)
    }
}

impl Flops {
    /// Zero operations.
    pub const ZERO: Self = Self(0.0);
}

impl Sum for Flops {
    fn sum<I: Iterator<Item = Self>>(work: I) -> Self {
        work.fold(Self::ZERO, |total, part| total + part)
    }
}

impl std::ops::Div<FlopsPerSecond> for Flops {
    type Output = Seconds;

    fn div(self, rate: FlopsPerSecond) -> Seconds {
        Seconds::s(self.0 / rate.0)
    }
}

impl std::ops::Div<BytesPerSecond> for Bytes {
    type Output = Seconds;

    fn div(self, rate: BytesPerSecond) -> Seconds {
        Seconds::s(self.as_f64() / rate.0)
    }
}

impl std::ops::Mul<Seconds> for BytesPerSecond {
    type Output = Bytes;

    fn mul(self, duration: Seconds) -> Bytes {
        Bytes::from_f64(self.0 * duration.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_a_number_and_a_unit() {
        assert_eq!("128GiB".parse(), Ok(Bytes::gib(128)));
        assert_eq!("8 MiB".parse(), Ok(Bytes::mib(8)));
        assert_eq!("18.522 ms".parse(), Ok(Seconds::ms(18.522)));
        assert_eq!("60s".parse(), Ok(Seconds::s(60.0)));
        assert_eq!("1e-3 s".parse(), Ok(Seconds::ms(1.0)));
        assert_eq!("200 Gb/s".parse(), Ok(BytesPerSecond::gb(25.0)));
        assert_eq!("1_000 TFLOP/s".parse(), Ok(FlopsPerSecond::tflops(1000.0)));
    }

    #[test]
    fn refusals_say_what_would_do() {
        let message = |text: &str| text.parse::<Bytes>().map_err(|error| error.to_string());
        assert_eq!(message("24"), Err("`24` has no unit (write a size like \"24 GiB\")".into()));
        assert_eq!(
            message("24 GHz"),
            Err("`GHz` is not a unit of size (known: B, KB, kB, MB, GB, TB, KiB, MiB, GiB, TiB)".into())
        );
        assert_eq!(message("-1 GiB"), Err("`-1 GiB` is out of range for a size (0 B to 2^62 B)".into()));
        assert_eq!(
            message("lots"),
            Err("`lots` is not a size: it does not start with a number (write it like \"24 GiB\")".into())
        );
        assert!("0 GB/s".parse::<BytesPerSecond>().is_err(), "a rate divides, so it cannot be zero");
    }

    #[test]
    fn display_picks_the_unit() {
        assert_eq!(Bytes::gib(80).to_string(), "80.0 GiB");
        assert_eq!(Bytes::new(12).to_string(), "12 B");
        assert_eq!(Seconds::ms(4.19).to_string(), "4.2 ms");
        assert_eq!(format!("{:.3}", Seconds::ms(4.194)), "4.194 ms");
        assert_eq!(FlopsPerSecond::tflops(165.0).to_string(), "165.0 TFLOP/s");
    }

    #[test]
    fn exact_text_parses_back() {
        assert_eq!(Bytes::mib(8).exact(), "8 MiB");
        assert_eq!(Bytes::new((8 << 20) + 1).exact(), "8388609 B");
        for seconds in [0.0, 1.0, 18.522e-3, 1.0 / 3.0, 6e-6, 1e-9] {
            let duration = Seconds::s(seconds);
            assert_eq!(duration.exact().parse(), Ok(duration));
        }
    }

    #[test]
    fn bad_floats_are_refused() {
        assert_eq!(Seconds::new(f64::NAN), None);
        assert_eq!(Seconds::new(-1.0), None);
        assert_eq!(BytesPerSecond::new(0.0), None);
    }

    #[test]
    fn every_type_states_its_range() {
        let refused = |error: ParseQuantityError| error.to_string();
        for text in ["1e-320 GB/s", "0.9 B/s", "1.1 EB/s", "1e400 GB/s", "-0 B/s", "-1 GB/s"] {
            let expected = format!("`{text}` is out of range for a bandwidth (1 B/s to 1 EB/s)");
            assert_eq!(text.parse::<BytesPerSecond>().map_err(refused), Err(expected));
        }
        for text in ["1e300 s", "1.1e9 s", "1e-320 s", "-1 ms"] {
            let expected = format!("`{text}` is out of range for a duration (0 s to 1e9 s)");
            assert_eq!(text.parse::<Seconds>().map_err(refused), Err(expected));
        }
        for text in ["8388608 TiB", "1e30 B"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert!("4194304 TiB".parse::<Bytes>().is_ok_and(|size| size == Bytes::LARGEST));
        assert!(["1 B/s", "1 EB/s"].iter().all(|text| text.parse::<BytesPerSecond>().is_ok()));
        assert!("0.5 FLOP/s".parse::<FlopsPerSecond>().is_err());
        assert!("0.5 param/s".parse::<ParamsPerSecond>().is_err());
        assert!("1e31 FLOP".parse::<Flops>().is_err());
    }

    #[test]
    fn computed_values_saturate() {
        let long = Bytes::LARGEST / BytesPerSecond::bytes(1.0);
        assert!(long > Seconds::s(1e9), "{long}");
        assert_eq!(Bytes::LARGEST * 9, Bytes::new(u64::MAX));
        assert!((long * 1e300 + long).get().is_finite());
        assert!((Flops::flop(1e30) / (FlopsPerSecond::flops(1e18) * 0.0)).get().is_finite());
    }
}
