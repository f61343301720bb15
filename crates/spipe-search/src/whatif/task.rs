//! A sweep with its subject.

use super::own;
use crate::error::SearchError;
use spipe_base::Diagnostic;
use spipe_hardware::Hardware;
use spipe_market::Catalogue;
use spipe_whatif::{
    Candidate, Job, Question, Setup, Shard, Sweep, Table,
    report::{Rented, Subject},
    sweep,
};

/// A sweep with all that it is about.
pub struct Task {
    /// The setup.
    pub setup: Setup,
    /// The checked job of the setup.
    pub job: Job,
    /// The parts of all machines.
    pub catalogue: Catalogue,
    /// The machines.
    pub sweep: Sweep,
    /// The place of the machine to add to.
    pub own: Option<usize>,
}

impl Task {
    /// Composes the machines of a setup.
    ///
    /// # Errors
    /// The setup is invalid, or no machine is left.
    pub fn new(setup: Setup, catalogue: Catalogue) -> Result<Self, SearchError> {
        let job = setup.job.clone().check()?;
        let (sweep, own) = if setup.own.is_empty() {
            (sweep(&catalogue, &job, setup.as_of)?, None)
        } else {
            (own::sweep(&catalogue, &job, &setup)?, Some(0))
        };
        if sweep.candidates.is_empty() {
            let reasons = sweep
                .skipped
                .iter()
                .map(|skipped| format!("{} by `{}` ({})", skipped.count, skipped.rule, skipped.example));
            let message = format!("no machine is left of the sweep: {}", reasons.collect::<Vec<_>>().join("; "));
            let hint = "vary more, or allow a higher budget or more power";
            return Err(SearchError::Infeasible(Diagnostic::error(message).hint(hint)));
        }
        Ok(Self { setup, job, catalogue, sweep, own })
    }

    /// The question of a part of the sweep; `bounds` set machines aside.
    pub fn question(&self, shard: Shard, bounds: bool) -> Question<'_> {
        let Setup { objective, rows, .. } = self.setup;
        Question { job: &self.job, sweep: &self.sweep, objective, rows, shard, bounds }
    }

    /// The subject of a report.
    pub fn subject<'a>(&'a self, table: &'a Table, rented: &'a [Rented]) -> Subject<'a> {
        let Setup { objective, as_of, .. } = self.setup;
        Subject { job: &self.job, sweep: &self.sweep, table, objective, as_of, rented }
    }
}

/// The profile of a machine.
pub fn hardware(candidate: &Candidate) -> Result<Hardware, SearchError> {
    Ok(Hardware::from_file(&candidate.machine.name, candidate.machine.hardware.clone())?)
}
