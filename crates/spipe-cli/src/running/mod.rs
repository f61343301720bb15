//! Runs of plans: data, progress, checkpoints, outputs.
//!
//! ```text
//! data, tokenizer ─► Run ─► execute ─┬─ progress      a bar, or lines of JSON; signals
//!                                    ├─ checkpoints   written, and resumed from
//!                                    └─ outputs       what an inference has found
//! ```

pub mod checkpoints;
pub mod data;
pub mod outputs;
mod progress;
mod run;
pub mod tokenizer;

pub use run::{Run, execute};
