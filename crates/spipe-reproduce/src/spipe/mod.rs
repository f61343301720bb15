//! SPipe and Mobius: iteration time by number of microbatches M.
//!
//! ```text
//! GPU part   τ·u(M) + c            u: simulated span of the passes for τ = 1
//! iteration  span(τ, step) + c + d  with optimizer steps on the CPU
//! ```
//!
//! A forward and a backward stage of SPipe take the same time; Mobius' backward with its recompute
//! takes three forwards. Optimizer steps start stage by stage (SPipe) or after the backward
//! (Mobius). τ, c, d and the step time are fitted.
//!
//! Where rows give the shapes of their models, the times of passes and copies follow from shapes
//! and fitted rates instead (`rates`).

mod passes;
mod rates;
pub mod tails;

use crate::{
    fit::line,
    reproduction::{Cell, Reproduction},
    rows::{Rows, Usage, above_zero},
    source::Source,
};
use passes::{Measured, Row, Shape, span, time};
use spipe_base::{Diagnostic, Faults};
use spipe_schedule::StreamedTimes;
use std::collections::BTreeMap;

/// Bisections of the interval of the step time: 2⁻⁴⁰ of an iteration is far below a nanosecond.
const HALVINGS: usize = 40;

/// The fitted constants, in ms.
struct Fit {
    /// τ, the time of a stage.
    stage: f64,
    /// c, a constant of the GPU part.
    constant: f64,
    /// The time of an optimizer step.
    step: f64,
    /// d, a constant of the iteration beside c.
    rest: f64,
}

pub fn make(source: &Source<'_>) -> Result<Reproduction, Faults> {
    let read = Rows::<Measured>::read(source)?;
    let shaped = read.rows.iter().any(|row| row.shape.is_some());
    read.each(|row| {
        above_zero("time", row.published.iteration.0.get().min(row.published.gpu.0.get()))?;
        if row.shape.is_some() != shaped || row.shape.is_some_and(|shape| !shape.is_whole()) {
            let fault = Diagnostic::error("the row does not say the whole shape of its model, as others do");
            return Err(fault.hint("give every row a `shape` without zeros, or none").into());
        }
        if link(row) != read.rows.first().and_then(link) || row.link.is_some() && !shaped {
            let fault = Diagnostic::error("the link of the row is not that of the first row");
            return Err(fault.hint("state one `link` in all rows, which have a `shape`, or in none").into());
        }
        span(row, &pass(row, 1.0)).map(|_| ())
    })?;
    let cells = if shaped { by_rates(&read)? } else { by_microbatches(&read)? };
    let mut made = Reproduction::new(&read.source, "Milliseconds; errors are relative.", cells);
    made.findings.extend(gain(&made.cells, &read.rows));
    Ok(made)
}

/// Predictions for rows without shapes.
fn by_microbatches(read: &Rows<Measured>) -> Result<Vec<Cell>, Faults> {
    let mut groups: BTreeMap<(&str, &str), Vec<&Row>> = BTreeMap::new();
    for row in &read.rows {
        groups.entry((&row.model, &row.system)).or_default().push(row);
    }
    let mut cells = Vec::new();
    for ((model, _), rows) in &groups {
        let own = rows.iter().any(|row| row.usage == Usage::Fit);
        let fit = if own {
            fit(rows)?
        } else {
            let others =
                groups.iter().filter(|((other, _), _)| other == model).flat_map(|(_, rows)| rows.iter().copied());
            fit_others(&others.collect::<Vec<_>>(), rows)?
        };
        for row in rows {
            let rate = row.parameters as f64 / (fit.step * row.stages[1] as f64) / 1e6;
            let fitted = [
                format!("{:.2} ms per stage, {:+.0} ms", fit.stage, fit.constant),
                format!("{}, {:+.0} ms", optimizer_rate(rate), fit.rest),
            ];
            cells.extend(pair(row, predict(row, &fit)?, fitted));
        }
    }
    Ok(cells)
}

/// The rate of the link in bytes per second, if the row states it.
fn link(row: &Row) -> Option<f64> {
    row.link.as_ref().map(|rate| rate.0.get())
}

/// Predictions from shapes, with rates that are fitted on the rows of all models at once.
fn by_rates(read: &Rows<Measured>) -> Result<Vec<Cell>, Faults> {
    let shaped = |row: &'_ Row| row.shape.map(|shape| (row.number, shape));
    let shapes: BTreeMap<usize, Shape> = read.rows.iter().filter_map(shaped).collect();
    let fitted: Vec<&Row> = read.rows.iter().filter(|row| row.usage == Usage::Fit).collect();
    for row in &read.rows {
        if !fitted.iter().any(|other| other.model == row.model) {
            let message = format!("no row of `{}` is fitted", row.model);
            return Err(read.fault(row, message, "mark one with use = \"fit\"").into());
        }
    }
    let known: Vec<(&Row, Shape)> = fitted.iter().map(|row| (*row, shapes[&row.number])).collect();
    let rates = rates::fit(&known, read.rows.first().and_then(link))?;
    let mut cells = Vec::new();
    for row in &read.rows {
        let work = rates.work[&row.model];
        let own: Vec<&&Row> = fitted.iter().filter(|other| other.model == row.model).collect();
        let tail =
            |row: &&&Row| (row.published.iteration.0.to_ms() - row.published.gpu.0.to_ms()) / row.parameters as f64;
        let per_parameter = own.iter().map(tail).sum::<f64>() / own.len() as f64;
        let times = rates::times(row, &shapes[&row.number], (work, rates.link));
        let step = time(per_parameter * row.parameters as f64 / row.stages[1] as f64);
        let (gpu, _) = span(row, &times)?;
        let (_, iteration) = span(row, &StreamedTimes { step, ..times })?;
        let fitted = [
            format!("{:.1} TFLOP/s, one link of {:.2} GB/s", work / 1e12, rates.link / 1e9),
            optimizer_rate(1e-6 / per_parameter),
        ];
        cells.extend(pair(row, (gpu, iteration), fitted));
    }
    Ok(cells)
}

/// The fastest optimizer that a fit is believed, in Gparam/s: AdamW moves 28 bytes per parameter, and
/// no memory of 2026 moves 28 TB/s.
const FASTEST_OPTIMIZER: f64 = 1000.0;

/// A fitted rate in Gparam/s in words. Rows whose iteration ends with their GPU part do not determine
/// it.
fn optimizer_rate(rate: f64) -> String {
    if rate > 0.0 && rate <= FASTEST_OPTIMIZER {
        format!("{rate:.2} Gparam/s")
    } else {
        "a rate of the optimizer that the rows do not determine".into()
    }
}

/// The two cells of a row: GPU part and iteration.
fn pair(row: &Row, (gpu, iteration): (f64, f64), fitted: [String; 2]) -> [Cell; 2] {
    let name = name(row);
    let [of_gpu, of_iteration] = fitted.map(|what| (row.usage == Usage::Fit).then_some(what));
    let published = &row.published;
    [
        Cell::relative(&name, "gpu, ms", published.gpu.0.to_ms(), gpu).fitted(of_gpu),
        Cell::relative(&name, "iteration, ms", published.iteration.0.to_ms(), iteration).fitted(of_iteration),
    ]
}

fn name(row: &Row) -> String {
    let length = row.shape.map(|shape| format!(", {} tokens", shape.seq_len)).unwrap_or_default();
    format!("{}{length}, {}, {} GPUs, {} microbatches", row.model, row.system, row.devices, row.microbatches)
}

/// The mean speedup of SPipe over Mobius, over the rows that both have.
fn gain(cells: &[Cell], rows: &[Row]) -> Option<String> {
    let iteration = |row: &Row| {
        let name = name(row);
        cells.iter().find(|cell| cell.row == name && cell.column.starts_with("iteration"))
    };
    let same = |one: &Row, other: &Row| name(one).replace("spipe", "mobius") == name(other);
    let mut ratios: Vec<(f64, f64)> = Vec::new();
    for fast in rows.iter().filter(|row| row.system == "spipe") {
        let Some(slow) = rows.iter().find(|other| other.system == "mobius" && same(fast, other)) else { continue };
        let (fast, slow) = (iteration(fast)?, iteration(slow)?);
        ratios.push((slow.published? / fast.published?, slow.ours? / fast.ours?));
    }
    let count = ratios.len() as f64;
    let published = ratios.iter().map(|pair| pair.0).sum::<f64>() / count;
    let ours = ratios.iter().map(|pair| pair.1).sum::<f64>() / count;
    (count > 0.0).then(|| {
        format!(
            "SPipe is {ours:.3} times as fast as Mobius on average over {count} pairs of rows; as published {published:.3} times"
        )
    })
}

/// The time of a stage and the rate of the optimizer from one fitted row of another system, whose
/// steps all come after its passes.
fn fit_others(others: &[&Row], rows: &[&Row]) -> Result<Fit, Faults> {
    let Some(other) = others.iter().find(|row| row.usage == Usage::Fit) else { return Err(too_few(rows)) };
    let stage = other.published.gpu.0.to_ms() / span(other, &pass(other, 1.0))?.0;
    let per_parameter = (other.published.iteration.0.to_ms() - other.published.gpu.0.to_ms()) / other.parameters as f64;
    let here = rows.first().map_or(0.0, |row| row.parameters as f64 / row.stages[1] as f64);
    Ok(Fit { stage, constant: 0.0, step: per_parameter * here, rest: 0.0 })
}

/// τ and c by least squares; then the step time, such that the first and the last fitted iteration
/// differ by as much as the published ones, and d, the mean of the remaining differences.
fn fit(rows: &[&Row]) -> Result<Fit, Faults> {
    let fitted: Vec<&Row> = rows.iter().copied().filter(|row| row.usage == Usage::Fit).collect();
    let (Some(first), Some(last)) = (fitted.first(), fitted.last()) else {
        return Err(too_few(rows));
    };
    if first.microbatches == last.microbatches {
        return fit_others(rows, rows);
    }
    let mut points = Vec::new();
    for row in &fitted {
        points.push((span(row, &pass(row, 1.0))?.0, row.published.gpu.0.to_ms()));
    }
    let (stage, constant) = line(&points);
    let difference = |step: f64| -> Result<f64, Faults> {
        Ok(span(first, &stepped(first, stage, step))?.1 - span(last, &stepped(last, stage, step))?.1)
    };
    let wanted = first.published.iteration.0.to_ms() - last.published.iteration.0.to_ms();
    let tail = |row: &Row| row.published.iteration.0.to_ms() - row.published.gpu.0.to_ms();
    let most = first.published.iteration.0.to_ms();
    let (mut low, mut high) = (0.0, most);
    // Steps that all come after the backward add the same to every row: then the tail after the GPU
    // part is steps alone.
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
        rest += row.published.iteration.0.to_ms() - span(row, &stepped(row, stage, step))?.1 - constant;
    }
    Ok(Fit { stage, constant, step, rest: rest / fitted.len() as f64 })
}

fn predict(row: &Row, fit: &Fit) -> Result<(f64, f64), Faults> {
    let (gpu, iteration) = span(row, &stepped(row, fit.stage, fit.step))?;
    Ok((gpu + fit.constant, iteration + fit.constant + fit.rest))
}

/// The times of passes whose forward takes `stage` ms, without copies and steps.
fn pass(row: &Row, stage: f64) -> StreamedTimes {
    // A backward with its recompute takes about three forwards of the same layers.
    let backward = 3.0 * row.stages[0] as f64 / row.stages[1].max(1) as f64;
    StreamedTimes { forward: time(stage), backward: time(stage * backward), ..StreamedTimes::default() }
}

/// The same with optimizer steps of `step` ms.
fn stepped(row: &Row, stage: f64, step: f64) -> StreamedTimes {
    StreamedTimes { step: time(step), ..pass(row, stage) }
}

fn too_few(rows: &[&Row]) -> Faults {
    let name = rows.first().map_or_else(String::new, |row| format!("{}, {}", row.model, row.system));
    Diagnostic::error(format!("rows of `{name}` cannot be fitted: two with different microbatches are needed"))
        .hint("mark two of them with use = \"fit\"")
        .into()
}

#[cfg(test)]
mod tests {
    use super::optimizer_rate;

    #[test]
    fn rates_that_rows_do_not_determine_are_not_printed() {
        assert_eq!(optimizer_rate(2.5), "2.50 Gparam/s");
        for rate in [69_231_830_520.78, f64::INFINITY, f64::NAN, -3.0, 0.0] {
            assert!(optimizer_rate(rate).contains("do not determine"), "{rate}");
        }
    }
}
