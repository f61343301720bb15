//! One run of a program: a thread per lane, the memory ledger, and the trace.

mod bind;
mod hooks;
mod infer;
mod ledger;
mod monitor;
mod prepare;
mod program_index;
mod run;
mod run_state;
mod steps;
mod trace;

pub(crate) use bind::bind;
pub(crate) use hooks::Hooks;
pub(crate) use infer::{Lengths, all_prompts, inference};
pub(crate) use prepare::{half, optimizer};
#[cfg(test)]
pub(crate) use run::run_with;
pub(crate) use run::{Job, named_gradients};
pub use run::{check_weights, run, save_initial_weights, save_weights};
