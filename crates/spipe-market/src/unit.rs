//! Units of parts that no other crate needs: power and transfer rates of memory modules.

use serde::Serialize;
use spipe_base::Exact;
use std::{cmp::Ordering, fmt, str::FromStr};

/// The reason why text is not a quantity of this module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {quantity} (write it like \"{example}\")")]
pub struct UnitError {
    text: String,
    quantity: &'static str,
    example: &'static str,
}

/// The number of `text` times the factor of its unit.
fn parse(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit() || matches!(letter, '.' | '_'));
    let number: f64 = text[..text.len() - unit.len()].replace('_', "").parse().ok()?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim())?;
    Some(number * factor).filter(|value| value.is_finite())
}

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $quantity:literal, $example:literal, [$($unit:literal = $factor:literal),+]) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
        #[serde(transparent)]
        pub struct $name(f64);

        impl $name {
            /// Creates it from its first unit.
            ///
            /// # Panics
            /// If the number is negative or not finite.
            pub fn new(value: f64) -> Self {
                assert!(value.is_finite() && value >= 0.0, "{value} is not a {}", $quantity);
                Self(value)
            }

            /// Returns the number of its first unit.
            pub const fn get(self) -> f64 {
                self.0
            }
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

        impl std::ops::Add for $name {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl std::ops::Mul<f64> for $name {
            type Output = Self;

            fn mul(self, factor: f64) -> Self {
                Self::new(self.0 * factor)
            }
        }

        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
                all.fold(Self::default(), |total, one| total + one)
            }
        }

        impl FromStr for $name {
            type Err = UnitError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let error = || UnitError { text: text.into(), quantity: $quantity, example: $example };
                parse(text, &[$(($unit, $factor)),+]).map(Self).ok_or_else(error)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let units: &[(&str, f64)] = &[$(($unit, $factor)),+];
                f.pad(&format!("{:.0} {}", self.0, units[0].0))
            }
        }

        impl Exact for $name {
            fn exact(&self) -> String {
                let units: &[(&str, f64)] = &[$(($unit, $factor)),+];
                format!("{} {}", self.0, units[0].0)
            }
        }
    };
}

unit! {
    /// An electric power in watts.
    Watts, "power", "450 W", ["W" = 1.0, "kW" = 1e3]
}

unit! {
    /// A rate of transfers of a memory channel, in millions per second.
    Transfers, "transfer rate", "4800 MT/s", ["MT/s" = 1.0, "GT/s" = 1e3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_a_number_and_a_unit() {
        assert_eq!("450 W".parse(), Ok(Watts::new(450.0)));
        assert_eq!("2.8kW".parse(), Ok(Watts::new(2800.0)));
        assert_eq!("4_800 MT/s".parse(), Ok(Transfers::new(4800.0)));
        for bad in ["450", "-450 W", "450 V", "", "W"] {
            assert!(bad.parse::<Watts>().is_err(), "{bad}");
        }
        assert_eq!(Watts::new(450.0).exact().parse(), Ok(Watts::new(450.0)));
    }
}
