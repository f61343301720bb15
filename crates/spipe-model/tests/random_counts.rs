//! Random configurations count as `transformers` and `diffusers` count them.
//!
//! `python/parameter_counts.py` made the table; its first line names their versions.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use spipe_model::Model;
use std::collections::BTreeMap;

const TABLE: &str = include_str!("fixtures/parameter-counts.json");

/// The rows: a type, a config with its type, and its count.
fn rows() -> Vec<(String, String, u64)> {
    let table: Vec<Value> = serde_json::from_str(TABLE).unwrap();
    let row = |row: &Value| {
        let kind = row[0].as_str().unwrap();
        let mut config = row[1].clone();
        let key =
            if kind.starts_with(|letter: char| letter.is_ascii_uppercase()) { "_class_name" } else { "model_type" };
        config[key] = kind.into();
        (kind.to_owned(), config.to_string(), row[2].as_u64().unwrap())
    };
    table[1..].iter().map(row).collect()
}

#[test]
fn random_configurations_count_exactly() {
    let rows = rows();
    assert!(rows.len() >= 340, "{} rows", rows.len());
    let mut wrong = BTreeMap::new();
    for (kind, config, parameters) in &rows {
        let found = Model::from_hugging_face("config.json", config).map(|imported| imported.model.parameters());
        if found.as_ref().ok() != Some(parameters) {
            let all: &mut Vec<String> = wrong.entry(kind).or_default();
            let found = found.map_or_else(|faults| faults.to_string(), |found| found.to_string());
            all.push(format!("{config}: {parameters}, found {found}"));
        }
    }
    let said = wrong.iter().map(|(kind, all)| format!("{kind}: {} wrong, such as {}", all.len(), all[0]));
    assert!(wrong.is_empty(), "{}", said.collect::<Vec<_>>().join("\n"));
}

/// A model file keeps all that counts: sizes, and the work of each layer.
#[test]
fn random_configurations_read_back() {
    for (_, config, _) in rows() {
        let model = Model::from_hugging_face("config.json", &config).unwrap().model;
        let text = model.to_toml();
        assert_eq!(Model::from_toml("m.toml", &text).as_ref(), Ok(&model), "{config}\n{text}");
    }
}
