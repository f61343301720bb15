//! The gains from 10 % more of each resource.

use crate::tables::table;
use spipe_base::{Seconds, readable::signed_percent};
use spipe_plan::Gain;

/// A row for each resource.
pub fn human(gains: &[Gain]) -> String {
    let mut rows = table(&["10 % more of", "iteration", "tokens per second"], &[1, 2]);
    for gain in gains {
        let name = match gain.resource.as_str() {
            "vram" => "GPU memory",
            "dram" => "DRAM",
            "dram-bandwidth" => "bandwidth of DRAM",
            "pcie" => "bandwidth of links",
            _ => "arithmetic",
        };
        rows.add_row(vec![
            name.into(),
            format!("{:.3}", Seconds::new(gain.iteration_ms / 1e3).unwrap_or(Seconds::ZERO)),
            signed_percent(gain.speedup - 1.0),
        ]);
    }
    format!("{rows}\n")
}
