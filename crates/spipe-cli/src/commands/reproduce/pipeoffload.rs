//! The ratio k of PipeOffload: how long an activation travels over how long its layer computes.

use super::{
    rows::{Rows, above_zero},
    table::{Cell, Reproduction},
};
use crate::Failure;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Ratio {
    hidden: u64,
    seq_len: u64,
    /// FLOP per byte.
    rate_ratio: f64,
    published: f64,
}

pub fn make(file: &str, text: &str) -> Result<Reproduction, Failure> {
    let rows = Rows::<Ratio>::read(file, text)?;
    let cells = rows.each(|row| {
        above_zero("ratio", row.published)?;
        above_zero("hidden size", row.hidden as f64)?;
        let ours = 10.0 / (3.0 * (6 * row.hidden + row.seq_len) as f64) * row.rate_ratio;
        let cell = Cell::relative(format!("h {}", row.hidden), format!("s {}", row.seq_len), row.published, ours);
        Ok(cell.at("", format!("{} tokens", row.seq_len), Some(row.hidden as f64)))
    })?;
    Ok(Reproduction::new(&rows.source, "Ratios; errors are relative.", cells))
}
