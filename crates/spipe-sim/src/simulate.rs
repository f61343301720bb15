//! Runs of the simulator, and what they answer.

use crate::{
    Options, critical,
    engine::{End, Engine},
    report::{self, Simulation},
    why,
};
use spipe_base::{SimTime, StageId};
use spipe_schedule::Program;
use spipe_trace::Status;
use std::collections::BTreeMap;

/// Runs `program`.
pub fn simulate(program: &Program, options: &Options) -> Simulation {
    let mut engine = Engine::new(program, options);
    let end = engine.run();
    report::simulation(program, options, &engine, &end)
}

/// Runs `program`, and explains its last iteration in the trace: what lanes wait for, and the
/// critical path. An iteration that ran out of memory has no explanation.
pub fn simulate_explained(program: &Program, options: &Options) -> Simulation {
    let mut engine = Engine::new(program, options);
    let end = engine.run();
    let mut simulation = report::simulation(program, options, &engine, &end);
    if matches!(end, End::Done { .. }) {
        simulation.trace.explanation = Some(why::explanation((program, options), &engine, &simulation));
    }
    simulation
}

/// The steady iteration time of `program`; `None` if it runs out of memory.
pub fn iteration_time(program: &Program) -> Option<SimTime> {
    let options = Options::default();
    let mut engine = Engine::new(program, &options);
    let end = engine.run();
    matches!(end, End::Done { .. }).then(|| report::period(&options, &engine))
}

/// The steady iteration time of `program`; `None` also if the second iteration begins more than
/// `limit` after the first.
///
/// The first iteration starts from an idle machine and hardly ever takes longer than a steady one.
/// Most programs that take longer than `limit` are therefore given up after a third of the work.
pub fn iteration_time_within(program: &Program, limit: SimTime) -> Option<SimTime> {
    let options = Options::default();
    let mut engine = Engine::new(program, &options).within(limit);
    let end = engine.run();
    let known = matches!(end, End::Done { .. }) && !engine.is_late();
    known.then(|| report::period(&options, &engine))
}

/// The time that a steady iteration of `program` waits for actions other than passes, by their
/// stage: recompute, optimizer steps and copies.
///
/// The actions are those of one critical cycle, in which each action starts when the one before it
/// permits. There may be other cycles of the same length. Empty if the program runs out of memory
/// or does not become steady.
pub fn waits(program: &Program) -> BTreeMap<StageId, SimTime> {
    let options = Options::default();
    let mut engine = Engine::new(program, &options);
    let end = engine.run();
    if matches!(end, End::Done { .. }) { critical::waits(program, &options, &engine) } else { BTreeMap::new() }
}

/// Whether a simulation ended without running out of memory.
pub fn is_ok(simulation: &Simulation) -> bool {
    simulation.trace.status == Status::Ok
}
