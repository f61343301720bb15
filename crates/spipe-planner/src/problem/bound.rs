//! Lower bounds on iteration times.

use std::cmp::Ordering;

/// A lower bound on the iteration time of a set of placements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// None takes less than this, in ms.
    AtLeast(f64),
    /// There is none, or none is left.
    Infeasible,
}

impl Bound {
    /// The bound of placements about which nothing is known.
    pub const NONE: Self = Self::AtLeast(0.0);

    /// The bound of placements none of which takes less than `limit` ms; without a limit (infinite),
    /// there are none.
    pub fn of_limit(limit: f64) -> Self {
        if limit.is_finite() { Self::AtLeast(limit) } else { Self::Infeasible }
    }

    /// The bound in ms, or `other` if there is no placement.
    pub const fn ms_or(self, other: f64) -> f64 {
        match self {
            Self::AtLeast(ms) => ms,
            Self::Infeasible => other,
        }
    }

    pub const fn is_feasible(self) -> bool {
        matches!(self, Self::AtLeast(_))
    }

    /// The order of bounds, in which infeasible ones come last.
    pub fn total_cmp(&self, other: &Self) -> Ordering {
        self.ms_or(f64::INFINITY).total_cmp(&other.ms_or(f64::INFINITY))
    }

    /// The weaker of two bounds, which holds for the placements of both.
    pub fn min(self, other: Self) -> Self {
        if other.total_cmp(&self).is_lt() { other } else { self }
    }

    /// The stronger of two bounds of the same placements.
    pub fn max(self, other: Self) -> Self {
        if other.total_cmp(&self).is_gt() { other } else { self }
    }

    /// The bound for times of `factor` ms each; no less than nothing.
    pub fn times(self, factor: f64) -> Self {
        match self {
            Self::AtLeast(ms) => Self::AtLeast((ms * factor).max(0.0)),
            Self::Infeasible => Self::Infeasible,
        }
    }
}

/// Comparison with a limit in ms, which may be infinite.
impl PartialEq<f64> for Bound {
    fn eq(&self, limit: &f64) -> bool {
        self.partial_cmp(limit) == Some(Ordering::Equal)
    }
}

impl PartialOrd<f64> for Bound {
    fn partial_cmp(&self, limit: &f64) -> Option<Ordering> {
        match self {
            Self::AtLeast(ms) => ms.partial_cmp(limit),
            Self::Infeasible => Some(Ordering::Greater),
        }
    }
}
