//! The options of a simulation.

use spipe_base::ActionId;
use spipe_schedule::Outcome;
use std::collections::BTreeMap;

/// The number of iterations to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iterations {
    /// One, from an idle machine to its last action: the span of a schedule.
    One,
    /// Until iterations repeat, but at most this many.
    UntilSteady(u32),
    /// Until iterations repeat, but at most 64, or up to 1,024 of a program of few actions. A slow
    /// drift of one device against another takes many iterations to end, and costs little to wait
    /// for in a small program.
    Enough,
}

/// The options of a simulation.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of iterations.
    pub iterations: Iterations,
    /// The outcomes of checks; all others pass.
    pub outcomes: BTreeMap<ActionId, Outcome>,
}

impl Default for Options {
    fn default() -> Self {
        Self { iterations: Iterations::Enough, outcomes: BTreeMap::new() }
    }
}
