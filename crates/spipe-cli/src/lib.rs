//! The command line of spipe: reads files, calls the crates that know how, prints and writes
//! results.
//!
//! ```text
//! args ─► commands ─┬─ input         models, profiles, plans and traces, by path or shipped name
//!                   │                (model_files: configs and folders of Hugging Face; names: as people write them)
//!                   ├─ options       the words for settings
//!                   ├─ market        parts and prices
//!                   ├─ planning      requests for plans, from options
//!                   ├─ calibration   a profile of this machine
//!                   ├─ running       a plan on real devices, with data, progress and checkpoints
//!                   ├─ report        tables and sentences for people
//!                   └─ output        whole files; stdout for data, stderr for messages
//! ```
//!
//! No command uses another. Every expected failure is a [`Failure`] with an exit code.

pub mod args;
mod calibration;
mod commands;
mod engines;
mod executors;
mod exporting;
mod failure;
mod first_tries;
mod idle;
mod input;
mod interrupt;
mod market;
mod model_files;
mod names;
mod nearest;
mod options;
mod output;
mod planning;
mod report;
mod running;
mod tables;
mod text_files;

pub use failure::Failure;

use std::{panic::AssertUnwindSafe, process::ExitCode};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let (args, given) = args::Args::read().unwrap_or_else(|error| first_tries::refuse(&error));
    output::start_log(args.verbose);
    // The panic has printed its message, and none of its data is used again.
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| commands::run(&args, &given)));
    match result.unwrap_or_else(|_| Err(Failure::Bug("the command panicked".into()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::talk(&failure.to_string());
            ExitCode::from(failure.exit_code())
        }
    }
}
