//! The end of a run: iterations repeat, there are too many of them, or the first one took too long.

use super::{End, Engine, FEW_ACTIONS, MOST_ITERATIONS};
use crate::Iterations;
use spipe_base::{IdVec, SimTime};

impl Engine<'_> {
    /// The same engine, which gives up if the second iteration begins more than `limit` after the
    /// first.
    pub fn within(self, limit: SimTime) -> Self {
        Self { within: Some(limit), ..self }
    }

    /// The most iterations of the run.
    pub(super) fn limit(&self) -> u32 {
        match self.options.iterations {
            Iterations::One => 1,
            Iterations::UntilSteady(most) => most.clamp(2, MOST_ITERATIONS),
            Iterations::Enough => (FEW_ACTIONS / self.program.actions().len().max(1) as u32).clamp(64, 1024),
        }
    }

    /// The end of the run, if it ends now.
    pub(super) fn finished(&mut self) -> Option<End> {
        while self.rounds.get(self.whole as usize).is_some_and(|round| round.left == 0) {
            self.whole += 1;
            self.forget();
            if self.whole == 1 && self.is_late() {
                return Some(End::Done { steady: false });
            }
            let steady = self.limit() == 1 || self.repeats();
            if steady || self.whole == self.limit() {
                return Some(End::Done { steady });
            }
        }
        None
    }

    /// Whether the second iteration begins later than the limit allows.
    pub fn is_late(&self) -> bool {
        let start = |iteration: usize| self.rounds.get(iteration).and_then(|round| round.first);
        let apart = start(1).unwrap_or(self.now) - start(0).unwrap_or_default();
        self.within.is_some_and(|limit| apart > limit)
    }

    /// Drops states that are no longer needed: only the last two whole iterations are compared, and
    /// only the last one is reported.
    fn forget(&mut self) {
        let last = self.whole as usize - 1;
        self.rounds[last].users = IdVec::new();
        if let Some(old) = last.checked_sub(2) {
            self.rounds[old].states = Vec::new();
        }
        if last > 0 {
            self.memories.forget(self.program, self.rounds[last].first.unwrap_or_default());
        }
    }

    /// Whether the last whole iteration equals the one before it, shifted in time.
    pub fn repeats(&self) -> bool {
        let Some(before) = self.whole.checked_sub(2) else { return false };
        let (earlier, later) = (&self.rounds[before as usize].states, &self.rounds[self.whole as usize - 1].states);
        let shift = later[0].start - earlier[0].start;
        earlier
            .iter()
            .zip(later)
            .all(|(earlier, later)| later.start == earlier.start + shift && later.end == earlier.end + shift)
    }
}
