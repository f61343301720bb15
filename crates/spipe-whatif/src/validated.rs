//! The range in which predictions were compared with measured trainings (`reports/reproductions/runs.md`).

use crate::{Candidate, Job};

/// The relative error of a prediction that nothing was fitted to. Estimate: the largest mean error of a group of
/// measured trainings with shipped constants (`reports/reproductions/runs.md`), rounded up to a tenth, and a tenth more,
/// since parts of a catalogue do not state the rates that they sustain, as the machines of these trainings do.
pub const UNFITTED_ERROR: f64 = 0.3;

/// The source of [`UNFITTED_ERROR`] in reports.
pub(crate) const ERROR_SOURCE: &str = "estimate: the largest mean error of a group of measured trainings without any fit, rounded up to a tenth, and a tenth more";

/// GPUs on which trainings were measured, by the beginning of their names.
const MEASURED: [&str; 6] = ["rtx3090", "rtx4090", "rtx-a6000", "v100-", "a100-", "h100-"];

/// The most GPUs of a measured training on one computer.
const MOST_GPUS: u32 = 16;

/// The GPUs whose trainings were measured on several nodes, and the most of each.
const ON_NODES: [(&str, u32); 2] = [("a100-", 512), ("h100-", 128)];

/// The longest sequences of a measured training, in tokens.
const LONGEST: u64 = 65_536;

/// Returns remarks on what was not measured; empty within the range.
pub(crate) fn outside(job: &Job, candidate: &Candidate) -> Vec<String> {
    let choice = &candidate.machine.choice;
    let mut remarks = Vec::new();
    if let Some(gpu) = choice.gpu.as_ref().filter(|gpu| !MEASURED.iter().any(|known| gpu.starts_with(known))) {
        remarks.push(format!("no training on `{gpu}` was compared with its prediction"));
    }
    let (nodes, all) = (candidate.machine.nodes, choice.gpus * candidate.machine.nodes);
    let most = |gpu: &String| ON_NODES.iter().find(|(like, _)| gpu.starts_with(like)).map(|(_, most)| *most);
    let most = choice.gpu.as_ref().filter(|_| nodes > 1).map(most);
    match &choice.gpu {
        Some(gpu) if most == Some(None) => {
            remarks.push(format!("no training on several nodes of `{gpu}` was compared with its prediction"));
        }
        _ if all > most.flatten().unwrap_or(MOST_GPUS) => {
            remarks.push(format!("no training on {all} GPUs was compared with its prediction"));
        }
        _ => {}
    }
    let long = job.file.train.iter().filter_map(|train| train.seq_len).max().filter(|length| *length > LONGEST);
    if let Some(length) = long {
        remarks.push(format!("no training with sequences of {length} tokens was compared with its prediction"));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = include_str!("../../../reports/reproductions/runs.md");

    /// The mean errors without any fit, of the first table: `| [group](#group) | runs | 5.9 % (15.8 %) | …`.
    fn means() -> Vec<f64> {
        let rows = REPORT.lines().filter(|line| line.starts_with("| ["));
        let mean = |row: &str| row.split('|').nth(3)?.split('%').next()?.trim().parse().ok();
        rows.map(|row| mean(row).unwrap()).collect()
    }

    #[test]
    fn the_error_without_a_fit_is_that_of_the_report() {
        let means = means();
        assert!(means.len() >= 5, "{means:?}");
        let tenths = (means.iter().copied().fold(0.0, f64::max) / 10.0).ceil();
        assert!((UNFITTED_ERROR - (tenths + 1.0) / 10.0).abs() < 1e-12, "{means:?}");
    }
}
