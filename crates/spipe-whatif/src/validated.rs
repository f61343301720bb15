//! The range in which predictions were compared with measured trainings (`reports/reproductions/runs.md`).

use crate::{Candidate, Job};

/// GPUs on which trainings were measured, by the beginning of their names.
const MEASURED: [&str; 6] = ["rtx3090", "rtx4090", "rtx-a6000", "v100-", "a100-", "h100-"];

/// The most GPUs of a measured training.
const MOST_GPUS: u32 = 16;

/// The longest sequences of a measured training, in tokens.
const LONGEST: u64 = 65_536;

/// Returns remarks on what was not measured; empty within the range.
pub(crate) fn outside(job: &Job, candidate: &Candidate) -> Vec<String> {
    let choice = &candidate.machine.choice;
    let mut remarks = Vec::new();
    if let Some(gpu) = choice.gpu.as_ref().filter(|gpu| !MEASURED.iter().any(|known| gpu.starts_with(known))) {
        remarks.push(format!("no training on `{gpu}` was compared with its prediction"));
    }
    if choice.gpus > MOST_GPUS {
        remarks.push(format!("no training on more than {MOST_GPUS} GPUs was compared with its prediction"));
    }
    let long = job.file.train.iter().filter_map(|train| train.seq_len).max().filter(|length| *length > LONGEST);
    if let Some(length) = long {
        remarks.push(format!("no training with sequences of {length} tokens was compared with its prediction"));
    }
    remarks
}
