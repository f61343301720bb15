//! The constants of the shipped runtime `megatron`, fitted again from the rows that it names.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::{fs, path::Path, process::Command};

/// The tables of the committed runs of a group, with their names.
fn rows(group: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spipe-reproduce/data/runs").canonicalize().unwrap();
    let text = fs::read_to_string(folder.join(format!("{group}.toml"))).unwrap();
    let model = format!("model = \"{}/models/", folder.display());
    let named = |table: &str| {
        let name = table.split('"').nth(1).unwrap().to_owned();
        let table = table.replace("\"predict\"", "\"fit\"").replace("model = \"", &model);
        let shape = table.lines().find(|line| line.starts_with("model")).unwrap();
        let file = format!("{}.toml\"", shape.trim_end_matches('"'));
        (name, format!("[[run]]{}", table.replace(shape, &file)))
    };
    text.split("[[run]]").skip(1).map(named).collect()
}

#[test]
fn the_megatron_runtime_follows_from_its_rows() {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hardware-profiles/runtimes/megatron.toml");
    let runtime: toml::Table = fs::read_to_string(runtime).unwrap().parse().unwrap();
    let names: Vec<&str> = runtime["fitted-from"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(names.len() <= 10);
    let all = [rows("megatron-pipeline"), rows("megatron-tensor-data")].concat();
    let tables: Vec<&str> = names
        .iter()
        .map(|name| all.iter().find(|(known, _)| known == name).unwrap().1.as_str())
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.toml");
    let head = "format-version = 1\nsource = \"test\"\nconstants = [\"product-efficiency\", \"host-launch\"]\n";
    fs::write(&path, format!("{head}{}", tables.concat())).unwrap();
    let words = ["fit", path.to_str().unwrap(), "--hardware", "a100-80g-x8-nvlink", "--format", "json"];
    let output = Command::new(env!("CARGO_BIN_EXE_spipe")).args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for constant in ["product-efficiency", "host-launch"] {
        let [fitted, shipped] = ["fitted", "start"].map(|part| report[part][constant].as_f64().unwrap());
        assert!((fitted / shipped - 1.0).abs() < 0.02, "{constant}: {fitted}, shipped {shipped}");
    }
}
