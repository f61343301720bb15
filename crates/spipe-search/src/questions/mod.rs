//! Questions that are answered by searching again.
//!
//! ```text
//! solve_for     the largest microbatch, sequence, model, batch or rank for which a plan fits
//! least         the least capacity of each memory for which some plan exists
//! sensitivity   the gain from 10 % more of each resource
//! pareto        memory against time, of a system that streams through one GPU
//! offload       whether a plan needs the host
//! record        a plan with the course of its search
//! ```

mod least;
mod offload;
mod pareto;
mod record;
mod sensitivity;
mod solve_for;

pub use least::{Least, least};
pub use offload::sentence;
pub use pareto::{Choice, Front, front, trades_memory};
pub use record::recorded;
pub use sensitivity::with_gains;
pub use solve_for::{Largest, Question, Unknown, largest};
