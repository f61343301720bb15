//! Programs: what a machine does in one iteration, action by action, for the simulator and the executor alike.
//!
//! ```text
//! system ─► Order                       what each device computes, in which order: text such as 0F0,0F1,0B0,0B1
//!             │ lower(plan, order)      adds buffers, copies, slots, the optimizer
//!             ▼
//!           Program                     buffers + actions + lanes, checked and frozen
//! ```
//!
//! - A [`Buffer`] is a piece of data with bytes, a memory and a lifetime. Each write makes a new *version* of it.
//! - An [`Action`] reads and writes versions of buffers on a lane. From that follow its data dependencies
//!   ([`Program::precedences`]), the memory (a buffer is held from the start of its first writer to the end of its last
//!   user) and the executor's storage; none of the three is written twice.
//! - A [`Lane`] is an in-order queue of the machine.
//!
//! [`ProgramBuilder::build`] proves a program well-formed, or reports every fault with its lane, position and action.
//! Nothing below this crate knows the systems' names.

mod lower;
mod order;
mod program;

pub use lower::{
    RoundTimes, StageTimes, UnitTimes, bare, bare_offloaded, bare_rounds, bare_superpipeline, bare_superpipeline_after,
    in_flight, lower, order_of,
};
pub use order::{
    Barrier, Offloading, Order, Pass, Step, Token, automatic, gis, gis_warning, gpipe, interleaved, offloaded,
    one_forward_one_backward, system_order, uniform, v_half, v_min, v_of_stages, zb_h1, zb_h2, zb_v,
};
pub use program::{
    Access, Action, Anchor, Buffer, Channel, Content, Device, Edge, Flow, Guard, Lane, LaneOrder, Lifetime, Outcome,
    Part, Precedence, Program, ProgramBuilder, Shape, Share, Space, Stage,
};
