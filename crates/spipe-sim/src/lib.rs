//! The discrete-event interpreter of programs: the start and end of every action, the memory over
//! time, and the causes of idle lanes.
//!
//! ```text
//! Program ─► simulate ─► Trace (one steady iteration)
//! ```
//!
//! Guarantees:
//!
//! - The clock counts whole nanoseconds. At one instant, ends come before starts, so that memory is
//!   released before it is acquired. Lanes start their next action in the order of their ids. The
//!   same program gives the same bytes.
//! - A lane runs one action at a time, in order. An action starts when its precedences are met and
//!   its memory fits. If no running action can release enough memory, the result is out of memory.
//! - Flows share every channel of their routes max–min fairly ([`transfers`] runs flows alone).
//! - Iterations follow each other until every action repeats with one period. The trace is that of
//!   the last iteration, and its `iteration` is the period.

mod critical;
mod engine;
mod lanes;
mod load;
mod memory;
mod network;
mod options;
mod report;
mod simulate;
mod transfer;
mod why;

pub use options::{Iterations, Options};
pub use report::{Parts, Simulation};
pub use simulate::{is_ok, iteration_time, iteration_time_within, simulate, simulate_explained, waits};
pub use transfer::{Transfer, TransferError, transfers};
