//! Traces: the measured or predicted events of one iteration on every lane and in every memory of a
//! machine.
//!
//! ```text
//! Trace ─┬─ lanes      gpu0.compute, gpu0.h2d, cpu0.optimizer …
//!        ├─ spans      one per action: lane, kind, stage, microbatch, start, end, wait
//!        ├─ arrows     dependencies: the end of one span let another start
//!        ├─ idle       every idle nanosecond of a compute lane, with exactly one cause
//!        ├─ memories   bytes over time, the peak, and the largest holders at the peak
//!        └─ explanation   waits, critical path, changes that help, pitfalls; where it was asked for
//! ```
//!
//! The simulator and the executor both return this type, so a prediction error is the difference of
//! two traces ([`compare`]). Time starts at zero, at the beginning of the iteration.

mod compare;
mod derived;
mod explanation;
mod idle;
mod metrics;
mod read;
mod trace;

pub use compare::{Comparison, Difference, compare};
pub use derived::explanation_of;
pub use explanation::{Explanation, Piece, Pitfall, TriedChange, Wait};
pub use idle::idle_intervals;
pub use metrics::Metrics;
pub use read::{FORMAT_VERSION, ReadTraceError, from_json, to_json, write_json};
pub use trace::{Arrow, Holder, Idle, Lane, MemoryTrack, Origin, Sample, Shortage, Span, Status, Trace, label};
