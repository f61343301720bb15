//! `spipe prediction-error`: iterations of several systems, predicted and measured, on this
//! machine.
//!
//! ```text
//! round ─► case ─► its devices measured ─► a placement, lowered ─┬─► simulated ─┐
//!   ▲        ▲                                                   └─► run ───────┴─► an error
//!   └────────┴──────── the next one                              of all rounds the median one
//! ```
//!
//! The placements are fixed: the question is how well a plan is predicted, not which plan is best.

mod cases;
mod measuring;
mod table;

use crate::{Failure, args, args::Format, executors, input, output, output::Target, running::data};
use cases::Case;
use measuring::{Measurement, Study};
use serde::Serialize;

/// The default report of all cases.
const REPORT: &str = "reports/prediction-error.md";

/// A case, in the round with the median error.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct ErrorRow {
    title: String,
    devices: String,
    predicted_ms: f64,
    measured_ms: f64,
    /// Half the distance between the 10th and the 90th percentile of the measured iterations, over
    /// their median.
    spread: f64,
    iteration_error: f64,
    /// The least error of all rounds.
    least_error: f64,
    /// The largest error of all rounds.
    largest_error: f64,
    rounds: usize,
    /// The error of the busy time of all compute lanes.
    compute_error: f64,
    /// The busy share of the busiest lane in the measured iteration: 1 if copies and compute
    /// overlap fully.
    busiest_lane: f64,
    /// The predicted iteration without copies, over the measured iteration.
    order_alone: f64,
    tokens_per_second: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    format_version: u32,
    backend: String,
    rows: Vec<ErrorRow>,
    failed: Vec<String>,
}

/// Runs the cases and writes the report.
pub fn run(what: &args::PredictionError, format: Format) -> Result<(), Failure> {
    let cases = chosen(what.only.as_deref())?;
    // A selection of cases does not replace the report of all.
    let path = what.output.as_deref().or(what.only.is_none().then_some(REPORT));
    let target = path.map(Target::open).transpose()?;
    let backend = executors::backend(&what.backend)?;
    let model = input::model(&what.model)?;
    let text = data::training_text(what.data.as_deref())?;
    let data = data::byte_tokens(&text, model.seq_len())?;
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

/// The cases whose titles contain `only`, ignoring case.
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
    /// Runs every case once in each round, so that the rounds of one case are minutes apart.
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

    /// The row of a case; none if every round has failed.
    fn row(&self, case: &Case, mut rounds: Vec<Measurement>) -> Option<ErrorRow> {
        rounds.sort_by(|one, other| one.iteration_error().total_cmp(&other.iteration_error()));
        let middle = *rounds.get(rounds.len().saturating_sub(1) / 2)?;
        let executors = case.executors(self.backend);
        Some(ErrorRow {
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
