//! Whether the footprint fits.

use super::found::Found;
use crate::{
    Context, Footprint, Placement, StageFootprint,
    footprint::{add_all, footprint},
};
use spipe_base::{Bytes, Diagnostic, StageId};
use spipe_cost::Mode;
use std::collections::BTreeMap;

/// The most memories that are named as too small: on large machines many are equally full.
const MOST_NAMED: usize = 16;

/// Checks that the footprint fits in every memory. A DRAM and its pageable view are one memory.
pub(super) fn check(context: &Context<'_>, placement: &Placement, faults: &mut Found<'_>) {
    let mut pools = Footprint::new();
    for (memory, stages) in footprint(context, placement) {
        add_all(&mut pools, context.hardware.pool(memory), &stages);
    }
    let mut named = 0;
    for (id, stages) in pools {
        let memory = &context.hardware.memories()[id];
        let usable = memory.usable();
        let needed: Bytes = stages.values().map(StageFootprint::total).sum();
        if needed > usable {
            named += 1;
            if named > MOST_NAMED {
                faults.push(Diagnostic::error("further memories are too small as well"));
                break;
            }
            let names: Vec<String> = stages.keys().map(StageId::to_string).collect();
            faults.push(
                Diagnostic::error(format!(
                    "{} `{}` needs {needed} on `{}`, which has {usable}",
                    if names.len() == 1 { "stage" } else { "stages" },
                    names.join("`, `"),
                    memory.name
                ))
                .hint(advice(&stages, context.workload().mode == Mode::Train)),
            );
        }
    }
}

/// A hint about the largest part of the need that a plan can change.
fn advice(stages: &BTreeMap<StageId, StageFootprint>, training: bool) -> String {
    let sum = |part: fn(&StageFootprint) -> Bytes| stages.values().map(part).sum::<Bytes>();
    let (state, activations) = (sum(|stage| stage.state), sum(|stage| stage.per_microbatch * stage.in_flight));
    if activations > state {
        format!("activations hold {activations} of it: recompute more layers, or use a smaller microbatch")
    } else {
        let what = if training { "parameters, gradients and optimizer state" } else { "parameters and caches" };
        format!("{what} hold {state} of it: move layers to another device")
    }
}
