//! The batch of an iteration, as the scripts read it.

use serde::Serialize;
use spipe_plan::Context;

/// Microbatches and sequences of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Batch {
    /// The sequences of a microbatch.
    microbatch: u64,
    /// The microbatches of an iteration of one replica.
    microbatches: u64,
    /// The sequences of an iteration of all replicas.
    sequences: u64,
    /// The tokens of a sequence.
    seq_len: u64,
}

impl Batch {
    /// The batch of a plan.
    pub fn of(context: &Context<'_>) -> Self {
        let workload = context.workload();
        Self {
            microbatch: workload.microbatch,
            microbatches: workload.microbatches,
            sequences: context.cost.whole_workload().global_batch(),
            seq_len: workload.seq_len,
        }
    }
}
