//! The errors of groups that are only predicted: of the runs that count, by source.

use super::Made;
use spipe_base::{
    Bytes,
    readable::{percent, signed_percent},
};
use spipe_fit::Outcome;

/// The errors of the counted runs of a group, as fractions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// The runs with a measured time.
    pub runs: usize,
    /// The median of the absolute errors of their times.
    pub median: f64,
    /// The share of the runs within 30 %.
    pub within: f64,
    /// The runs with a measured peak.
    pub peaks: usize,
    /// The mean of the absolute errors of their peaks.
    pub peak_error: f64,
}

/// The largest error of a time that is near enough.
const NEAR: f64 = 0.30;

impl Counted {
    /// Returns the errors of the counted runs among these.
    pub fn of<'a>(runs: impl Iterator<Item = &'a Outcome>) -> Self {
        let (mut times, mut peaks) = (Vec::new(), Vec::new());
        for run in runs.filter(|run| run.not_counted.is_none()) {
            times.extend(run.error().map(f64::abs));
            peaks.extend(run.peaks.iter().map(|(_, measured, predicted)| error(*measured, *predicted).abs()));
        }
        times.sort_by(f64::total_cmp);
        let middle = times.get(times.len() / 2).zip(times.get(times.len().saturating_sub(1) / 2));
        let share = |part: usize, all: usize| part as f64 / all.max(1) as f64;
        Self {
            runs: times.len(),
            median: middle.map_or(0.0, |(upper, lower)| f64::midpoint(*upper, *lower)),
            within: share(times.iter().filter(|error| **error <= NEAR).count(), times.len()),
            peaks: peaks.len(),
            peak_error: peaks.iter().sum::<f64>() / peaks.len().max(1) as f64,
        }
    }
}

fn error(measured: Bytes, predicted: Bytes) -> f64 {
    predicted.as_f64() / measured.as_f64().max(1.0) - 1.0
}

/// Returns the section of the page: a line for each group that is only predicted.
pub fn section(groups: &[Made]) -> String {
    let mut text = String::from(HEAD);
    let unfitted: Vec<&Made> = groups.iter().filter(|made| !made.is_fitted()).collect();
    for made in &unfitted {
        text += &line(&format!("{} ([runs](#{}))", made.name, made.name), &[made]);
    }
    text + &line("all", &unfitted)
}

fn line(name: &str, groups: &[&Made]) -> String {
    let counted = Counted::of(groups.iter().flat_map(|made| &made.shipped));
    let or_none = |count: usize, text: String| if count == 0 { "–".into() } else { text };
    let left_out = || groups.iter().flat_map(|made| &made.fitted.left_out);
    let short = left_out().filter(|run| run.as_measured).count();
    let ran = groups.iter().flat_map(|made| &made.shipped).filter(|run| run.out_of_memory).count();
    let others = groups.iter().flat_map(|made| &made.shipped).filter(|run| run.not_counted.is_some()).count();
    let unplanned = left_out().filter(|run| !run.as_measured).count();
    format!(
        "| {name} | {} | {} | {} | {} | {} | {} |\n",
        counted.runs,
        or_none(counted.runs, percent(counted.median)),
        or_none(counted.runs, percent(counted.within)),
        or_none(counted.peaks, format!("{} ({})", percent(counted.peak_error), counted.peaks)),
        or_none(short + ran, format!("{short} of {}", short + ran)),
        or_none(others + unplanned, format!("{others} predicted, {unplanned} not")),
    )
}

/// Returns the table of the runs of a group.
pub fn table(made: &Made) -> String {
    let mut text = String::from(
        "| run | measured, ms | predicted, ms | error | peak: measured, predicted | not counted because |\n|---|---:|---:|---:|---|---|\n",
    );
    for run in &made.shipped {
        let peak = |(_, measured, predicted): &(String, Bytes, Bytes)| {
            format!("{measured}, {predicted} ({})", signed_percent(error(*measured, *predicted)))
        };
        let measured = run.measured.map(|time| format!("{:.1}", time.to_ms()));
        text += &format!(
            "| {} | {} | {:.1} | {} | {} | {} |\n",
            run.name,
            measured.unwrap_or_else(|| if run.out_of_memory { "out of memory" } else { "–" }.into()),
            run.predicted.to_ms(),
            run.error().map_or_else(|| "–".into(), signed_percent),
            run.peaks.iter().map(peak).collect::<Vec<_>>().join("; "),
            run.not_counted.as_deref().unwrap_or_default(),
        );
    }
    for run in &made.fitted.left_out {
        let (measured, why) = if run.as_measured { ("out of memory", "") } else { ("", run.reason.as_str()) };
        let predicted = if run.as_measured { format!("refused: {}", run.reason) } else { "not planned".into() };
        text += &format!("| {} | {measured} | {predicted} | – |  | {why} |\n", run.name);
    }
    text
}

/// The beginning of the section.
const HEAD: &str = "\n<a id=\"counted\"></a>\n## Runs that are only predicted\n\nBy source, without any fit. Runs count that state what they recompute, their batch and microbatch, \
                    in 16 bits on at least eight GPUs; the others are listed with their reason. Peaks are of the quantity that the source names.\n\n\
                    | group | counted runs | median error | within 30 % | peaks: mean error (runs) | out of memory: refused | not counted |\n\
                    |---|---:|---:|---:|---:|---:|---|\n";

#[cfg(test)]
mod tests {
    use super::*;
    use spipe_base::Seconds;
    use spipe_fit::{Class, Usage};

    fn run(predicted: f64, peak: u64, not_counted: Option<&str>) -> Outcome {
        Outcome {
            name: "one".into(),
            usage: Usage::Predict,
            class: Class::OneGpu,
            measured: Some(Seconds::s(10.0)),
            predicted: Seconds::s(predicted),
            peaks: vec![("gpus".into(), Bytes::gib(10), Bytes::gib(peak))],
            not_counted: not_counted.map(Into::into),
            out_of_memory: false,
        }
    }

    #[test]
    fn runs_that_do_not_count_are_beside_the_errors() {
        let runs = [run(11.0, 9, None), run(6.0, 12, None), run(12.9, 10, None), run(99.0, 99, Some("fp8"))];
        let counted = Counted::of(runs.iter());
        assert_eq!((counted.runs, counted.peaks), (3, 3));
        for (figure, wanted) in [(counted.median, 0.29), (counted.within, 2.0 / 3.0), (counted.peak_error, 0.1)] {
            assert!((figure - wanted).abs() < 1e-9, "{figure}, not {wanted}");
        }
        let two = Counted::of(runs[..2].iter());
        assert!((two.median - 0.25).abs() < 1e-9);
    }
}
