//! The outputs of a run, built from the results of its microbatches.

use super::AllResults;
use crate::{data::Microbatch, report::Outputs};
use std::time::Duration;

impl Outputs {
    /// The outputs for `count` images, in the order in which they were read.
    pub(crate) fn images(found: &AllResults, count: usize) -> Self {
        let iterations = found.values().map(|found| found.rows.len()).max().unwrap_or(0);
        let of = |iteration: usize| found.values().filter_map(move |found| found.rows.get(iteration));
        let rows: Vec<f32> = (0..iterations).flat_map(of).flatten().copied().collect();
        Self::Images { width: rows.len() / count.max(1), rows }
    }

    /// Prompts and the tokens that follow them.
    pub(crate) fn tokens(found: &AllResults, prompts: &[Microbatch], durations: &[Duration]) -> Self {
        let sequences = prompts.iter().filter_map(|batch| match batch {
            Microbatch::Tokens(batch) => Some(batch.inputs.chunks(batch.seq_len.max(1)).map(<[i32]>::to_vec)),
            Microbatch::Images(_) => None,
        });
        let follows = found.values().flat_map(|found| {
            let count = found.tokens.first().map_or(0, Vec::len);
            (0..count).map(|sequence| found.tokens.iter().map(|tokens| tokens[sequence]).collect())
        });
        let mut durations = durations.to_vec();
        durations.sort_unstable();
        let per_token = durations.get(durations.len() / 2).copied();
        Self::Tokens { prompts: sequences.flatten().collect(), tokens: follows.collect(), per_token }
    }
}
