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
    let mut errors: Vec<f64> =
        runs.iter().filter(counts).filter_map(|run| run["error"].as_f64()).map(f64::abs).collect();
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

/// The spans of one GPU of a plan under FSDP, with these words in the runtime of the plan in place of others.
fn spans((old, new): (&str, &str)) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let plan = "plan --model llama2-7b --hardware a100-80g-x8-nvlink --runtime pytorch --system fsdp --global-batch 8 --microbatch 1 \
                --effort low --pin save=1..32 -o p.json";
    let planned = spipe(folder.path(), plan);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    let text = fs::read_to_string(folder.path().join("p.json")).unwrap();
    assert!(text.contains(old), "{old}");
    fs::write(folder.path().join("q.json"), text.replace(old, new)).unwrap();
    let simulated = spipe(folder.path(), "simulate q.json -o t.json");
    assert_eq!(simulated.code, Some(0), "{}", simulated.err);
    let trace: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("t.json")).unwrap()).unwrap();
    let lanes = trace["lanes"].as_array().unwrap();
    let of_first =
        |span: &&Value| lanes[span["lane"].as_u64().unwrap() as usize]["name"].as_str().unwrap().starts_with("gpu0");
    trace["spans"].as_array().unwrap().iter().filter(of_first).cloned().collect()
}

/// The times at which spans of this kind begin or end, by stage.
fn times(spans: &[Value], kind: &str, end: &str) -> Vec<(u64, u64)> {
    let found = spans.iter().filter(|span| span["kind"] == kind);
    found.map(|span| (span["subject"]["stage"].as_u64().unwrap(), span[end].as_u64().unwrap())).collect()
}

#[test]
fn gathers_wait_for_gradients_where_the_runtime_prefetches_after_them() {
    // The gathers of backwards that begin beside the backward of the stage behind.
    let early = |words: (&str, &str)| {
        let spans = spans(words);
        let backwards = times(&spans, "backward", "end-ns");
        let gathers = times(&spans, "all-gather", "start-ns");
        let first = times(&spans, "backward", "start-ns").iter().map(|(_, start)| *start).min().unwrap();
        let behind = |stage: u64| backwards.iter().find(|(other, _)| *other == stage + 1).map(|(_, end)| *end);
        let early = |(stage, start): &&(u64, u64)| *start >= first && behind(*stage).is_some_and(|end| *start < end);
        gathers.iter().filter(early).count()
    };
    // The runtime of a plan is TOML in a string of JSON.
    let measured = r#"collectives = \"measured\""#;
    let after = format!(r#"{measured}\nbackward-prefetch = \"post\""#);
    assert!(early((measured, measured)) > 10);
    assert_eq!(early((measured, &after)), 0);
}

#[test]
fn computation_beside_collectives_takes_longer_by_the_stated_share_at_most() {
    let durations = |share: &str| -> Vec<u64> {
        let spans = spans(("beside-collectives = 0.714", &format!("beside-collectives = {share}")));
        let ends = times(&spans, "backward", "end-ns").into_iter();
        ends.zip(times(&spans, "backward", "start-ns")).map(|((_, end), (_, start))| end - start).collect()
    };
    let (alone, beside) = (durations("1.0"), durations("0.5"));
    assert_eq!(alone.len(), beside.len());
    // Two nanoseconds are those of rounding.
    assert!(alone.iter().zip(&beside).all(|(alone, beside)| alone <= beside && *beside <= 2 * alone + 2));
    assert!(alone.iter().zip(&beside).filter(|(alone, beside)| alone < beside).count() > 10);
}
