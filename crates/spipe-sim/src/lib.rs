//! The discrete-event interpreter of programs: when every action starts and ends, what every memory holds, and why lanes
//! were idle.
//!
//! ```text
//! Program ─► simulate ─► Trace (one steady iteration)
//! ```
//!
//! What it promises:
//!
//! - The clock counts whole nanoseconds. At one instant, ends come before starts, so that memory is released before it is
//!   acquired; lanes start their next action in the order of their ids. Same program, same bytes.
//! - A lane runs one action at a time, in order. An action starts when its precedences allow and its memory fits; if
//!   nothing that runs can make room, the result is out-of-memory.
//! - Flows share every channel of their routes max-min fairly ([`transfers`] shows them alone).
//! - Iterations follow each other until every action repeats with one period; the trace is that of the last iteration, and
//!   its `iteration` is the period.

mod critical;
mod engine;
mod lanes;
mod memory;
mod network;
mod report;
mod transfer;

pub use transfer::{Transfer, TransferError, transfers};

use spipe_base::{ActionId, SimTime, StageId};
use spipe_schedule::{Outcome, Program};
use spipe_trace::{Status, Trace};
use std::collections::BTreeMap;

/// How many iterations to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iterations {
    /// One, from a machine at rest to its last action: the span of a schedule.
    One,
    /// As many as it takes until they repeat, but at most this many.
    UntilSteady(u32),
    /// The same, but at most 64, and of a program of few actions up to 1,024: slow drifts of one device against another take long
    /// to end, and cost little to wait for.
    Enough,
}

/// How to simulate.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many iterations.
    pub iterations: Iterations,
    /// How checks end; those that are not named pass.
    pub outcomes: BTreeMap<ActionId, Outcome>,
}

impl Default for Options {
    fn default() -> Self {
        Self { iterations: Iterations::Enough, outcomes: BTreeMap::new() }
    }
}

/// What the simulator found.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The last iteration.
    pub trace: Trace,
    /// Whether it repeats the one before exactly; always true for [`Iterations::One`].
    pub steady: bool,
    /// How many actions were simulated, over all iterations.
    pub actions: u64,
}

/// Runs `program`.
pub fn simulate(program: &Program, options: &Options) -> Simulation {
    let mut engine = engine::Engine::new(program, options);
    let end = engine.run();
    report::simulation(program, options, &engine, &end)
}

/// The steady iteration time alone; none if the program runs out of memory.
pub fn iteration_time(program: &Program) -> Option<SimTime> {
    let options = Options::default();
    let mut engine = engine::Engine::new(program, &options);
    let end = engine.run();
    matches!(end, engine::End::Done { .. }).then(|| report::period(&options, &engine))
}

/// The same, but none also if the second iteration begins more than `limit` behind the first: from a machine at rest an iteration hardly ever
/// takes longer than the steady one, and most of what takes longer is known after a third of the work.
pub fn iteration_time_within(program: &Program, limit: SimTime) -> Option<SimTime> {
    let options = Options::default();
    let mut engine = engine::Engine::new(program, &options).within(limit);
    let end = engine.run();
    let known = matches!(end, engine::End::Done { .. }) && !engine.is_late();
    known.then(|| report::period(&options, &engine))
}

/// For how long a steady iteration waits for what is not a pass of a stage, by the stage for which that is done: recompute, steps, copies.
/// These are on one circle of actions of which each starts when the one before lets it; there may be others as long.
pub fn waits(program: &Program) -> BTreeMap<StageId, SimTime> {
    let options = Options::default();
    let mut engine = engine::Engine::new(program, &options);
    let end = engine.run();
    if matches!(end, engine::End::Done { .. }) { critical::waits(program, &options, &engine) } else { BTreeMap::new() }
}

/// Whether the trace of a simulation could be finished.
pub fn is_ok(simulation: &Simulation) -> bool {
    simulation.trace.status == Status::Ok
}
