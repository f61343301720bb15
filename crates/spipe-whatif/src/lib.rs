//! Machines composed of the parts that vary, ranked for a job: an answer to what one should buy.
//!
//! ```text
//! job, catalogue ─sweep─► candidates ─run (Judge)─► answers ─rank─► Table ─report─► text, CSV, HTML, plots
//!                            │          │
//!                          bound     State       plans so far: to resume, and to merge shards
//! ```
//!
//! How a machine is planned is the caller's: it gives a [`Judge`]. A rate does not depend on a price,
//! so that prices vary without planning again.
//!
#![doc = include_str!("../README.md")]

pub mod amount;
mod bound;
mod closer;
mod job;
mod rank;
pub mod report;
mod run;
mod search;
mod state;
mod sweep;
mod validated;

pub use bound::Bounder;
pub use job::{
    CostFile, FORMAT_VERSION, GLOBAL_BATCH, Job, JobFile, KEYS, LimitsFile, Objective, Rule, SkipFile, TrainFile,
    VaryFile, schema,
};
pub use rank::{
    Baseline, Bottleneck, Change, CountsData, Efforts, End, Estimate, Infeasible, JobFigures, NOISE, Ranking, Row,
    Swing, Table, Tornado, Turn, change_of, neighbours, rank,
};
pub use run::{Answer, Counts, Figures, Judge, Planned, Plans, Question, Run, Shard};
pub use search::run;
pub use state::{MergeError, OldState, Setup, State, merge};
pub use sweep::{Candidate, Skipped, Sweep, sweep, sweep_of};
pub use validated::UNFITTED_ERROR;
