//! Checkpointing layer by layer, as frameworks that fine-tune do: one recomputed layer is held at a time.

use super::{Evaluator, Request};
use spipe_base::{LayerRange, SimTime};
use spipe_cost::{CostTable, Workload};
use spipe_plan::{Context, Placement, Stage, System, Weights, beyond_plain_training};

/// A placement may be slower than the found one by this fraction if it needs less memory: predictions
/// are not truer than that.
const WORSE: f64 = 0.01;

/// `placement` of checkpointing with one stage per layer, where that takes as long. Plans of plain
/// training keep the fewest stages.
pub fn least_memory(
    request: &Request<'_>,
    workload: &Workload,
    (simulated, placement): (SimTime, Placement),
) -> (SimTime, Placement) {
    let found = (simulated, placement);
    if !request.pins.is_empty() || found.1.system != System::Checkpointing {
        return found;
    }
    let resident = |stage: &Stage| stage.weights == Weights::Resident && stage.recomputed == stage.layers.count();
    if !found.1.stages.iter().all(resident) {
        return found;
    }
    let Ok(cost) = CostTable::new(request.model, request.hardware, workload) else { return found };
    let context = Context { model: request.model, hardware: request.hardware, cost: &cost };
    if beyond_plain_training(&context).is_none() {
        return found;
    }
    let single = |stage: &Stage| {
        let stage = *stage;
        let alone = stage.layers.iter().filter_map(|layer| LayerRange::new(layer, layer));
        alone.map(move |layers| Stage { layers, recomputed: 1, ..stage })
    };
    let stages: Vec<Stage> = found.1.stages.iter().flat_map(single).collect();
    let by_layer = Placement { stages: stages.into_iter().collect(), ..found.1.clone() };
    let most = SimTime::ns((simulated.as_ns() as f64 * (1.0 + WORSE)) as u64);
    match Evaluator::new(context).checked_iteration(&by_layer).filter(|time| *time <= most) {
        Some(time) => (time, by_layer),
        None => found,
    }
}
