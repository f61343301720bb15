//! Committed measured runs: the constants of the shipped runtime `megatron` from the rows that it
//! names, and what runs held and took.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/run.rs"]
mod run;

use run::spipe;
use serde_json::Value;
use std::{fs, path::Path, path::PathBuf};

/// The tables of the committed runs of a group, with their names. Models, machines and runtimes are
/// named by their paths where they are not shipped.
fn rows(group: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spipe-reproduce/data/runs").canonicalize().unwrap();
    let text = fs::read_to_string(folder.join(format!("{group}.toml"))).unwrap();
    let placed = |line: &str| -> String {
        let path = |kind: &str| -> Option<PathBuf> {
            let name = line.split('"').nth(1)?;
            Some(folder.join(kind).join(format!("{name}.toml"))).filter(|path| path.is_file())
        };
        let kinds = [("model", "models"), ("hardware", "machines"), ("runtime", "runtimes")];
        let found = kinds.iter().find_map(|(key, kind)| line.starts_with(key).then(|| Some((key, path(kind)?)))?);
        found.map_or_else(|| line.to_owned(), |(key, path)| format!("{key} = \"{}\"", path.display()))
    };
    let named = |table: &str| {
        let name = table.split('"').nth(1).unwrap().to_owned();
        let lines: Vec<String> = table.lines().map(placed).collect();
        (name, format!("[[run]]\n{}\n", lines.join("\n")))
    };
    text.split("[[run]]").skip(1).map(named).collect()
}

/// The report of a fit of `constants` on these tables.
fn fitted(tables: &[String], constants: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.toml");
    let head = format!("format-version = 1\nsource = \"test\"\nconstants = [{constants}]\n");
    fs::write(&path, head + &tables.concat()).unwrap();
    let words = ["fit", path.to_str().unwrap(), "--hardware", "a100-80g-x8-nvlink", "--format", "json"];
    let output = spipe(".", &words);
    assert_eq!(output.code, Some(0), "{}", output.err);
    serde_json::from_str(&output.out).unwrap()
}

#[test]
fn the_megatron_runtime_follows_from_its_rows() {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hardware-profiles/runtimes/megatron.toml");
    let runtime: toml::Table = fs::read_to_string(runtime).unwrap().parse().unwrap();
    let names = runtime["fitted-from"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    let all = [rows("megatron-pipeline"), rows("megatron-tensor-data")].concat();
    let named = |name: &str| all.iter().find(|(known, _)| known == name).unwrap().1.replace("\"predict\"", "\"fit\"");
    let tables: Vec<String> = names.map(named).collect();
    assert!(tables.len() <= 10);
    let report = fitted(&tables, "\"product-efficiency\", \"host-launch\"");
    for constant in ["product-efficiency", "host-launch"] {
        let [fitted, shipped] = ["fitted", "start"].map(|part| report[part][constant].as_f64().unwrap());
        assert!((fitted / shipped - 1.0).abs() < 0.02, "{constant}: {fitted}, shipped {shipped}");
    }
}

/// ZeRO-3 with the optimizer on the CPU: its rate is fitted on one run. A B200 is as much faster than
/// an H200 as was measured, at each length, within 15 %.
#[test]
fn offloaded_runs_are_predicted_from_one() {
    let tables: Vec<String> = rows("llama-offload").into_iter().map(|(_, table)| table).collect();
    let report = fitted(&tables, "\"optimizer-efficiency\"");
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 6);
    peaks_are_within(runs, 0.15, 0.10);
    for pair in runs.chunks(2) {
        let ratio = |key: &str| pair[0][key].as_f64().unwrap() / pair[1][key].as_f64().unwrap();
        let [ours, measured] = ["predicted-ms", "measured-ms"].map(ratio);
        assert!((ours / measured - 1.0).abs() < 0.15, "{}: {ours}, measured {measured}", pair[1]["name"]);
    }
}

/// BERT on three GPUs of three kinds, as nvidia-smi showed them.
#[test]
fn data_parallel_runs_hold_what_was_measured() {
    let with_peak = |(_, table): (String, String)| table.contains("peak").then_some(table);
    let tables: Vec<String> = rows("bert-large").into_iter().filter_map(with_peak).collect();
    let tables: Vec<String> = tables.iter().map(|table| table.replace("\"predict\"", "\"fit\"")).collect();
    let report = fitted(&tables, "\"product-efficiency\"");
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    peaks_are_within(runs, 0.15, 0.10);
}

/// Each peak within `each` of the measured one, and within `mean` on average.
fn peaks_are_within(runs: &[Value], each: f64, mean: f64) {
    let mut errors = Vec::new();
    for run in runs {
        let peak = &run["peaks"]["gpu0"];
        let error = peak["predicted-bytes"].as_f64().unwrap() / peak["measured-bytes"].as_f64().unwrap() - 1.0;
        assert!(error.abs() < each, "{}: {error:+.3}", run["name"]);
        errors.push(error.abs());
    }
    let average = errors.iter().sum::<f64>() / errors.len() as f64;
    assert!(average < mean, "{average}");
}
