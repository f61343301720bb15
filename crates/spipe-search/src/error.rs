//! The reason why a question has no answer.

use spipe_base::{Diagnostic, Faults};

/// The reason why a question has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SearchError {
    /// A bug of this program.
    #[error("{0}")]
    Bug(String),
    /// The request contradicts itself, or names something unknown.
    #[error("{0}")]
    Request(Faults),
    /// A model, a machine or a plan is invalid.
    #[error("{0}")]
    Input(Faults),
    /// No plan is feasible.
    #[error("{0}")]
    Infeasible(Diagnostic),
    /// The search was stopped before it had a plan.
    #[error("{0}")]
    Stopped(Diagnostic),
}

impl SearchError {
    /// A single fault of the request, with a remedy.
    pub fn request(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Request(Diagnostic::error(message).hint(hint).into())
    }
}

/// Faults of models, machines and programs are of the input; faults of the request are collected apart.
impl From<Faults> for SearchError {
    fn from(faults: Faults) -> Self {
        Self::Input(faults)
    }
}
