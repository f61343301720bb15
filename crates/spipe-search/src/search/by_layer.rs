//! Checkpointing layer by layer, as frameworks that fine-tune do: one recomputed layer is held at a time.

use crate::{
    request::{Request, watch::Seen},
    setting::Setting,
};
use spipe_base::{LayerRange, SimTime};
use spipe_plan::{Placement, Stage, System, Weights, beyond_plain_training};

/// A placement may be slower than the found one by this fraction if it needs less memory: predictions
/// are not truer than that.
const WORSE: f64 = 0.01;

/// The placement of checkpointing with one stage per layer, where that takes as long as the `found` one. Plans of plain
/// training keep the fewest stages.
pub fn least_memory(request: &Request, found: Seen) -> Seen {
    let (simulated, workload, placement) = &found;
    if !request.pins.is_empty() || placement.system != System::Checkpointing {
        return found;
    }
    let resident = |stage: &Stage| stage.weights == Weights::Resident && stage.recomputed == stage.layers.count();
    if !placement.stages.iter().all(resident) {
        return found;
    }
    let Ok(setting) = Setting::of(&request.model, request.machine.of(placement.system), workload, placement) else {
        return found;
    };
    if beyond_plain_training(&setting.context()).is_none() {
        return found;
    }
    let single = |stage: &Stage| {
        let stage = *stage;
        let alone = stage.layers.iter().filter_map(|layer| LayerRange::new(layer, layer));
        alone.map(move |layers| Stage { layers, recomputed: 1, ..stage })
    };
    let stages: Vec<Stage> = placement.stages.iter().flat_map(single).collect();
    let by_layer = Placement { stages: stages.into_iter().collect(), ..placement.clone() };
    let most = SimTime::ns((simulated.as_ns() as f64 * (1.0 + WORSE)) as u64);
    match setting.evaluator().checked_iteration(&by_layer).filter(|time| *time <= most) {
        Some(time) => (time, *workload, by_layer),
        None => found,
    }
}
