//! The time that a serial optimizer adds to an iteration: parameters over one rate per cluster.

use crate::{
    reproduction::{Cell, Reproduction},
    rows::{Row, Rows, Usage, above_zero},
    source::Source,
};
use serde::Deserialize;
use spipe_base::{Faults, Seconds, Text};
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Tail {
    cluster: String,
    model: String,
    parameters: u64,
    #[serde(rename = "use")]
    usage: Usage,
    published: Text<Seconds>,
}

impl Tail {
    /// Parameters per ms.
    fn rate(&self) -> f64 {
        self.parameters as f64 / self.published.0.to_ms()
    }
}

pub fn make(source: &Source<'_>) -> Result<Reproduction, Faults> {
    let read = Rows::<Tail>::read(source)?;
    read.each(|row| above_zero("time", row.published.0.get()))?;
    let mut clusters: BTreeMap<&str, Vec<&Row<Tail>>> = BTreeMap::new();
    for row in &read.rows {
        clusters.entry(&row.cluster).or_default().push(row);
    }
    let mut cells = Vec::new();
    for (cluster, rows) in clusters {
        let rates: Vec<f64> = rows.iter().filter(|row| row.usage == Usage::Fit).map(|row| row.rate()).collect();
        let (least, most) =
            rates.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), rate| (least.min(*rate), most.max(*rate)));
        if rates.is_empty() {
            let message = format!("no row of `{cluster}` is fitted");
            return Err(read.fault(rows[0], message, "mark one with use = \"fit\"").into());
        }
        // The error of a tail is its own rate over the common one: midway between the extremes,
        // both have the same error.
        let rate = f64::midpoint(least, most);
        for row in rows {
            let (published, ours) = (row.published.0.to_ms(), row.parameters as f64 / rate);
            let fitted = format!("one rate for {cluster}: {:.3} Gparam/s", rate / 1e6);
            let cell = Cell::relative(&row.model, format!("{cluster}, ms"), published, ours);
            cells.push(cell.fitted((row.usage == Usage::Fit).then_some(fitted)).at("", cluster, None));
        }
    }
    Ok(Reproduction::new(&read.source, "Milliseconds; errors are relative.", cells))
}
