//! The answer in words, as CSV, as plots and as a page.

mod csv;
mod page;
mod plots;
mod scatter;
mod sentences;
mod svg;
mod terminal;
mod tornado;

pub use csv::csv;
pub use page::{Linked, page};
pub use plots::{Figure, break_even, plots};
pub use sentences::{answer, formulas, question};
pub use terminal::{front_plot, lines};

use crate::{Job, Objective, Sweep, Table};
use spipe_market::Date;

/// The kind of figures under the heading of baselines.
pub const BASELINES: &str = "plain data parallelism without a search, simulated like a plan; they are not ranked";

/// The subject of a report.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The job.
    pub job: &'a Job,
    /// The machines.
    pub sweep: &'a Sweep,
    /// The answer.
    pub table: &'a Table,
    /// The order of the machines.
    pub objective: Objective,
    /// The day of the prices.
    pub as_of: Date,
    /// The rented machines.
    pub rented: &'a [Rented],
}

/// A rented machine beside the first one.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Rented {
    /// The name.
    pub machine: String,
    /// The number of machines that are rented together.
    pub nodes: u32,
    /// The kind of its price: list, spot or marketplace.
    pub kind: String,
    /// The price of an hour.
    pub hour: spipe_market::Range,
    /// The predicted rate.
    pub tokens_per_second: f64,
    /// The hours of a year's trainings.
    pub hours: f64,
    /// The cost of a year's trainings.
    pub cost_of_job: spipe_market::Range,
    /// How many times a year the trainings run where owning the first machine begins to be cheaper; null if
    /// renting always is.
    pub break_even_jobs_per_year: Option<f64>,
}

impl Subject<'_> {
    /// The currency of amounts.
    fn currency(&self) -> String {
        self.job.own.currency.to_string()
    }
}

/// Returns an amount of money without its sign: whole from 100 on, with two decimals below.
pub fn money(amount: f64) -> String {
    if amount.abs() >= 100.0 {
        spipe_base::readable::grouped(amount.abs().round() as u64)
    } else {
        format!("{:.2}", amount.abs())
    }
}

/// Returns a value of an input: whole from 100 on, with two decimals from 0.1 on, otherwise with three.
fn amount(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => spipe_base::readable::grouped(large.round() as u64),
        middle if middle >= 0.1 => format!("{value:.2}"),
        small if small > 0.0 => format!("{value:.3}"),
        _ => "0".to_owned(),
    }
}

/// Returns a share in percent with its sign.
fn signed_percent(share: f64) -> String {
    if share.abs() < 5e-4 {
        return "0 %".to_owned();
    }
    let digits = if share.abs() < 0.0995 { 1 } else { 0 };
    format!("{:+.digits$} %", share * 100.0).replace('-', "−")
}
