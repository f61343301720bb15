//! A predicted beside a measured trace.

use crate::tables::{Named, fold, table};
use serde::Serialize;
use spipe_base::readable::{numbered, signed_percent};
use spipe_trace::{Comparison, Difference};
use std::collections::BTreeMap;

/// A comparison for programs.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ComparisonOutput {
    format_version: u32,
    iteration_error: Option<f64>,
    predicted_ms: f64,
    measured_ms: f64,
    by_kind: BTreeMap<&'static str, Row>,
    by_lane: BTreeMap<String, Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Row {
    predicted_ms: f64,
    measured_ms: f64,
    error: Option<f64>,
}

impl From<&Difference> for Row {
    fn from(difference: &Difference) -> Self {
        Self {
            predicted_ms: difference.predicted.to_ms(),
            measured_ms: difference.measured.to_ms(),
            error: difference.error(),
        }
    }
}

/// The comparison as data.
pub fn data(comparison: &Comparison) -> ComparisonOutput {
    ComparisonOutput {
        format_version: 1,
        iteration_error: comparison.iteration.error(),
        predicted_ms: comparison.iteration.predicted.to_ms(),
        measured_ms: comparison.iteration.measured.to_ms(),
        by_kind: comparison.by_kind.iter().map(|(kind, difference)| (kind.name(), difference.into())).collect(),
        by_lane: comparison.by_lane.iter().map(|(lane, difference)| (lane.clone(), difference.into())).collect(),
        notes: comparison.notes.clone(),
    }
}

/// Lanes in the order of their devices' numbers, not of their letters: `gpu10` follows `gpu9`.
fn by_device(lanes: &BTreeMap<String, Difference>) -> Vec<(&String, &Difference)> {
    let mut all: Vec<(&String, &Difference)> = lanes.iter().collect();
    all.sort_by_key(|&(lane, _)| numbered(lane).unwrap_or((lane, 0, "")));
    all
}

/// The comparison as a table: the iteration, then each lane's and each kind's busy time.
pub fn human(comparison: &Comparison) -> String {
    let mut rows = table(&["", "predicted", "measured", "error"], &[1, 2, 3]);
    let row = |name: String, difference: &Difference| {
        let error = difference.error().map_or_else(|| "–".into(), signed_percent);
        let (predicted, measured) = (difference.predicted, difference.measured);
        Named { name, cells: vec![format!("{predicted:.3}"), format!("{measured:.3}"), error] }
    };
    let lanes = by_device(&comparison.by_lane);
    let lanes = lanes.into_iter().map(|(lane, difference)| row(lane.clone(), difference));
    let lanes = fold(lanes).into_iter().map(|lane| Named { name: format!("lane {}", lane.name), ..lane });
    let kinds = comparison.by_kind.iter().map(|(kind, difference)| row(format!("all {kind}"), difference));
    for Named { name, cells } in [row("iteration".into(), &comparison.iteration)].into_iter().chain(lanes).chain(kinds)
    {
        rows.add_row([vec![name], cells].concat());
    }
    let notes: Vec<String> = comparison.notes.iter().map(|note| format!("note: {note}\n")).collect();
    format!("{rows}\n{}", notes.concat())
}
