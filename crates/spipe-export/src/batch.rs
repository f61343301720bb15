//! The batch of an iteration, as the scripts read it.

use serde::Serialize;
use spipe_cost::Workload;

/// Microbatches and sequences of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Batch {
    /// The sequences of a microbatch.
    microbatch: u64,
    /// The microbatches of an iteration.
    microbatches: u64,
    /// The sequences of an iteration.
    sequences: u64,
    /// The tokens of a sequence.
    seq_len: u64,
}

impl Batch {
    /// The batch of a workload.
    pub fn of(workload: &Workload) -> Self {
        Self {
            microbatch: workload.microbatch,
            microbatches: workload.microbatches,
            sequences: workload.global_batch(),
            seq_len: workload.seq_len,
        }
    }
}
