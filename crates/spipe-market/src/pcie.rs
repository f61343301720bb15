//! PCIe connectors and their rates.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use spipe_base::BytesPerSecond;

/// A PCIe connector.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PcieFile {
    /// The generation, 1 to 6.
    pub generation: u32,
    /// The lanes.
    pub lanes: u32,
}

/// The share of the raw rate that pinned copies reach: estimate, 25 of the 31.5 GB/s of PCIe 4.0 x16.
const REACHED: f64 = 0.8;

/// Returns the raw rate in each direction: 0.985 GB/s per lane in generation 3 (8 GT/s with 128b/130b
/// coding), and a factor of two for each generation from there.
pub fn raw(connector: PcieFile) -> BytesPerSecond {
    let steps = connector.generation as i32 - 3;
    BytesPerSecond::gb(0.985 * 2f64.powi(steps) * f64::from(connector.lanes.max(1)))
}

/// Returns the rate that pinned copies reach.
pub fn reached(connector: PcieFile) -> BytesPerSecond {
    raw(connector) * REACHED
}
