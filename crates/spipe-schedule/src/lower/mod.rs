//! Lowering: from a placement to a program.

mod bare;
mod drives;
mod flows;
mod machine;
mod pipeline;
mod sharded;
mod steps;
mod streamed;

pub use bare::{bare, bare_offloaded, bare_offloaded_with_stage_times, bare_with_stage_times};
pub use streamed::{StreamedTimes, UnitTimes, bare_streamed, bare_superpipeline, bare_superpipeline_after};

use crate::Program;
use spipe_base::Faults;
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
    match placement.order {
        _ if placement.shards_parameters() => sharded::lower(context, placement),
        OrderKind::Rounds(_) => streamed::lower(context, placement),
        _ => pipeline::lower(context, placement),
    }
}
