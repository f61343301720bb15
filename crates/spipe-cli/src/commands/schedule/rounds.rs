//! Schedules in which a device runs all microbatches of a stage before the next stage: SPipe,
//! Mobius, Superpipeline.

use crate::{Failure, args};
use spipe_base::{ActionKind, LaneRole, Seconds, SimTime};
use spipe_schedule::{Program, StreamedTimes, UnitTimes, bare_streamed, bare_superpipeline};
use spipe_sim::{Iterations, Options, simulate};

/// The cycles of k × k′ units that a Superpipeline warms up for, and that are measured in its
/// steady state.
const CYCLES: usize = 32;

/// The program of one of these systems, and for a Superpipeline the steady time of one unit.
pub fn chosen(what: &args::Schedule) -> Option<Result<(Program, Option<f64>), Failure>> {
    match what.system.as_str() {
        "spipe" | "mobius" => Some(passes(what).map(|program| (program, None))),
        "superpipeline" => Some(superpipeline(what)),
        _ => None,
    }
}

fn passes(what: &args::Schedule) -> Result<Program, Failure> {
    let decoupled = what.system == "spipe";
    let forward = what.forward_chunks.unwrap_or(if decoupled { 2 } else { 1 });
    // A backward with its recompute takes about as long as three forwards.
    let backward = what.backward_chunks.unwrap_or(if decoupled { 3 * forward } else { forward });
    let whole = what.backward.unwrap_or(what.backward_input + what.backward_weight);
    let times = StreamedTimes {
        forward: SimTime::from_seconds(what.forward),
        backward: SimTime::from_seconds(whole),
        ..StreamedTimes::default()
    };
    Ok(bare_streamed((&what.system, decoupled), what.devices, what.microbatches, (forward, backward), &times)?)
}

fn superpipeline(what: &args::Schedule) -> Result<(Program, Option<f64>), Failure> {
    let time = |given: Option<Seconds>, missing: &str| {
        given.map(SimTime::from_seconds).ok_or_else(|| {
            Failure::argument(format!("superpipeline needs `--{missing}`"), format!("such as --{missing} \"1 ms\""))
        })
    };
    let units = what.units.unwrap_or(32);
    let resident = what.resident.unwrap_or(2);
    let swap = what.swap.unwrap_or(1);
    let times = UnitTimes {
        compute: time(what.compute, "compute")?,
        load: time(what.load, "load")?,
        evict: time(Some(what.evict), "evict")?,
    };
    let program = bare_superpipeline(units, resident, swap, &times)?;
    let cycle = resident * swap;
    let end = |cycles: usize| -> Result<f64, Failure> {
        let program = bare_superpipeline(cycles * cycle, resident, swap, &times)?;
        let options = Options { iterations: Iterations::One, ..Options::default() };
        Ok(simulate(&program, &options).trace.iteration.to_ms())
    };
    let steady = (end(2 * CYCLES)? - end(CYCLES)?) / (CYCLES * cycle) as f64;
    Ok((program, Some(steady)))
}

/// The order of each device as tokens: stage, pass, microbatch. Stages are counted in model order
/// in both passes.
pub fn order(program: &Program) -> Vec<Vec<String>> {
    let forwards = program.actions().iter().filter(|action| action.kind == ActionKind::Forward);
    let backward_stages = program.actions().iter().filter(|action| action.kind == ActionKind::Backward);
    let first_backward = backward_stages.filter_map(|action| action.subject.stage).min();
    let last_forward = forwards.filter_map(|action| action.subject.stage).max();
    // Separate backward stages are numbered after the forward ones.
    let behind = match (first_backward, last_forward) {
        (Some(first), Some(last)) if first > last => first.index(),
        _ => 0,
    };
    let compute = program.lanes().iter().filter(|lane| lane.role == LaneRole::Compute);
    let token = |action: &spipe_base::ActionId| {
        let this = &program.actions()[*action];
        let (stage, microbatch) = (this.subject.stage?.index(), this.subject.microbatch?.index());
        match this.kind {
            ActionKind::Forward => Some(format!("{stage}F{microbatch}")),
            ActionKind::Backward => Some(format!("{}B{microbatch}", stage - behind)),
            _ => None,
        }
    };
    compute.map(|lane| lane.queue.iter().filter_map(token).collect()).collect()
}
