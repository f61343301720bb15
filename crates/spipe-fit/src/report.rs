//! The result of a fit as JSON.

use crate::{Errors, Fitted, LeftOut, Outcome, Usage};
use serde::Serialize;
use spipe_base::Bytes;
use std::collections::BTreeMap;

/// The JSON of `spipe fit`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    format_version: u32,
    runtime: String,
    /// The value of each constant; null where the runs do not determine it.
    fitted: BTreeMap<String, Option<f64>>,
    /// The values before the fit.
    start: BTreeMap<String, f64>,
    runs: Vec<RunReport>,
    fit: ErrorReport,
    predict: ErrorReport,
    /// Errors by class of runs, of all runs.
    classes: BTreeMap<String, ErrorReport>,
    left_out: Vec<LeftOutReport>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct RunReport {
    name: String,
    #[serde(rename = "use")]
    usage: Usage,
    class: String,
    measured_ms: Option<f64>,
    predicted_ms: f64,
    error: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_counted: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    out_of_memory: bool,
    measured_gpu_bytes: Option<Bytes>,
    predicted_gpu_bytes: Option<Bytes>,
    peaks: BTreeMap<String, PeakReport>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct PeakReport {
    measured_bytes: Bytes,
    predicted_bytes: Bytes,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct ErrorReport {
    count: usize,
    mean_absolute_error: f64,
    bias: f64,
    largest: f64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct LeftOutReport {
    name: String,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_counted: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    as_measured: bool,
}

impl From<Errors> for ErrorReport {
    fn from(errors: Errors) -> Self {
        let Errors { count, mean_absolute, bias, largest } = errors;
        Self { count, mean_absolute_error: mean_absolute, bias, largest }
    }
}

/// Returns the result of a fit for machines.
pub fn report(fitted: &Fitted, runtime: &str) -> Report {
    let mut classes = BTreeMap::new();
    for run in &fitted.runs {
        let alike = fitted.runs.iter().filter(|other| other.class == run.class);
        classes
            .entry(run.class.name().to_owned())
            .or_insert_with(|| Errors::of(alike.filter_map(Outcome::error)).into());
    }
    let left_out = fitted.left_out.iter();
    Report {
        format_version: 1,
        runtime: runtime.into(),
        fitted: fitted.constants.iter().map(|constant| (constant.constant.name().to_owned(), constant.value)).collect(),
        start: fitted.constants.iter().map(|constant| (constant.constant.name().to_owned(), constant.start)).collect(),
        runs: fitted.runs.iter().map(run_report).collect(),
        fit: fitted.errors(Usage::Fit, None).into(),
        predict: fitted.errors(Usage::Predict, None).into(),
        classes,
        left_out: left_out.map(left_out_report).collect(),
    }
}

fn left_out_report(run: &LeftOut) -> LeftOutReport {
    let LeftOut { name, reason, not_counted, as_measured } = run.clone();
    LeftOutReport { name, reason, not_counted, as_measured }
}

fn run_report(run: &Outcome) -> RunReport {
    // The GPU whose peak was measured; the fullest one if several were.
    let gpu =
        run.peaks.iter().filter(|(memory, ..)| memory.starts_with("gpu")).max_by_key(|(_, measured, _)| *measured);
    let peak = |(memory, measured, predicted): &(String, Bytes, Bytes)| {
        (memory.clone(), PeakReport { measured_bytes: *measured, predicted_bytes: *predicted })
    };
    RunReport {
        name: run.name.clone(),
        usage: run.usage,
        class: run.class.name().into(),
        measured_ms: run.measured.map(spipe_base::Seconds::to_ms),
        predicted_ms: run.predicted.to_ms(),
        error: run.error(),
        not_counted: run.not_counted.clone(),
        out_of_memory: run.out_of_memory,
        measured_gpu_bytes: gpu.map(|(_, measured, _)| *measured),
        predicted_gpu_bytes: gpu.map(|(.., predicted)| *predicted),
        peaks: run.peaks.iter().map(peak).collect(),
    }
}
