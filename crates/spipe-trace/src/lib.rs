//! What happened, or what is predicted to happen, in one iteration on every lane and in every memory of a machine.
//!
//! ```text
//! Trace ─┬─ lanes      gpu0.compute, gpu0.h2d, cpu0.optimizer …
//!        ├─ spans      one per action: lane, kind, stage, microbatch, start, end, what it waited for last
//!        ├─ arrows     which span's end let which span start
//!        ├─ idle       every idle nanosecond of a compute lane, with exactly one cause
//!        └─ memories   bytes over time, peak, and who held how much at the peak
//! ```
//!
//! The simulator and the executor both return this type, so that a prediction error is the difference of two values:
//! [`compare`] takes it. Times start at zero, where the iteration begins.

mod compare;
mod idle;
mod metrics;
mod read;
mod trace;

pub use compare::{Comparison, Difference, compare};
pub use idle::idle_intervals;
pub use metrics::Metrics;
pub use read::{ReadTraceError, from_json, to_json};
pub use trace::{Arrow, Holder, Idle, Lane, MemoryTrack, Origin, Sample, Shortage, Span, Status, Trace};

/// The version that trace files carry.
pub const FORMAT_VERSION: u32 = 1;
