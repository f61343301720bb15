//! `spipe prediction-error`: iterations of several systems, predicted and measured, on this machine.
//!
//! ```text
//! round ─► case ─► its devices measured ─► a placement, lowered ─┬─► simulated ─┐
//!   ▲        ▲                                                   └─► run ───────┴─► an error
//!   └────────┴──────── the next one                              of all rounds the median one
//! ```
//!
//! What is asked is how well a plan is predicted, not which plan is best: placements are given here.

mod cases;
mod measuring;
mod table;

use super::{calibrate, demo};
use crate::{Failure, args, args::Format, input, output, output::Target, training};
use cases::Case;
use measuring::{Measurement, Study};
use serde::Serialize;
use spipe_exec::{Data, Tokens};

/// Where all cases are written if nothing is said.
const REPORT: &str = "reports/prediction-error.md";

/// What one case came to in the round whose error is the median.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Row {
    title: String,
    devices: String,
    predicted_ms: f64,
    measured_ms: f64,
    /// Half the distance of the 10th and the 90th percentile of the measured iterations over their median.
    spread: f64,
    iteration_error: f64,
    /// Of all rounds.
    least_error: f64,
    largest_error: f64,
    rounds: usize,
    /// Of the time that compute lanes are busy.
    compute_error: f64,
    /// The share of the measured iteration for which its busiest lane is busy: 1 if copies and compute hide each other wholly.
    busiest_lane: f64,
    /// The share of the measured iteration that the plan is predicted to take where copies take no time.
    order_alone: f64,
    tokens_per_second: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    format_version: u32,
    backend: String,
    rows: Vec<Row>,
    failed: Vec<String>,
}

/// Runs all of it.
pub fn run(what: &args::PredictionError, format: Format) -> Result<(), Failure> {
    let cases = chosen(what.only.as_deref())?;
    // Some of the cases do not replace the report of all.
    let path = what.output.as_deref().or(what.only.is_none().then_some(REPORT));
    let target = path.map(Target::open).transpose()?;
    let backend = calibrate::backend(&what.backend)?;
    let model = input::model(&what.model)?;
    let text = demo::training_text(what.data.as_deref())?;
    let data: Data = Tokens::bytes(&text, model.seq_len()).map_err(|error| training::refuse(error.into()))?.into();
    let study = Study { what, model: &model, data: &data, backend };
    let report = study.rounds(&cases);
    let to_stdout = matches!(target, Some(Target::Stdout));
    if let Some(target) = target {
        target.write(table::markdown(what, &report).as_bytes())?;
    }
    if !to_stdout {
        output::report(format, &table::human(&report), &report)?;
    }
    match report.failed.first() {
        Some(first) => Err(Failure::Check(spipe_base::Diagnostic::error(first.clone()))),
        None => Ok(()),
    }
}

/// The cases whose titles contain `only`, in whatever case.
fn chosen(only: Option<&str>) -> Result<Vec<Case>, Failure> {
    let all = cases::all();
    let titles = all.iter().map(|case| format!("`{}`", case.title)).collect::<Vec<_>>().join(", ");
    let wanted = only.unwrap_or_default().to_lowercase();
    let chosen: Vec<Case> = all.into_iter().filter(|case| case.title.to_lowercase().contains(&wanted)).collect();
    match chosen.is_empty() {
        true => Err(Failure::argument(format!("`{wanted}` is in no title"), format!("the titles are {titles}"))),
        false => Ok(chosen),
    }
}

impl Study<'_> {
    /// Every case once in each round, so that the rounds of one case lie minutes apart.
    fn rounds(&self, cases: &[Case]) -> Report {
        let mut found: Vec<Vec<Measurement>> = cases.iter().map(|_| Vec::new()).collect();
        let mut failed = Vec::new();
        for round in 1..=self.what.rounds {
            for (case, found) in cases.iter().zip(&mut found) {
                let executors = case.executors(self.backend);
                output::talk(&format!("round {round} of {}: {}", self.what.rounds, case.title));
                match self.measure(case, &executors) {
                    Ok(measurement) => found.push(measurement),
                    Err(failure) => failed.push(format!("{}, round {round}: {failure}", case.title)),
                }
            }
        }
        let rows = cases.iter().zip(found).filter_map(|(case, found)| self.row(case, found)).collect();
        Report { format_version: 1, backend: self.backend.to_string(), rows, failed }
    }

    /// None if every round has failed.
    fn row(&self, case: &Case, mut rounds: Vec<Measurement>) -> Option<Row> {
        rounds.sort_by(|one, other| one.iteration_error().total_cmp(&other.iteration_error()));
        let middle = *rounds.get(rounds.len().saturating_sub(1) / 2)?;
        let executors = case.executors(self.backend);
        Some(Row {
            title: case.title.into(),
            devices: executors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            predicted_ms: middle.predicted_ms,
            measured_ms: middle.measured_ms,
            spread: middle.spread,
            iteration_error: middle.iteration_error(),
            least_error: rounds.first()?.iteration_error(),
            largest_error: rounds.last()?.iteration_error(),
            rounds: rounds.len(),
            compute_error: middle.compute_error,
            busiest_lane: middle.busiest_lane,
            order_alone: middle.without_copies_ms / middle.measured_ms,
            tokens_per_second: middle.tokens_per_second,
        })
    }
}
