//! A placement of a model on a machine, and the checker that accepts it.
//!
//! ```text
//! PlanFile (JSON: model, hardware, workload, system, stages) ─► Plan (read, resolved, checked) ─► schedule
//! ```
//!
//! A planner's result is a claim; [`check`] judges it without knowing how it was found: stages are contiguous and cover
//! the model, their devices exist, can run their layers and are connected, and what each memory must hold fits. The
//! memory count, [`footprint`], is the one count in the project: planners optimise under it, the checker tests it, and
//! lowering issues actions such that the simulated peak stays at or below it.

mod check;
mod file;
mod footprint;
mod knob;
mod placement;
mod plan;
mod remarks;
mod rounds;
mod sharded;
mod stage;
mod stage_file;
mod system;
mod window;

pub use check::{check, check_shape};
pub use file::{Embedded, PlanFile, schema};
pub use footprint::{
    Boundary, Footprint, GRADIENT_SLOTS, OFFLOAD_SLOTS, StageFootprint, footprint, footprint_with, gradients_leave,
    needed, offloaded_bytes, stage_footprint,
};
pub use knob::Knob;
pub use placement::{FEWEST_OFFLOAD_SLOTS, FEWEST_RESIDENT, Held, InFlight, Knobs, Placement};
pub use plan::{Context, Gain, Outcome, OutcomeStatus, Plan};
pub use remarks::{divided, remarks, unread, widened};
pub use rounds::{Exchanges, Exchanging, Room, Visit, boundaries_in_passing, held_in_rounds, trusts_steps, undo_log};
pub use sharded::{SharedFootprint, held_while_computing, shard, shared_footprint};
pub use stage::{Activations, Stage, Weights};
pub use stage_file::{Choice, StageFile};
pub use system::{Dealing, Family, System};
pub use window::{Use, Window, gathers, round};

/// The version that plan files carry.
pub const FORMAT_VERSION: u32 = 1;
