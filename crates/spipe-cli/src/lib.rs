//! The command line of spipe: reads files, calls the crates that know how, prints and writes results.
//!
//! ```text
//! args ─► commands ─┬─ input     models, profiles, plans and traces from paths or shipped names
//!                   ├─ planning  one search over microbatch sizes with the planner that was asked for; pinning what it must hold,
//!                   │            solving the largest that fits, sensitivity what more of a resource would gain
//!                   ├─ resuming  checkpoints to write and to go on from
//!                   ├─ tables    what people read
//!                   └─ output    whole files or none; stdout for data, stderr for talk
//! ```
//!
//! Every expected failure is a [`Failure`] with an exit code.

pub mod args;
mod commands;
mod data;
mod failure;
mod input;
mod measuring;
mod output;
mod outputs;
mod pinning;
mod planning;
mod progress;
mod remedies;
mod resuming;
mod sensitivity;
mod solving;
mod tables;
mod training;

pub use failure::Failure;

use clap::Parser;
use std::{panic::AssertUnwindSafe, process::ExitCode};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let args = args::Args::parse();
    output::start_log(args.verbose);
    // The message of a panic is out already; nothing of what panicked is used again.
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| commands::run(&args)));
    match result.unwrap_or_else(|_| Err(Failure::Bug("the command panicked".into()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::talk(&failure.to_string());
            ExitCode::from(failure.exit_code())
        }
    }
}
