//! One run of a program: a thread per lane, the memory ledger, and the trace.

mod bind;
mod hooks;
mod infer;
mod job;
mod lanes;
mod ledger;
mod monitor;
mod prepare;
mod program_index;
mod room;
mod run;
mod run_state;
mod steps;
mod trace;
mod weights;

pub(crate) use bind::bind;
pub(crate) use hooks::Hooks;
pub(crate) use infer::{Lengths, all_prompts, inference};
pub(crate) use job::Job;
pub(crate) use lanes::named_gradients;
pub use prepare::check_plan;
pub(crate) use prepare::{half, optimizer};
pub use run::run;
#[cfg(test)]
pub(crate) use run::run_with;
pub use weights::{check_weights, save_initial_weights, save_weights};
