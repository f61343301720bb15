//! The faults found so far.

use spipe_base::{Diagnostic, Faults, Position, StageId};

/// Faults, and the positions of stages in a plan file.
pub(super) struct Found<'a> {
    pub all: Faults,
    pub position: &'a dyn Fn(StageId) -> Option<Position>,
}

impl Found<'_> {
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.all.push(diagnostic);
    }

    /// Adds a fault of one stage, with its position.
    pub fn push_at(&mut self, stage: StageId, diagnostic: Diagnostic) {
        self.all.push(match (self.position)(stage) {
            Some(position) => diagnostic.at(position),
            None => diagnostic,
        });
    }
}
