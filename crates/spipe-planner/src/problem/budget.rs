//! The time of a search: one table of the shares that its stages may take, in percent.
//!
//! A stage that ends early leaves its time to those after it. The shares were found by trial on the
//! shipped pairs of models and machines: twice or half of one moves no plan by more than the gap at
//! which searches end.
//!
//! | stage | share | of |
//! |---|---|---|
//! | whether anything fits, for several stages per device | [`FEASIBILITY`] | the time left |
//! | the first plan, where only feasibility is asked for | [`FIRST_PLAN`] | the time limit |
//! | lower bounds of all systems | [`BOUNDS`] | the time left |
//! | candidates of systems, where Mobius' programs come after them | [`BEFORE_MOBIUS`] | the time left |
//! | integer programs for candidates of one system, and those of sharded stages | [`COUNTED`] each | the time left |
//! | … one of them | [`COUNTED_PROGRAM`] | that time |
//! | one of Mobius' programs | [`MOBIUS_PROGRAM`] | the time limit |
//! | branch and bound over device orders | [`BRANCH_AND_BOUND`] | the time left |
//! | integer programs for several stages per device | [`SEVERAL`] | the time left |
//! | … their bound | [`SEVERAL_BOUND`] | the time left |
//! | one program that bounds a system | [`BOUND_PROGRAM`] | the time limit |
//!
//! Local search has what is left.

use std::{ops::RangeInclusive, time::Duration};

/// Whether several stages per device fit: whoever asks wants a plan in the rest of the time.
pub(crate) const FEASIBILITY: u32 = 25;

/// The first plan where only feasibility is asked for, which is asked more than once.
pub(crate) const FIRST_PLAN: u32 = 10;

/// Lower bounds of all systems.
pub(crate) const BOUNDS: u32 = 25;

/// Candidates of all systems, so that Mobius' programs are solved as well.
pub(crate) const BEFORE_MOBIUS: u32 = 80;

/// All integer programs for the candidates of one system; as much again for those of sharded stages.
pub(crate) const COUNTED: u32 = 8;

/// One of these programs.
pub(crate) const COUNTED_PROGRAM: u32 = 25;

/// One of Mobius' programs: at most six of them are solved.
pub(crate) const MOBIUS_PROGRAM: u32 = 4;

/// Branch and bound over device orders, where local search comes after it.
pub(crate) const BRANCH_AND_BOUND: u32 = 25;

/// Integer programs for several stages per device.
pub(crate) const SEVERAL: u32 = 16;

/// The bound of these where the programs were left open.
pub(crate) const SEVERAL_BOUND: u32 = 12;

/// One program that bounds a system.
pub(crate) const BOUND_PROGRAM: u32 = 5;

/// The least and the most time of such a program: less gives no bound, and more is better spent on
/// candidates.
pub(crate) const BOUND_PROGRAM_TIMES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(10);

/// `percent` of a time.
pub(crate) fn share(time: Duration, percent: u32) -> Duration {
    time * percent / 100
}
