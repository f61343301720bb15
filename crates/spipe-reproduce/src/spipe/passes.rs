//! Rows of SPipe and Mobius, and their simulated passes.

use crate::rows::{self, Usage};
use serde::Deserialize;
use spipe_base::{ActionKind, BytesPerSecond, Diagnostic, Faults, Seconds, SimTime, Text};
use spipe_schedule::{StreamedTimes, bare_streamed};
use spipe_sim::{Iterations, Options, simulate};

/// Bytes of a 16-bit number.
pub const HALF: f64 = 2.0;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Measured {
    pub model: String,
    pub system: String,
    pub devices: usize,
    pub microbatches: usize,
    /// Forward and backward stages per device.
    pub stages: [usize; 2],
    /// The parameters that one device's optimizer updates.
    pub parameters: u64,
    #[serde(default)]
    pub shape: Option<Shape>,
    /// Whether cards copy to each other directly, as in machine files; true if absent.
    #[serde(default = "direct")]
    pub peer_access: bool,
    /// The rate of a copy, where it is known from elsewhere.
    #[serde(default)]
    pub link: Option<Text<BytesPerSecond>>,
    #[serde(rename = "use")]
    pub usage: Usage,
    pub published: PublishedPasses,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PublishedPasses {
    pub iteration: Text<Seconds>,
    pub gpu: Text<Seconds>,
}

pub type Row = rows::Row<Measured>;

/// The shape of a model of equal blocks with SwiGLU, and its batch.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Shape {
    layers: u64,
    hidden: u64,
    feed_forward: u64,
    pub seq_len: u64,
    microbatch: u64,
}

/// Peer access where a row does not say.
const fn direct() -> bool {
    true
}

impl Shape {
    /// Whether none of its sizes is zero.
    pub const fn is_whole(&self) -> bool {
        self.layers > 0 && self.hidden > 0 && self.feed_forward > 0 && self.seq_len > 0 && self.microbatch > 0
    }

    /// The parameters of all blocks.
    pub fn parameters(&self) -> f64 {
        (self.layers * (4 * self.hidden * self.hidden + 3 * self.hidden * self.feed_forward)) as f64
    }

    /// FLOP of a forward through all layers: two for each parameter and token, and 4·s·h for each
    /// token's scores and their use (Narayanan et al. 2021, arXiv 2104.04473, appendix).
    pub fn work(&self) -> f64 {
        let tokens = (self.microbatch * self.seq_len) as f64;
        tokens * (2.0 * self.parameters() + 4.0 * (self.layers * self.seq_len * self.hidden) as f64)
    }

    /// The bytes between two stages.
    pub fn boundary(&self) -> f64 {
        HALF * (self.microbatch * self.seq_len * self.hidden) as f64
    }
}

/// Milliseconds, rounded to whole nanoseconds.
pub fn time(ms: f64) -> SimTime {
    SimTime::ns((ms * 1e6).round() as u64)
}

/// The simulated end of the last pass, in ms.
pub fn gpu_part(row: &Row, times: &StreamedTimes) -> Result<f64, Faults> {
    Ok(span(row, times)?.0)
}

/// The simulated end of the last pass and of the last step, in ms.
pub fn span(row: &Row, times: &StreamedTimes) -> Result<(f64, f64), Faults> {
    let decoupled = match row.system.as_str() {
        "spipe" => true,
        "mobius" => false,
        other => {
            let fault = Diagnostic::error(format!("no system of this table is called `{other}`"));
            return Err(fault.hint("use spipe or mobius").into());
        }
    };
    let name = (row.system.as_str(), decoupled);
    let program = bare_streamed(name, row.devices, row.microbatches, (row.stages[0], row.stages[1]), times)?;
    let options = Options { iterations: Iterations::One, ..Options::default() };
    let trace = simulate(&program, &options).trace;
    let passes = trace.spans.iter().filter(|span| matches!(span.kind, ActionKind::Forward | ActionKind::Backward));
    let gpu = passes.map(|span| span.end).max().unwrap_or_default();
    Ok((gpu.to_ms(), trace.iteration.to_ms()))
}
