//! The page of measured runs, and its plots.

use super::{Made, choice, counted};
use spipe_base::{
    Bytes,
    readable::{percent, signed_percent},
};
use spipe_fit::{Errors, Fitted, Outcome, Usage, meaning, shown};
use spipe_timeline::{Axis, Plot, Scale, Series};

/// The relative width of the band in plots.
const BAND: f64 = 0.10;

/// The beginning of the page.
const HEAD: &str = "# Measured runs beside predictions\n\nMade by `spipe reproduce runs`. Each group of the first table has runs on which constants of its runtime are \
                    fitted, and runs that are only predicted; [those of other engines](#counted) are all predicted without a fit. Errors are (predicted − measured) ÷ measured; the shipped column is without any \
                    fit. Groups of a baseline are predicted by the closed form of tensor and data parallelism, all others by simulated plans. The rows are \
                    in `crates/spipe-reproduce/data/runs`.\n";

/// Returns the page.
pub fn markdown(groups: &[Made]) -> String {
    let mut text = String::from(HEAD);
    text += "\n| group | runs | shipped: mean (largest) | fitted runs: mean (largest) | predicted runs: mean (largest) |\n|---|---:|---:|---:|---:|\n";
    for made in groups.iter().filter(|made| made.is_fitted()) {
        text += &format!(
            "| [{}](#{}) | {} | {} | {} | {} |\n",
            made.name,
            made.name,
            made.shipped.len(),
            summary(made.shipped_errors(None)),
            summary(made.fitted.errors(Usage::Fit, None)),
            summary(made.fitted.errors(Usage::Predict, None)),
        );
    }
    text += &counted::section(groups);
    text += &choice::section(groups);
    for made in groups {
        text += &section(made);
    }
    text
}

fn summary(errors: Errors) -> String {
    if errors.count == 0 {
        return "–".into();
    }
    format!("{} ({})", percent(errors.mean_absolute), percent(errors.largest))
}

fn section(made: &Made) -> String {
    let mut text = format!("\n<a id=\"{}\"></a>\n## {}\n\n", made.name, made.title);
    text += &format!("Source: {}. Runtime `{}`.\n\n", made.sources.join("; "), made.runtime);
    text += &format!("![measured and predicted](runs-{}.svg)\n\n", made.name);
    if !made.is_fitted() {
        return text + &counted::table(made);
    }
    text += "| constant | meaning | shipped | fitted |\n|---|---|---:|---:|\n";
    for one in &made.fitted.constants {
        let value = one.value.map_or_else(|| "undetermined".into(), |value| shown(one.constant, value));
        text += &format!(
            "| {} | {} | {} | {value} |\n",
            one.constant.name(),
            meaning(one.constant),
            shown(one.constant, one.start)
        );
    }
    text += "\n| run | use | measured, ms | shipped, ms | error | fitted, ms | error | peak: measured, predicted |\n|---|---|---:|---:|---:|---:|---:|---|\n";
    for (shipped, fitted) in made.shipped.iter().zip(&made.fitted.runs) {
        text += &row(shipped, fitted);
    }
    for run in &made.fitted.left_out {
        text += &format!("\n{}.\n", run.remark());
    }
    text
}

fn row(shipped: &Outcome, fitted: &Outcome) -> String {
    let usage = if fitted.usage == Usage::Fit { "fit" } else { "predict" };
    let ms = |run: &Outcome| format!("{:.1}", run.predicted.to_ms());
    let error = |run: &Outcome| run.error().map_or_else(|| "–".into(), signed_percent);
    format!(
        "| {} | {usage} | {} | {} | {} | {} | {} | {} |\n",
        fitted.name,
        fitted.measured.map_or_else(|| "–".into(), |time| format!("{:.1}", time.to_ms())),
        ms(shipped),
        error(shipped),
        ms(fitted),
        error(fitted),
        peaks(fitted),
    )
}

fn peaks(run: &Outcome) -> String {
    let peak = |(memory, measured, predicted): &(String, Bytes, Bytes)| {
        let error = predicted.as_f64() / measured.as_f64().max(1.0) - 1.0;
        format!("{memory} {measured}, {predicted} ({})", signed_percent(error))
    };
    run.peaks.iter().map(peak).collect::<Vec<_>>().join("; ")
}

/// Returns a plot of measured and predicted iteration times, with a band of 10 %.
pub fn scatter(title: &str, fitted: &Fitted) -> Plot {
    let points = |wanted: &dyn Fn(&Outcome) -> bool| -> Vec<(f64, f64)> {
        let runs = fitted.runs.iter().filter(|run| wanted(run));
        runs.filter_map(|run| Some((run.measured?.to_ms(), run.predicted.to_ms()))).collect()
    };
    let of = |usage: Usage| points(&|run| run.usage == usage && run.not_counted.is_none());
    let (fit, predict, others) = (of(Usage::Fit), of(Usage::Predict), points(&|run| run.not_counted.is_some()));
    let all = || fit.iter().chain(&predict).chain(&others).map(|(measured, _)| *measured);
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let edge = |factor: f64| vec![(least, least * factor), (most, most * factor)];
    let note = |what: &str, usage: Usage| {
        let errors = fitted.errors(usage, None);
        (errors.count > 0).then(|| {
            let (mean, largest) = (percent(errors.mean_absolute), percent(errors.largest));
            format!("{what}: {} runs, mean error {mean}, largest {largest}", errors.count)
        })
    };
    let axis = |label: &str| Axis { label: label.into(), scale: Scale::Logarithmic };
    let points_of = |name: &str, points: Vec<(f64, f64)>| Series { name: name.into(), line: Vec::new(), points };
    let edge_of = |name: &str, factor| Series { name: name.into(), line: edge(factor), points: Vec::new() };
    let mut series: Vec<Series> =
        [("fitted runs", &fit), ("predicted runs", &predict), ("predicted, not counted", &others)]
            .into_iter()
            .filter(|(_, points)| !points.is_empty())
            .map(|(name, points)| points_of(name, points.clone()))
            .collect();
    if least.is_finite() {
        series.extend([edge_of("10 % slower", 1.0 + BAND), edge_of("10 % faster", 1.0 - BAND)]);
    }
    Plot {
        title: title.into(),
        notes: [note("fitted", Usage::Fit), note("predicted", Usage::Predict)].into_iter().flatten().collect(),
        x: axis("measured iteration, ms"),
        y: axis("predicted iteration, ms"),
        series,
        diagonal: Some("predicted as measured".into()),
        ..Plot::default()
    }
}
