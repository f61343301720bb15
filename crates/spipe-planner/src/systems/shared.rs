//! Everything shared by all GPUs: FSDP with everything on them, ZeRO-Infinity with everything in DRAM.

use super::{cuts, gpus, socket};
use spipe_plan::{Context, Knobs, Placement, Stage, System};

pub(super) fn candidates(context: &Context<'_>, system: System) -> Option<Vec<Placement>> {
    let gpus = gpus(context);
    let first = *gpus.first()?;
    let mut placements = Vec::new();
    for shards in (1..=gpus.len()).filter(|shards| context.workload().microbatches.is_multiple_of(*shards as u64)) {
        for recompute in [false, true] {
            let stage = |layers| {
                let stage = Stage::new(first, layers);
                let stage = if recompute { stage.with_everything_recomputed() } else { stage };
                match system {
                    System::ZeroInfinity => {
                        let home = context.hardware.host_memory(first)?;
                        Some(stage.with_weights_in(home).with_optimizer_on(socket(context, first)?))
                    }
                    _ => Some(stage),
                }
            };
            let stages: Option<Vec<Stage>> = cuts::single(context).into_iter().map(stage).collect();
            let knobs = Knobs { shards: Some(shards as u64), ..Knobs::default() };
            placements.push(Placement::new(system, stages?).with_knobs(knobs));
        }
    }
    Some(placements)
}
