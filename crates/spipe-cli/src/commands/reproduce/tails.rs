//! What a serial optimizer adds to an iteration: parameters over one rate per cluster.

use super::{Cell, FORMAT_VERSION, Reproduction, parse, spipe::Usage};
use crate::Failure;
use serde::Deserialize;
use spipe_base::{Diagnostic, Seconds, Text};
use std::collections::BTreeMap;

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
    cluster: String,
    model: String,
    parameters: u64,
    #[serde(rename = "use")]
    usage: Usage,
    published: Text<Seconds>,
}

impl Row {
    /// Parameters per ms.
    fn rate(&self) -> f64 {
        self.parameters as f64 / self.published.0.to_ms()
    }
}

pub fn make(file: &str, text: &str) -> Result<Reproduction, Failure> {
    let rows: File = parse(file, text)?;
    let mut clusters: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in &rows.row {
        clusters.entry(&row.cluster).or_default().push(row);
    }
    let mut cells = Vec::new();
    for (cluster, rows) in clusters {
        let rates: Vec<f64> = rows.iter().filter(|row| row.usage == Usage::Fit).map(|row| row.rate()).collect();
        let (least, most) =
            rates.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), rate| (least.min(*rate), most.max(*rate)));
        if rates.is_empty() {
            let fault = Diagnostic::error(format!("no row of `{cluster}` is fitted"));
            return Err(fault.hint("mark one with use = \"fit\"").into());
        }
        // A tail is off by its own rate over the common one: halfway between the extremes both are off by the same.
        let rate = f64::midpoint(least, most);
        for row in rows {
            let (published, ours) = (row.published.0.to_ms(), row.parameters as f64 / rate);
            let fitted = format!("one rate for {cluster}: {:.3} Gparam/s", rate / 1e6);
            cells.push(Cell {
                row: row.model.clone(),
                column: format!("{cluster}, ms"),
                published,
                ours,
                error: (ours - published) / published,
                fitted: (row.usage == Usage::Fit).then_some(fitted),
            });
        }
    }
    Ok(Reproduction {
        format_version: FORMAT_VERSION,
        table: "spipe-tails",
        source: rows.source,
        unit: "Milliseconds; errors are relative.",
        cells,
    })
}
