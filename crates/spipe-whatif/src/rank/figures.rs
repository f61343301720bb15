//! The figures of a job, for ranked machines and for baselines.

use crate::{Figures, Job};
use serde::Serialize;
use spipe_market::Range;

/// The figures of a job on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct JobFigures {
    /// The predicted rate over all trainings.
    pub tokens_per_second: f64,
    /// The hours of the job; of a year where there are several trainings.
    pub hours: f64,
    /// Whether every training ends before the deadline; null without a deadline.
    pub meets_deadline: Option<bool>,
    /// The cost in those hours.
    pub cost_of_job: Range,
    /// The typical cost of a million tokens.
    pub cost_per_million_tokens: f64,
    /// The energy in those hours.
    pub kwh: f64,
    /// The mean power at the wall.
    pub watts: f64,
}

impl JobFigures {
    /// The figures of `job`.
    pub(super) fn of(job: &Job, figures: &Figures) -> Self {
        Self {
            tokens_per_second: figures.tokens_per_second,
            hours: figures.hours,
            meets_deadline: figures.meets_deadline(job),
            cost_of_job: figures.cost,
            cost_per_million_tokens: figures.cost_per_million_tokens(),
            kwh: figures.kwh(),
            watts: figures.watts,
        }
    }
}
