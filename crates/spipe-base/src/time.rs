//! The clock of traces and the simulator.

use crate::Seconds;
use serde::{Deserialize, Serialize};
use std::{fmt, iter::Sum};

/// A point in time or a duration on an integer nanosecond clock. The clock saturates after 584
/// years.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct SimTime(u64);

impl SimTime {
    /// The start of the clock, and a duration of zero.
    pub const ZERO: Self = Self(0);
    /// The end of the clock.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a time of `ns` nanoseconds.
    pub const fn ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Creates a time of `ms` milliseconds.
    pub const fn ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// Rounds `duration` to the nearest nanosecond.
    pub fn from_seconds(duration: Seconds) -> Self {
        Self((duration.get() * 1e9).round() as u64)
    }

    /// Returns the number of nanoseconds.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Converts to milliseconds.
    pub fn to_ms(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Converts to seconds.
    pub fn to_seconds(self) -> Seconds {
        Seconds::s(self.0 as f64 / 1e9)
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    pub const fn saturating_sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add for SimTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::AddAssign for SimTime {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.saturating_add(other.0);
    }
}

impl std::ops::Sub for SimTime {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl std::ops::Mul<u64> for SimTime {
    type Output = Self;

    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl Sum for SimTime {
    fn sum<I: Iterator<Item = Self>>(stretches: I) -> Self {
        stretches.fold(Self::ZERO, |total, stretch| total + stretch)
    }
}

impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_seconds().fmt(f)
    }
}
