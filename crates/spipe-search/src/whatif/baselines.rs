//! The baselines beside a ranked table: plain data parallelism on its machines, simulated like a plan without a search.

use super::{
    planner::JobPlanner,
    task::{Task, hardware},
};
use crate::{
    compare::{DATA_PARALLEL, equal_stages},
    error::SearchError,
};
use rayon::prelude::*;
use spipe_whatif::{Baseline, Estimate, Table};

/// The baselines of the ranked machines, then of those without a plan, where every training fits.
pub fn baselines(task: &Task, planner: &JobPlanner, table: &Table) -> Result<Vec<Baseline>, SearchError> {
    let without = table.infeasible.iter().chain(&table.failed).map(|machine| machine.index);
    let places: Vec<usize> = table.machines.iter().map(|row| row.index).chain(without).collect();
    let baseline = |place: usize| {
        let candidate = &task.sweep.candidates[place];
        let hardware = hardware(candidate)?;
        let trains = 0..task.job.file.train.len();
        let estimates: Option<Vec<Estimate>> =
            trains.map(|train| estimate(&planner.baseline(&hardware, train)?)).collect();
        Ok(estimates.map(|estimates| Baseline::of(&task.job, candidate, (DATA_PARALLEL, &estimates))))
    };
    let found: Vec<Option<Baseline>> = places.into_par_iter().map(baseline).collect::<Result<_, SearchError>>()?;
    Ok(found.into_iter().flatten().collect())
}

/// The figures of one training.
fn estimate(found: &equal_stages::Baseline) -> Option<Estimate> {
    Some(Estimate {
        tokens_per_second: found.tokens_per_second()?,
        gpu_share: (1.0 - found.times.as_ref().ok()?.bubbles).clamp(0.0, 1.0),
        gpu_memory_bytes: found.memory.get(),
    })
}
