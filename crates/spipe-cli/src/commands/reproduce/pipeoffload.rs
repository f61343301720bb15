//! The ratio k of PipeOffload: how long an activation travels over how long its layer computes.

use super::{Cell, FORMAT_VERSION, Reproduction, parse};
use crate::Failure;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    #[serde(rename = "format-version")]
    _format_version: u32,
    source: String,
    row: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Row {
    hidden: u64,
    seq_len: u64,
    /// FLOP per byte.
    rate_ratio: f64,
    published: f64,
}

pub fn make(file: &str, text: &str) -> Result<Reproduction, Failure> {
    let rows: File = parse(file, text)?;
    let cell = |row: &Row| {
        let ours = 10.0 / (3.0 * (6 * row.hidden + row.seq_len) as f64) * row.rate_ratio;
        Cell {
            row: format!("h {}", row.hidden),
            column: format!("s {}", row.seq_len),
            published: row.published,
            ours,
            error: (ours - row.published) / row.published,
            fitted: None,
        }
    };
    Ok(Reproduction {
        format_version: FORMAT_VERSION,
        table: "pipeoffload",
        source: rows.source,
        unit: "Ratios; errors are relative.",
        cells: rows.row.iter().map(cell).collect(),
    })
}
