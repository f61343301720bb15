//! The plans so far, as a file: to resume a sweep, and to merge its shards.

use crate::{Counts, JobFile, Objective, Plans, Shard};
use serde::{Deserialize, Serialize};
use spipe_market::Date;
use std::collections::BTreeSet;

/// The version of the file format. Files of version 1 may have closed forms among their plans; those of version 2 have
/// plans without teams and replicas alone.
const FORMAT_VERSION: u32 = 3;

/// The subject of a sweep: parts of one sweep agree in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Setup {
    /// The job.
    pub job: JobFile,
    /// The texts of the user's catalogue files.
    pub catalogues: Vec<String>,
    /// The order of machines.
    pub objective: Objective,
    /// The rows of the table.
    pub rows: usize,
    /// The day of the prices.
    pub as_of: Date,
    /// The parts of the machine to add to; empty if there is none.
    pub own: Vec<String>,
}

/// The plans of a sweep or of a part of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct State {
    /// The version of the file format.
    pub format_version: u32,
    /// Its subject.
    pub setup: Setup,
    /// The part.
    pub shard: Shard,
    /// The counts.
    pub counts: Counts,
    /// The plans by key of machine.
    pub plans: Plans,
}

/// The refusal of a file of another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its plans have format version {found}, and version {FORMAT_VERSION} is read")]
pub struct OldState {
    found: u32,
}

/// The reason why files are no whole sweep.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// No file was given.
    #[error("there is no part to merge")]
    Nothing,
    /// The parts have different jobs, catalogues or days.
    #[error("`{0}` is a part of another job")]
    OtherJob(String),
    /// The parts are of different numbers.
    #[error("`{file}` is one of {of} parts, the first file is one of {wanted}")]
    OtherNumber {
        /// The file.
        file: String,
        /// Its number of parts.
        of: usize,
        /// That of the first file.
        wanted: usize,
    },
    /// Parts are missing.
    #[error("the parts {0} are missing")]
    Missing(String),
    /// A part is there twice.
    #[error("part {0} is there twice")]
    Twice(usize),
    /// A part was stopped.
    #[error("`{file}` was stopped with {left} machines left")]
    Stopped {
        /// The file.
        file: String,
        /// The machines that it left out.
        left: usize,
    },
}

impl State {
    /// Creates the state of a run.
    pub const fn new(setup: Setup, shard: Shard, counts: Counts, plans: Plans) -> Self {
        Self { format_version: FORMAT_VERSION, setup, shard, counts, plans }
    }

    /// Refuses plans of another version.
    ///
    /// # Errors
    /// The version of the file is not [`State::new`]'s.
    pub const fn check(&self) -> Result<(), OldState> {
        match self.format_version {
            FORMAT_VERSION => Ok(()),
            found => Err(OldState { found }),
        }
    }
}

/// Joins the parts of one sweep.
///
/// # Errors
/// A part that is missing, there twice, stopped, or of another job.
pub fn merge(parts: Vec<(String, State)>) -> Result<State, MergeError> {
    let mut parts = parts.into_iter();
    let (_, mut whole) = parts.next().map(|part| check(&part).map(|()| part)).ok_or(MergeError::Nothing)??;
    let mut seen = BTreeSet::from([whole.shard.part]);
    for part in parts {
        check(&part)?;
        let (file, state) = part;
        if state.setup != whole.setup {
            return Err(MergeError::OtherJob(file));
        }
        if state.shard.of != whole.shard.of {
            return Err(MergeError::OtherNumber { file, of: state.shard.of, wanted: whole.shard.of });
        }
        if !seen.insert(state.shard.part) {
            return Err(MergeError::Twice(state.shard.part));
        }
        whole.counts.solved += state.counts.solved;
        whole.counts.shared += state.counts.shared;
        whole.counts.bounded += state.counts.bounded;
        whole.plans.extend(state.plans);
    }
    let missing: Vec<String> =
        (1..=whole.shard.of).filter(|part| !seen.contains(part)).map(|part| part.to_string()).collect();
    if !missing.is_empty() {
        return Err(MergeError::Missing(missing.join(", ")));
    }
    whole.shard = Shard::WHOLE;
    Ok(whole)
}

fn check((file, state): &(String, State)) -> Result<(), MergeError> {
    match state.counts.left {
        0 => Ok(()),
        left => Err(MergeError::Stopped { file: file.clone(), left }),
    }
}
