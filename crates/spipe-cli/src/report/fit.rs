//! A fit: its constants, its runs, and their errors.

use crate::tables::table;
use spipe_base::{
    Bytes,
    readable::{percent, signed_percent},
};
use spipe_fit::{Class, Errors, Fitted, Outcome, Usage, meaning, shown, torch::Profile};

/// The tables of a fit. `output` is the file that the fitted profile was written to.
pub fn human(fitted: &Fitted, runtime: &str, output: Option<&str>) -> String {
    let mut text = format!("{}\n\n{}\n\n{}\n", runs(fitted), constants(fitted), errors(fitted));
    for run in &fitted.left_out {
        text += &format!("Run {}.\n", run.remark());
    }
    if let Some(path) = output {
        text += &format!("Profile written to {path}; its constants are used with `--runtime {runtime}`.\n");
    }
    text
}

const fn word(usage: Usage) -> &'static str {
    match usage {
        Usage::Fit => "fit",
        Usage::Predict => "predict",
    }
}

fn runs(fitted: &Fitted) -> String {
    let with_peaks = fitted.runs.iter().any(|run| !run.peaks.is_empty());
    let mut headings = vec!["run", "class", "use", "measured", "predicted", "error"];
    if with_peaks {
        headings.push("peaks: measured, predicted");
    }
    let mut rows = table(&headings, &[3, 4, 5]);
    for run in &fitted.runs {
        let measured = run.measured.map_or_else(|| "–".into(), |time| format!("{:.1} ms", time.to_ms()));
        let error = run.error().map_or_else(|| "–".into(), signed_percent);
        let mut row = vec![
            run.name.clone(),
            run.class.name().to_owned(),
            word(run.usage).to_owned(),
            measured,
            format!("{:.1} ms", run.predicted.to_ms()),
            error,
        ];
        if with_peaks {
            row.push(peaks(run));
        }
        rows.add_row(row);
    }
    rows.to_string()
}

fn peaks(run: &Outcome) -> String {
    let peak = |(memory, measured, predicted): &(String, Bytes, Bytes)| {
        let error = predicted.as_f64() / measured.as_f64().max(1.0) - 1.0;
        format!("{memory} {measured}, {predicted} ({})", signed_percent(error))
    };
    run.peaks.iter().map(peak).collect::<Vec<_>>().join("; ")
}

fn constants(fitted: &Fitted) -> String {
    let mut rows = table(&["constant", "meaning", "before", "fitted"], &[2, 3]);
    for one in &fitted.constants {
        let value = one.value.map_or_else(|| "undetermined".into(), |value| shown(one.constant, value));
        rows.add_row(vec![
            one.constant.name().to_owned(),
            meaning(one.constant).to_owned(),
            shown(one.constant, one.start),
            value,
        ]);
    }
    rows.to_string()
}

fn errors(fitted: &Fitted) -> String {
    let mut rows = table(&["runs", "count", "mean error", "bias", "largest"], &[1, 2, 3, 4]);
    for usage in [Usage::Fit, Usage::Predict] {
        let what = if usage == Usage::Fit { "fitted" } else { "predicted" };
        let classes =
            Class::ALL.into_iter().map(|class| (format!("{what}, {class}"), fitted.errors(usage, Some(class))));
        let of_class: Vec<(String, Errors)> = classes.filter(|(_, errors)| errors.count > 0).collect();
        let all = (what.to_owned(), fitted.errors(usage, None));
        let several = of_class.len() > 1;
        for (name, errors) in std::iter::once(all).chain(of_class.into_iter().filter(|_| several)) {
            if errors.count > 0 {
                rows.add_row(vec![
                    name,
                    errors.count.to_string(),
                    percent(errors.mean_absolute),
                    signed_percent(errors.bias),
                    percent(errors.largest),
                ]);
            }
        }
    }
    rows.to_string()
}

/// The kernel times of a trace.
pub fn kernels(profile: &Profile) -> String {
    let mut rows = table(&["layer", "pass", "kernels", "time"], &[2, 3]);
    for layer in &profile.layers {
        rows.add_row(vec![
            layer.name.clone(),
            layer.pass.name().to_owned(),
            layer.kernels.to_string(),
            format!("{:.3} ms", layer.kernel_ms),
        ]);
    }
    let mut kinds = table(&["kernels of", "kernels", "time"], &[1, 2]);
    for (kind, total) in &profile.kinds {
        kinds.add_row(vec![(*kind).to_owned(), total.kernels.to_string(), format!("{:.3} ms", total.kernel_ms)]);
    }
    let launch = profile.launch_us.map_or_else(String::new, |us| {
        format!(" A launch takes {us:.1} us of the host in the median, from one launch to the next.")
    });
    format!(
        "{rows}\n\n{kinds}\n\n{} kernels take {:.3} ms of {:.3} ms in {} iterations.{launch}\n",
        profile.kernels, profile.kernel_ms, profile.span_ms, profile.iterations
    )
}
