//! Committed measured runs of other engines, which are only predicted: the errors of those that count, by source.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use serde_json::Value;
use std::fs;

/// The runs of a group with their predictions, those that are left out, and the page.
fn predicted(group: &str) -> (Vec<Value>, Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    let output = spipe(folder.path(), &format!("reproduce {group} -o out --format json"));
    assert_eq!(output.code, Some(0), "{}", output.err);
    let page = fs::read_to_string(folder.path().join(format!("out/runs-{group}.md"))).unwrap();
    let report: Value = serde_json::from_str(&output.out).unwrap();
    let list = |key: &str| report[0][key].as_array().unwrap().clone();
    (list("runs"), list("left-out"), page)
}

fn counts(run: &&Value) -> bool {
    run["not-counted"].is_null() && run["out-of-memory"].is_null()
}

/// The absolute errors of the times that count, ascending.
fn errors(runs: &[Value]) -> Vec<f64> {
    let mut errors: Vec<f64> = runs.iter().filter(counts).filter_map(|run| run["error"].as_f64()).map(f64::abs).collect();
    errors.sort_by(f64::total_cmp);
    errors
}

/// The mean absolute error of the peaks that count.
fn peak_error(runs: &[Value]) -> f64 {
    let peaks = runs.iter().filter(counts).flat_map(|run| run["peaks"].as_object().unwrap().values());
    let error = |peak: &Value| {
        let [predicted, measured] = ["predicted-bytes", "measured-bytes"].map(|key| peak[key].as_f64().unwrap());
        (predicted / measured - 1.0).abs()
    };
    let errors: Vec<f64> = peaks.map(error).collect();
    errors.iter().sum::<f64>() / errors.len() as f64
}

/// By group: the runs that count, and whether some of them state a peak.
const GROUPS: [(&str, usize, bool); 4] =
    [("bigscience", 12, true), ("llm-foundry", 6, false), ("fms-fsdp", 6, false), ("torchtitan", 2, true)];

#[test]
fn the_median_error_of_each_source_is_at_most_15_percent_and_eight_of_ten_are_within_30() {
    for (group, count, peaks) in GROUPS {
        let (runs, left_out, _) = predicted(group);
        let errors = errors(&runs);
        assert_eq!(errors.len(), count, "{group}");
        let median = f64::midpoint(errors[(count - 1) / 2], errors[count / 2]);
        assert!(median <= 0.15, "{group}: {errors:?}");
        let near = errors.iter().filter(|error| **error <= 0.30).count();
        assert!(near * 10 >= count * 8, "{group}: {errors:?}");
        assert!(!peaks || peak_error(&runs) <= 0.15, "{group}: {}", peak_error(&runs));
        // A run that is left out was out of memory, or does not count.
        assert!(left_out.iter().all(|run| !run["as-measured"].is_null() || !run["not-counted"].is_null()), "{group}");
    }
}

#[test]
fn a_run_that_was_out_of_memory_is_refused() {
    let (_, left_out, page) = predicted("bigscience");
    let refused = left_out.iter().find(|run| run["name"].as_str().unwrap().starts_with("M018")).unwrap();
    assert_eq!(refused["as-measured"], true);
    assert!(page.contains("| out of memory | refused: no placement fits"), "{page}");
}
