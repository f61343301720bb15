//! Changes that make a plan faster, and pitfalls that make it slow, each judged by the
//! simulator.
//!
//! ```text
//! Plan ─┬─ changes    tried on plan or machine: planned again, simulated ─► the best three
//!       └─ pitfalls   the iteration less the iteration with a cause removed
//! ```

mod changes;
mod machines;
mod pitfalls;
mod remarks;
mod trial;

pub use changes::{Tried, changes};
pub use pitfalls::pitfalls;
pub use remarks::remarks;
pub use trial::Explained;
