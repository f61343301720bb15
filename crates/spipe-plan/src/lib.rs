//! A placement of a model on a machine, and the checker that accepts it.
//!
//! ```text
//! PlanFile (JSON: model, hardware, workload, system, stages)
//!    │ Plan::from_json                                  reads, resolves and checks
//!    ▼
//! Plan                                                  the input of scheduling
//! ```
//!
//! A planner's result is a claim. [`check()`] tests it without knowing how it was found: stages are
//! contiguous and cover the model, their devices exist, can run their layers and are connected, and
//! the footprint fits in every memory.
//!
//! [`footprint()`] is the only memory count of the project. Planners optimise under it, the checker
//! tests it, and lowering adds precedences such that the simulated peak does not exceed it.
//!
#![doc = include_str!("../README.md")]

mod answers;
mod check;
mod context;
mod drives;
mod exchange;
mod file;
mod footprint;
mod idle;
mod knob;
mod layout;
mod mesh_file;
mod options;
mod placement;
mod plan;
mod preset;
mod remarks;
mod replicas;
mod stage;
mod stage_file;
mod system;
mod window;

pub use answers::{Dealing, Exchange, GradientsLeave, Offload, OrderKind, Update, Vee};
pub use check::{check, check_groups, check_mesh, check_shape};
pub use context::Context;
pub use drives::{
    keeps_parameters_on_drives, keeps_state_on_drives, uses_drives, with_activations_on, with_all_states_on_drives,
    with_parameters_on, with_states_on_drives,
};
pub use exchange::{ExchangePolicy, Exchanges, Room, Visit};
pub use file::{Embedded, FORMAT_VERSION, PlanFile, schema};
pub use footprint::{
    Boundary, Footprint, GRADIENT_SLOTS, HostedState, LOAD_SLOTS, OFFLOAD_SLOTS, STATE_SLOTS, ShardedFootprint,
    StageFootprint, footprint, footprint_with, gradients_leave, held_while_computing, hosted_states, needed,
    offloaded_bytes, shard, sharded_footprint, speculates, stage_footprint, staging, streamed_device_bytes,
    transient_boundaries, undo_log,
};
pub use idle::Idle;
pub use knob::Knob;
pub use layout::{Layout, LayoutPart};
pub use mesh_file::{MeshFile, ShardingFile, ShardingName};
pub use placement::{FEWEST_OFFLOAD_SLOTS, FEWEST_RESIDENT, Held, InFlight, Placement};
pub use plan::{
    EngineCommand, ExpectedError, Gain, Incumbent, MemoryParts, Outcome, OutcomeStatus, Plan, SearchRecord,
};
pub use preset::Preset;
pub use remarks::{
    Executed, beyond_execution, beyond_plain_training, contrast_remark, estimate_remark, fullness_remarks,
    hybrid_remarks, precision_remark, prompt_remark,
};
pub use spipe_cost::{Mesh, ShardGroups, Sharding, Team};
pub use stage::{Activations, Stage, Weights};
pub use stage_file::{Choice, StageFile};
pub use system::System;
pub use window::{Use, Window, gathers, round};
