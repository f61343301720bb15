//! A predicted beside a measured trace.

use crate::tables::table;
use serde::Serialize;
use spipe_base::readable::signed_percent;
use spipe_trace::{Comparison, Difference};
use std::collections::BTreeMap;

/// A comparison for programs.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Data {
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
pub fn data(comparison: &Comparison) -> Data {
    Data {
        format_version: 1,
        iteration_error: comparison.iteration.error(),
        predicted_ms: comparison.iteration.predicted.to_ms(),
        measured_ms: comparison.iteration.measured.to_ms(),
        by_kind: comparison.by_kind.iter().map(|(kind, difference)| (kind.name(), difference.into())).collect(),
        by_lane: comparison.by_lane.iter().map(|(lane, difference)| (lane.clone(), difference.into())).collect(),
        notes: comparison.notes.clone(),
    }
}

/// The comparison as a table: the iteration, then each lane's and each kind's busy time.
pub fn human(comparison: &Comparison) -> String {
    let mut rows = table(&["", "predicted", "measured", "error"], &[1, 2, 3]);
    let mut add = |name: String, difference: &Difference| {
        let error = difference.error().map_or_else(|| "–".into(), signed_percent);
        rows.add_row(vec![name, format!("{:.3}", difference.predicted), format!("{:.3}", difference.measured), error]);
    };
    add("iteration".into(), &comparison.iteration);
    for (lane, difference) in &comparison.by_lane {
        add(format!("lane {lane}"), difference);
    }
    for (kind, difference) in &comparison.by_kind {
        add(format!("all {kind}"), difference);
    }
    let notes: Vec<String> = comparison.notes.iter().map(|note| format!("note: {note}\n")).collect();
    format!("{rows}\n{}", notes.concat())
}
