//! The machines of a sweep, judged by planner and simulator: an answer to what one should buy.
//!
//! ```text
//! task         a setup with its machines          planner      each machine takes the path of a single plan
//! own          a machine with one more part       clock        the stop signal, by shares of the time
//! second_look  neighbours, repairs, much effort, rented machines and baselines, with the table
//! ```

mod baselines;
mod clock;
mod figures;
mod neighbours;
mod own;
mod planner;
mod rented;
mod repairs;
mod second_look;
mod task;
mod with_effort;

pub use clock::Clock;
pub use planner::{JobPlanner, Tell, Training};
pub use second_look::{Look, Looked, second_look};
pub use task::Task;
pub use with_effort::Describe;
