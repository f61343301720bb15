//! Expected failures of the command, each with its exit code.

use spipe_base::{Diagnostic, Faults, Position, words_of};
use std::fmt;

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub enum Failure {
    /// Something that cannot happen did. Exit code 1.
    Bug(String),
    /// The arguments contradict each other or name something unknown. Exit code 2.
    Arguments(Faults),
    /// An input cannot be read, or is invalid. Exit code 3.
    Input(Faults),
    /// No plan fits. Exit code 4.
    Infeasible(Diagnostic),
    /// The limit struck before there was a plan. Exit code 5.
    Stopped(Diagnostic),
    /// A check or comparison failed, or a plan does not run. Exit code 6.
    Check(Diagnostic),
    /// A device that the work needs is not there. Exit code 7.
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

    /// A file that cannot be read or written.
    pub fn file(path: &str, what: &str, error: &std::io::Error) -> Self {
        let position = Position { file: path.into(), line: 1, column: 1 };
        let diagnostic = Diagnostic::error(format!("cannot {what} `{path}`: {}", words_of(error)));
        let diagnostic = match error.kind() {
            std::io::ErrorKind::NotFound => diagnostic.hint("check the path; paths are relative to the current folder"),
            _ => diagnostic.at(position),
        };
        Self::Input(diagnostic.into())
    }

    /// An argument that will not do.
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

impl From<Faults> for Failure {
    fn from(faults: Faults) -> Self {
        Self::Input(faults)
    }
}

impl From<Diagnostic> for Failure {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::Input(diagnostic.into())
    }
}
