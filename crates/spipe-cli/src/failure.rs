//! Expected failures of the command, each with its exit code.

use spipe_base::{Diagnostic, Faults, Position, words_of};
use spipe_exec::RunError;
use spipe_search::SearchError;
use std::fmt;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// A bug of this program. Exit code 1.
    Bug(String),
    /// The arguments contradict each other, or name something unknown. Exit code 2.
    Arguments(Faults),
    /// An input cannot be read, or is invalid. Exit code 3.
    Input(Faults),
    /// No plan is feasible. Exit code 4.
    Infeasible(Diagnostic),
    /// The search was stopped before it had a plan. Exit code 5.
    Stopped(Diagnostic),
    /// A check or comparison failed, or a plan does not run. Exit code 6.
    Check(Diagnostic),
    /// No suitable device. Exit code 7.
    NoDevice(Diagnostic),
}

impl Failure {
    /// The exit code of the process.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Bug(_) => 1,
            Self::Arguments(_) => 2,
            Self::Input(_) => 3,
            Self::Infeasible(_) => 4,
            Self::Stopped(_) => 5,
            Self::Check(_) => 6,
            Self::NoDevice(_) => 7,
        }
    }

    /// A file that cannot be read or written; `what` is the verb.
    pub fn file(path: &str, what: &str, error: &std::io::Error) -> Self {
        let position = Position { file: path.into(), line: 1, column: 1 };
        let diagnostic = Diagnostic::error(format!("cannot {what} `{path}`: {}", words_of(error)));
        Self::input(match error.kind() {
            std::io::ErrorKind::NotFound => diagnostic.hint("check the path; paths are relative to the current folder"),
            _ => diagnostic.at(position),
        })
    }

    /// A single fault of an input.
    pub fn input(diagnostic: Diagnostic) -> Self {
        Self::Input(diagnostic.into())
    }

    /// A single fault of the arguments.
    pub fn argument(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Arguments(Diagnostic::error(message).hint(hint).into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bug(message) => write!(f, "error: {message}\nhint: this is a bug in spipe; please report it"),
            Self::Input(faults) | Self::Arguments(faults) => faults.fmt(f),
            Self::Infeasible(diagnostic)
            | Self::Stopped(diagnostic)
            | Self::Check(diagnostic)
            | Self::NoDevice(diagnostic) => diagnostic.fmt(f),
        }
    }
}

/// The readers of files collect faults; commands that collect faults of arguments say so.
impl From<Faults> for Failure {
    fn from(faults: Faults) -> Self {
        Self::Input(faults)
    }
}

impl From<SearchError> for Failure {
    fn from(error: SearchError) -> Self {
        match error {
            SearchError::Bug(message) => Self::Bug(message),
            SearchError::Request(faults) => Self::Arguments(faults),
            SearchError::Input(faults) => Self::Input(faults),
            SearchError::Infeasible(diagnostic) => Self::Infeasible(diagnostic),
            SearchError::Stopped(diagnostic) => Self::Stopped(diagnostic),
        }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let diagnostic = Diagnostic::error(error.to_string());
        let diagnostic = error.hint().into_iter().fold(diagnostic, Diagnostic::hint);
        match error {
            RunError::Unsupported(faults) => Self::Input(faults),
            RunError::NoDevice { .. } => Self::NoDevice(diagnostic),
            RunError::Data(_) | RunError::Checkpoint(_) | RunError::Weights(_) => Self::input(diagnostic),
            RunError::Drive(_) => Self::input(diagnostic),
            RunError::OutOfMemory(_)
            | RunError::Exceeded { .. }
            | RunError::Lane { .. }
            | RunError::NotFinite { .. } => Self::Check(diagnostic),
            RunError::Stalled { .. } => Self::Bug(diagnostic.message),
        }
    }
}
