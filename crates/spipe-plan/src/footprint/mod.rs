//! The bytes that a placement needs in every memory.
//!
//! ```text
//! footprint ──┬─► pipeline   parameters stay, microbatches are in flight      ──┐
//!             ├─► streamed   parameters come and go, all microbatches per chunk ├─► stage
//!             └─► sharded    shards, and gathered stages during their use     ──┘
//! ```
//!
//! `drives` then moves optimizer state from hosts to drives.

mod drives;
mod pipeline;
mod sharded;
mod stage;
mod streamed;

pub(crate) use drives::steps_on_a_host;
pub use drives::{HostedState, LOAD_SLOTS, STATE_SLOTS, hosted_states, staging};
pub use pipeline::{GRADIENT_SLOTS, OFFLOAD_SLOTS, gradients_leave};
pub use sharded::{ShardedFootprint, held_while_computing, sharded_footprint};
pub use stage::{Boundary, Footprint, StageFootprint, needed, offloaded_bytes, shard, stage_footprint};
pub(crate) use stage::{add, add_all};
pub use streamed::{speculates, streamed_device_bytes, transient_boundaries, undo_log};

use crate::{Context, Held, InFlight, OrderKind, Placement, Stage};
use spipe_base::StageId;

/// The bytes that `placement` needs in each memory, with the microbatches in flight of
/// [`InFlight::of`].
pub fn footprint(context: &Context<'_>, placement: &Placement) -> Footprint {
    let microbatches = context.workload().microbatches;
    footprint_with(context, placement, &|stage| {
        InFlight::of(placement, stage, microbatches, |device| context.is_cpu(device)).into()
    })
}

/// The bytes that `placement` needs in each memory when its order holds `held(stage)` of each
/// stage.
///
/// Stages that share a memory add up, and so do the transient parts of different devices, because
/// their lanes run at the same time. Among the stages of one device only the largest transient part
/// counts. Only pipelines ask for `held`.
pub fn footprint_with(context: &Context<'_>, placement: &Placement, held: &dyn Fn(StageId) -> Held) -> Footprint {
    let mut memories = match placement.order {
        _ if placement.shards_parameters() => sharded::footprint(context, placement),
        OrderKind::Rounds(_) => streamed::footprint(context, placement),
        _ => pipeline::footprint(context, placement, held),
    };
    drives::move_states(context, placement, &mut memories);
    if context.mesh().is_single() { memories } else { on_all_runners(context, placement, memories) }
}

/// The needs of the first replica's leads, and the same of all devices that run their stages.
fn on_all_runners(context: &Context<'_>, placement: &Placement, leads: Footprint) -> Footprint {
    let stages: Vec<&Stage> = placement.all_stages().collect();
    let mut all = Footprint::new();
    for (memory, needs) in leads {
        // What a lead needs in its own memory may be under the stage of another one.
        let own = context.hardware.memories()[memory].device.filter(|device| context.mesh().team(*device).is_some());
        for (id, need) in needs {
            let Some(lead) = own.or_else(|| stages.get(id.index()).map(|stage| stage.lead())) else { continue };
            for device in context.runners(lead) {
                add(&mut all, context.counterpart(memory, (lead, device)), (id, need));
            }
        }
    }
    all
}
