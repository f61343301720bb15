//! Memory against time: the k and k′ of Superpipeline on one GPU.

use crate::evaluator::Evaluator;
use spipe_base::{Bytes, SimTime};
use spipe_plan::{Knob, Plan, Stage, System, Weights, uses_drives};
use std::time::{Duration, Instant};

/// The least speedup that a choice with more memory must bring to be listed, as a fraction: smaller
/// ones are below the error of predictions.
const LEAST_GAIN: f64 = 0.001;

/// A choice of k and k′.
pub struct Choice {
    /// k, the layers on the GPU.
    pub resident: u64,
    /// k′, the layers exchanged at a time.
    pub swap: u64,
    /// Layers whose parameters stay on the GPU.
    pub kept: usize,
    /// Layers that are recomputed.
    pub recomputed: usize,
    /// The simulated peak of the GPU's memory.
    pub peak: Bytes,
    /// The simulated iteration.
    pub iteration: SimTime,
}

/// The choices that no other beats in both memory and time, in ascending order of memory.
pub struct Front {
    /// The choices.
    pub choices: Vec<Choice>,
    /// The number of choices that were compared.
    pub compared: usize,
}

/// Whether a plan trades memory for time: one of Superpipeline on one GPU that uses no drive.
pub fn trades_memory(plan: &Plan) -> bool {
    let placement = plan.placement();
    let applies = placement.system == System::Superpipeline && placement.devices().len() == 1;
    applies && !uses_drives(&plan.context(), placement)
}

/// The Pareto front of Superpipeline on the model, machine and workload of `plan`; none if
/// simulating all choices would take longer than `limit`.
pub fn front(plan: &Plan, limit: Duration) -> Option<Front> {
    let mut choices = all(plan, limit)?;
    let compared = choices.len();
    choices.sort_by_key(|choice| (choice.peak, choice.iteration));
    let mut best = f64::INFINITY;
    choices.retain(|choice| {
        let faster = choice.iteration.to_ms() <= best * (1.0 - LEAST_GAIN);
        best = if faster { choice.iteration.to_ms() } else { best };
        faster
    });
    Some(Front { choices, compared })
}

/// Every choice that fits; none if there is no time for all of them.
fn all(plan: &Plan, limit: Duration) -> Option<Vec<Choice>> {
    let (context, start) = (plan.context(), Instant::now());
    let evaluator = Evaluator::new(context);
    let mut all = Vec::new();
    let candidates = spipe_planner::candidates(&context, System::Superpipeline);
    for placement in candidates.into_iter().filter(|placement| placement.devices().len() == 1) {
        if start.elapsed() > limit {
            return None;
        }
        let Some(simulation) = evaluator.checked_simulation(&placement) else { continue };
        let device = placement.stages.as_slice()[0].lead();
        let memory = &context.hardware.memories()[context.hardware.devices()[device].memory];
        let track = simulation.trace.memories.iter().find(|track| track.name == memory.name);
        let options = [Knob::Resident, Knob::Swap].map(|knob| knob.of(&placement));
        let ([Some(resident), Some(swap)], Some(track)) = (options, track) else {
            continue;
        };
        let layers = |of: &dyn Fn(&Stage) -> usize| placement.stages.iter().map(of).sum();
        all.push(Choice {
            resident,
            swap,
            kept: layers(&|stage| if stage.weights == Weights::Resident { stage.layers.count() } else { 0 }),
            recomputed: layers(&|stage| stage.recomputed),
            peak: track.peak,
            iteration: simulation.trace.iteration,
        });
    }
    Some(all)
}
