//! The tolerances of the planner, each with its derivation. Times are in milliseconds.
//!
//! A tolerance that guards a proof errs to one side: bounds are lowered, capacities of relaxations
//! raised. The checker counts whole bytes and needs none.

/// Relative error of a sum of times in another order: 2⁻⁵³ per addition, and at most about 10⁶
/// additions. A bound that is met but for rounding is not refused.
pub(crate) const ROUNDING: f64 = 1e-9;

/// The same for at most about 10⁴ additions. Times that differ by less are equal.
pub(crate) const TIE: f64 = 1e-12;

/// The least ms by which a path must be longer than another one, so that rounding closes no cycle of
/// paths: a picosecond, a thousandth of the simulator's clock.
pub(crate) const LONGER: f64 = 1e-9;

/// Relative error of the optimum of a program whose values are near one: ten times HiGHS's tolerance
/// of 10⁻⁷ for rows and reduced costs. Bounds are lowered by it, and capacities raised.
pub(crate) const PROGRAM: f64 = 1e-6;

/// The distance from a whole number at which HiGHS takes a variable for an integer.
pub(crate) const WHOLE: f64 = 1e-6;

/// The least unit of time in programs, so that models that take no time divide by no zero: one
/// nanosecond, the simulator's clock.
pub(crate) const LEAST_UNIT: f64 = 1e-6;

/// The least ms per GiB of a link in programs, for the same reason: far below that of any memory
/// (about 10⁻¹).
pub(crate) const LEAST_PER_GIB: f64 = 1e-12;

/// The weight of the sum of all loads in the objective of the assignment program. No load exceeds
/// the iteration T, so that p of them raise the objective by at most p thousandths of T. Bounds are
/// divided by 1 + p / 1000, which is 1 % for ten classes of devices and links.
pub(crate) const ASSIGNMENT_LOAD: f64 = 1e-3;

/// The same for sharded programs, whose bounds are solved without it: it decides among equals. With
/// at most 10² loads it is a fifth of the gap of half a percent at which searches end.
pub(crate) const SHARDED_LOAD: f64 = 1e-5;

/// The fraction of the iteration by which labels of the partition program may differ to be merged.
/// An order of ten stages merges at most ten times, and loses at most the gap of half a percent.
pub(crate) const LABELS: f64 = 3e-4;

/// The ms by which rounding to the simulator's clock may separate a plan from its bound: half a
/// nanosecond for each of 200 actions of the critical cycle, or 10⁻⁶ of a long iteration.
pub(crate) fn clock_error(ms: f64) -> f64 {
    (ms * PROGRAM).max(1e-4)
}

/// The same with one stage per device, where 20 actions or 10⁻⁷ suffice: these bounds are exact but
/// for rounding.
pub(crate) fn clock_error_of_stages(ms: f64) -> f64 {
    (ms * 1e-7).max(1e-5)
}
