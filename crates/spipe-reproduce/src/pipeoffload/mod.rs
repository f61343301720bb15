//! PipeOffload: the ratio k, the time to offload and reload the activations of a layer over the
//! time to compute it.

pub mod peaks;
pub mod runs;
mod schedules;
pub mod tensor;

use crate::{
    reproduction::{Cell, Reproduction},
    rows::{Rows, above_zero},
    source::Source,
};
use serde::Deserialize;
use spipe_base::Faults;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Ratio {
    hidden: u64,
    seq_len: u64,
    /// The arithmetic rate over the copy rate, in FLOP per byte.
    rate_ratio: f64,
    published: f64,
}

pub fn make(source: &Source<'_>) -> Result<Reproduction, Faults> {
    let rows = Rows::<Ratio>::read(source)?;
    let cells = rows.each(|row| {
        above_zero("ratio", row.published)?;
        above_zero("hidden size", row.hidden as f64)?;
        let ours = 10.0 / (3.0 * (6 * row.hidden + row.seq_len) as f64) * row.rate_ratio;
        let cell = Cell::relative(format!("h {}", row.hidden), format!("s {}", row.seq_len), row.published, ours);
        Ok(cell.at("", format!("{} tokens", row.seq_len), Some(row.hidden as f64)))
    })?;
    Ok(Reproduction::new(&rows.source, "Ratios; errors are relative.", cells))
}
