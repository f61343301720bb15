//! Constants of machines and runtimes from measured runs, and the errors of predictions.
//!
//! ```text
//! RUNS.toml ──Runs::read──► Stated ──prepared──► Run ──fit──► Fitted ─┬─ values, [[fitted]] tables
//!                          (names)   (plans)                         └─ errors of all runs, by class
//! torch.profiler's trace ──torch::Profile::read──► kernel times by layer
//! ```
//!
//! Everything is a function of its arguments. The caller reads files and searches plans: it hands
//! over a function that turns a stated run into [`Work`].
//!
//! ```
//! use spipe_fit::Runs;
//!
//! let text = r#"
//! format-version = 1
//! [[run]]
//! name = "one"
//! model = "gpt2"
//! options = ["--global-batch", "8"]
//! measured = { iteration = "0 ms" }
//! "#;
//! let fault = Runs::read("runs.toml", text).err().ok_or("zero is refused")?;
//! assert!(fault.to_string().contains("run `one`"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
#![doc = include_str!("../README.md")]

mod constants;
mod file;
mod fit;
mod least_squares;
mod profile;
mod report;
mod run;
pub mod torch;

pub use constants::{ConstantError, Range, Scale, meaning, range, shown, with_constants};
pub use file::{Command, FORMAT_VERSION, Field, Measured, Quantity, Runs, RunsFile, Stated, Usage, schema};
pub use fit::{Errors, FitError, Fitted, FittedConstant, Outcome, fit, predicted};
pub use profile::{ErrorOfClass, error_of_class, fitted_file, fitted_runtime};
pub use report::{Report, report};
pub use run::{Class, FULLEST, LeftOut, PredictError, Refusal, Run, TensorData, Work, prepared};
