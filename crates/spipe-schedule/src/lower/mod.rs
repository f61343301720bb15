//! Lowering: from a placement to a program.

mod bare;
mod collectives;
mod drives;
mod flows;
mod folds;
mod machine;
mod pipeline;
mod sharded;
mod steps;
mod streamed;

pub use bare::{bare, bare_offloaded, bare_offloaded_with_stage_times, bare_with_stage_times};
pub use streamed::{StreamedTimes, UnitTimes, bare_streamed, bare_superpipeline, bare_superpipeline_after};

use crate::Program;
use spipe_base::{DeviceId, Faults};
use spipe_plan::{Context, OrderKind, Placement};

/// The program of one iteration of `placement`.
///
/// Boundaries are double-buffered: an input arrives while the stage computes on the one before it,
/// and an output is copied out while the next one is computed. The peak of each memory is at most
/// what [`spipe_plan::footprint_with`] counts with [`in_flight`](crate::in_flight).
///
/// # Errors
/// The faults of the system's options, and missing routes.
pub fn lower(context: &Context<'_>, placement: &Placement) -> Result<Program, Faults> {
    of_one(context, placement)
}

/// The same with all replicas of the mesh, where [`lower`] has one that stands for all: identical replicas take the same
/// time.
///
/// # Errors
/// The same as for [`lower`].
pub fn lower_all_replicas(context: &Context<'_>, placement: &Placement) -> Result<Program, Faults> {
    if context.mesh().data() == 1 && !placement.shards_parameters() {
        return of_one(context, placement);
    }
    let table = context.cost.clone().showing_all();
    of_one(&Context { cost: &table, ..*context }, placement)
}

/// The devices whose memory is like that of `lead` in the program of [`lower`], with it.
pub fn shown_by(context: &Context<'_>, placement: &Placement, lead: DeviceId) -> Vec<DeviceId> {
    let sharded = placement.shards_parameters();
    if sharded && sharded::one_for_all(context, placement) { placement.replicas() } else { context.shown_by(lead) }
}

fn of_one(context: &Context<'_>, placement: &Placement) -> Result<Program, Faults> {
    match placement.order {
        _ if placement.shards_parameters() => sharded::lower(context, placement),
        OrderKind::Rounds(_) => streamed::lower(context, placement),
        _ => pipeline::lower(context, placement),
    }
}
