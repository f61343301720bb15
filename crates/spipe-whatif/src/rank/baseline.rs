//! Baselines: plain data parallelism without a search. They are simulated like plans, and never ranked.

use super::figures::JobFigures;
use crate::{Candidate, Figures, Job};
use serde::Serialize;
use spipe_market::Range;

/// The figures of one training on one machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The rate.
    pub tokens_per_second: f64,
    /// The busy share of the GPUs.
    pub gpu_share: f64,
    /// The bytes that each GPU holds.
    pub gpu_memory_bytes: u64,
}

/// A machine with the figures of a baseline, in the units of [`Row`](super::Row).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Baseline {
    /// The name of the machine.
    pub machine: String,
    /// The name of the baseline.
    pub system: String,
    /// The price without tax.
    pub price: Range,
    /// The figures of the job.
    #[serde(flatten)]
    pub figures: JobFigures,
    /// The bytes that each GPU holds in the training that needs most.
    pub gpu_memory_bytes: u64,
}

impl Baseline {
    /// The figures of a named baseline, given its figures of each training.
    pub fn of(job: &Job, candidate: &Candidate, (system, estimates): (&str, &[Estimate])) -> Self {
        let rates: Vec<(f64, f64, f64)> =
            estimates.iter().map(|estimate| (estimate.tokens_per_second, estimate.gpu_share, 0.0)).collect();
        let figures = Figures::of(job, candidate, &rates);
        Self {
            machine: candidate.name(),
            system: system.to_owned(),
            price: candidate.price.range,
            figures: JobFigures::of(job, &figures),
            gpu_memory_bytes: estimates.iter().map(|estimate| estimate.gpu_memory_bytes).max().unwrap_or_default(),
        }
    }
}
