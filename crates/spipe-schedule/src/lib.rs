//! Orders and programs: the actions of a machine in one iteration, for the simulator and the
//! executor alike.
//!
//! ```text
//! plan ─► Order                         the passes of each device in order: text such as 0F0,0F1,0B0,0B1
//!           │ lower                     adds buffers, copies, boundary slots, the optimizer
//!           ▼
//!         Program                       buffers, actions and lanes, checked and frozen
//! ```
//!
//! - A [`Buffer`] is a piece of data with a size, a memory and a lifetime. Each write makes a new
//!   *version* of it.
//! - An [`Action`] runs on a lane, and reads and writes versions of buffers. Its data dependencies
//!   ([`Program::precedences`]), the memory ([`Program::opened_by`], [`Program::users`]) and the
//!   executor's storage all follow from these accesses.
//! - A [`Lane`] is an in-order queue of the machine.
//!
//! [`ProgramBuilder::build`] checks that a program is well-formed, or reports every fault with its
//! lane, position and action. Interpreters of programs do not know the systems' names.

mod fair_share;
mod lower;
mod order;
mod program;
mod work;

pub use fair_share::{Demand, FairShare};
pub use lower::{
    StreamedTimes, UnitTimes, bare, bare_offloaded, bare_offloaded_with_stage_times, bare_streamed, bare_superpipeline,
    bare_superpipeline_after, bare_with_stage_times, lower, lower_all_replicas, shown_by,
};
pub use order::{
    Barrier, Offloading, Order, Pass, Skipped, StageTimes, Step, Token, Word, automatic, gis, gis_warning, gpipe,
    in_flight, interleaved, offloaded, offloaded_with_stage_times, one_forward_one_backward, order_of, uniform, v_half,
    v_min, v_of_stages, zb_h1, zb_h2, zb_v,
};
pub use program::{
    Access, Action, Anchor, Buffer, Channel, Content, Device, Edge, Flow, Guard, Lane, LaneOrder, Lifetime, NewAction,
    Outcome, Part, Precedence, Program, ProgramBuilder, Shape, Share, Space, Stage,
};
