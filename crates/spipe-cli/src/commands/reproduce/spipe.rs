//! SPipe and Mobius by number of microbatches.
//!
//! The GPU part is τ·u(M) + c, where u is the simulated span of passes with τ = 1: SPipe's forward and backward stages take the
//! same time, Mobius' backward with its recompute takes three forwards. The iteration is the simulated span with the optimizer's
//! steps on the CPU, which start stage by stage (SPipe) or after the backward (Mobius), plus c and another constant.

use super::{
    fit::line,
    rows::{self, Rows, Usage, above_zero},
    table::{Cell, Reproduction},
};
use crate::Failure;
use serde::Deserialize;
use spipe_base::{ActionKind, Diagnostic, Faults, Seconds, SimTime, Text};
use spipe_schedule::{RoundTimes, bare_rounds};
use spipe_sim::{Iterations, Options, simulate};
use std::collections::BTreeMap;

/// How often the interval that holds the time of a step is halved.
const HALVINGS: usize = 40;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Measured {
    model: String,
    system: String,
    devices: usize,
    microbatches: usize,
    stages: [usize; 2],
    parameters: u64,
    #[serde(rename = "use")]
    usage: Usage,
    published: Published,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Published {
    iteration: Text<Seconds>,
    gpu: Text<Seconds>,
}

type Row = rows::Row<Measured>;

/// What the fit found, in ms.
struct Fit {
    stage: f64,
    constant: f64,
    step: f64,
    rest: f64,
}

pub fn make(file: &str, text: &str) -> Result<Reproduction, Failure> {
    let read = Rows::<Measured>::read(file, text)?;
    read.each(|row| {
        above_zero("time", row.published.iteration.0.get().min(row.published.gpu.0.get()))?;
        span(row, 1.0, 0.0).map(|_| ())
    })?;
    let mut groups: BTreeMap<(&str, &str), Vec<&Row>> = BTreeMap::new();
    for row in &read.rows {
        groups.entry((&row.model, &row.system)).or_default().push(row);
    }
    let mut cells = Vec::new();
    for ((model, system), rows) in &groups {
        let own = rows.iter().any(|row| row.usage == Usage::Fit);
        let fit = if own {
            fit(rows)?
        } else {
            let others =
                groups.iter().filter(|((other, _), _)| other == model).flat_map(|(_, rows)| rows.iter().copied());
            fit_others(&others.collect::<Vec<_>>(), rows)?
        };
        for row in rows {
            let (gpu, iteration) = predict(row, &fit)?;
            let name = format!("{model}, {system}, {} GPUs, {} microbatches", row.devices, row.microbatches);
            let note = |what: String| (row.usage == Usage::Fit).then_some(what);
            let rate = row.parameters as f64 / (fit.step * row.stages[1] as f64) / 1e6;
            let parts = [
                ("gpu", row.published.gpu.0, gpu, format!("{:.2} ms per stage, {:+.0} ms", fit.stage, fit.constant)),
                ("iteration", row.published.iteration.0, iteration, format!("{rate:.2} Gparam/s, {:+.0} ms", fit.rest)),
            ];
            for (column, published, ours, fitted) in parts {
                let published = published.to_ms();
                cells.push(Cell::relative(&name, format!("{column}, ms"), published, ours).fitted(note(fitted)));
            }
        }
    }
    Ok(Reproduction::new(&read.source, "Milliseconds; errors are relative.", cells))
}

/// The time of a stage and the rate of the optimizer from one row of another system, whose steps all come after its passes.
fn fit_others(others: &[&Row], rows: &[&Row]) -> Result<Fit, Failure> {
    let Some(other) = others.iter().find(|row| row.usage == Usage::Fit) else { return Err(too_few(rows)) };
    let stage = other.published.gpu.0.to_ms() / span(other, 1.0, 0.0)?.0;
    let per_parameter = (other.published.iteration.0.to_ms() - other.published.gpu.0.to_ms()) / other.parameters as f64;
    let here = rows.first().map_or(0.0, |row| row.parameters as f64 / row.stages[1] as f64);
    Ok(Fit { stage, constant: 0.0, step: per_parameter * here, rest: 0.0 })
}

/// Two unknowns of the GPU part by least squares; then the time of a step and a constant such that the fitted iterations differ
/// as the published ones do.
fn fit(rows: &[&Row]) -> Result<Fit, Failure> {
    let fitted: Vec<&Row> = rows.iter().copied().filter(|row| row.usage == Usage::Fit).collect();
    let (Some(first), Some(last)) = (fitted.first(), fitted.last()) else {
        return Err(too_few(rows));
    };
    if first.microbatches == last.microbatches {
        return fit_others(rows, rows);
    }
    let mut points = Vec::new();
    for row in &fitted {
        points.push((span(row, 1.0, 0.0)?.0, row.published.gpu.0.to_ms()));
    }
    let (stage, constant) = line(&points);
    let difference =
        |step: f64| -> Result<f64, Faults> { Ok(span(first, stage, step)?.1 - span(last, stage, step)?.1) };
    let wanted = first.published.iteration.0.to_ms() - last.published.iteration.0.to_ms();
    let tail = |row: &Row| row.published.iteration.0.to_ms() - row.published.gpu.0.to_ms();
    let most = first.published.iteration.0.to_ms();
    let (mut low, mut high) = (0.0, most);
    // Steps that all come after the backward add the same to every row; then they are all there is after the GPU part.
    let step = if (difference(high)? - difference(low)?).abs() < 1e-6 * most {
        fitted.iter().map(|row| tail(row) / row.stages[1] as f64).sum::<f64>() / fitted.len() as f64
    } else {
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if difference(middle)? < wanted {
                low = middle;
            } else {
                high = middle;
            }
        }
        f64::midpoint(low, high)
    };
    let mut rest = 0.0;
    for row in &fitted {
        rest += row.published.iteration.0.to_ms() - span(row, stage, step)?.1 - constant;
    }
    Ok(Fit { stage, constant, step, rest: rest / fitted.len() as f64 })
}

fn predict(row: &Row, fit: &Fit) -> Result<(f64, f64), Failure> {
    let (gpu, iteration) = span(row, fit.stage, fit.step)?;
    Ok((gpu + fit.constant, iteration + fit.constant + fit.rest))
}

/// The simulated end of the last pass and of the last step, in ms, for passes of `stage` ms and steps of `step` ms.
fn span(row: &Row, stage: f64, step: f64) -> Result<(f64, f64), Faults> {
    let decoupled = match row.system.as_str() {
        "spipe" => true,
        "mobius" => false,
        other => {
            let fault = Diagnostic::error(format!("no system of this table is called `{other}`"));
            return Err(fault.hint("use spipe or mobius").into());
        }
    };
    let time = |ms: f64| SimTime::ns((ms * 1e6).round() as u64);
    // Backward and recompute of a chunk take about three of its forwards.
    let backward = 3.0 * row.stages[0] as f64 / row.stages[1] as f64;
    let times = RoundTimes { forward: time(stage), backward: time(stage * backward), step: time(step) };
    let name = (row.system.as_str(), decoupled);
    let program = bare_rounds(name, row.devices, row.microbatches, (row.stages[0], row.stages[1]), &times)?;
    let options = Options { iterations: Iterations::One, ..Options::default() };
    let trace = simulate(&program, &options).trace;
    let passes = trace.spans.iter().filter(|span| matches!(span.kind, ActionKind::Forward | ActionKind::Backward));
    let gpu = passes.map(|span| span.end).max().unwrap_or_default();
    Ok((gpu.to_ms(), trace.iteration.to_ms()))
}

fn too_few(rows: &[&Row]) -> Failure {
    let name = rows.first().map_or_else(String::new, |row| format!("{}, {}", row.model, row.system));
    Diagnostic::error(format!("rows of `{name}` cannot be fitted: two with different microbatches are needed"))
        .hint("mark two of them with use = \"fit\"")
        .into()
}
