//! The k and k′ of Superpipeline.

use crate::tables::table;
use spipe_base::{Bytes, SimTime};
use spipe_plan::{Plan, Stage, System, Weights, check};
use spipe_schedule::lower;
use spipe_sim::{Options, is_ok, simulate};
use std::time::{Duration, Instant};

/// By how much of its time an iteration that takes more memory has to be faster to be worth a row.
const LEAST_GAIN: f64 = 0.001;

/// One choice that fits.
struct Tried {
    resident: u64,
    swap: u64,
    /// Layers kept, and recomputed.
    choices: [String; 2],
    peak: Bytes,
    iteration: SimTime,
}

/// The Pareto front of Superpipeline on one GPU: each (k, k′) that no other beats both in the memory that it held and in the time of an
/// iteration. Where they are not all simulated within `limit`, it says so instead.
pub fn front(plan: &Plan, limit: Duration) -> String {
    let Some(mut tried) = tried(plan, limit) else {
        return "What less memory costs: too many choices of k and k' to simulate them all in the time.\n\n".into();
    };
    let count = tried.len();
    tried.sort_by_key(|one| (one.peak, one.iteration));
    let mut best = f64::INFINITY;
    let columns = ["k", "k'", "layers kept", "recomputed", "GPU memory", "iteration"];
    let mut rows = table(&columns, &[0, 1, 2, 3, 4, 5]);
    for Tried { resident, swap, choices: [kept, recomputed], peak, iteration } in tried {
        if iteration.to_ms() > best * (1.0 - LEAST_GAIN) {
            continue;
        }
        best = iteration.to_ms();
        let time = format!("{best:.1} ms");
        rows.add_row(vec![resident.to_string(), swap.to_string(), kept, recomputed, peak.to_string(), time]);
    }
    format!(
        "What less memory costs: of {count} choices of k and k' that fit, whatever is pinned or improved, those that no other beats in \
         both memory and time:\n\n{rows}\n\n"
    )
}

/// Every choice that fits; none where there was no time for all of them.
fn tried(plan: &Plan, limit: Duration) -> Option<Vec<Tried>> {
    let (context, start) = (plan.context(), Instant::now());
    let mut tried = Vec::new();
    let candidates = spipe_planner::candidates(&context, System::Superpipeline);
    for placement in candidates.into_iter().filter(|placement| placement.devices().len() == 1) {
        if check(&context, &placement).is_err() {
            continue;
        }
        if start.elapsed() > limit {
            return None;
        }
        let Ok(program) = lower(&context, &placement) else { continue };
        let simulation = simulate(&program, &Options::default());
        if !is_ok(&simulation) {
            continue;
        }
        let memory =
            &context.hardware.memories()[context.hardware.devices()[placement.stages.as_slice()[0].device].memory];
        let track = simulation.trace.memories.iter().find(|track| track.name == memory.name);
        let (Some(resident), Some(swap), Some(track)) = (placement.knobs.resident, placement.knobs.swap, track) else {
            continue;
        };
        let layers = |of: &dyn Fn(&Stage) -> usize| match placement.stages.iter().map(of).sum::<usize>() {
            0 => "none".to_owned(),
            all if all == context.model.layers().len() => "all".into(),
            some => some.to_string(),
        };
        let kept = |stage: &Stage| if stage.weights == Weights::Resident { stage.layers.count() } else { 0 };
        let choices = [layers(&kept), layers(&|stage| stage.recomputed)];
        tried.push(Tried { resident, swap, choices, peak: track.peak, iteration: simulation.trace.iteration });
    }
    Some(tried)
}
