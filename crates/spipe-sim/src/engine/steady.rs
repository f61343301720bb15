//! When iterations are enough: they repeat, there are too many of them, or the first two begin too far apart.

use super::{End, Engine, FEW_ACTIONS, MOST_ITERATIONS};
use crate::Iterations;
use spipe_base::SimTime;

impl Engine<'_> {
    /// The same where nothing more is asked for if the second iteration begins so much later than the first.
    pub fn within(self, limit: SimTime) -> Self {
        Self { within: Some(limit), ..self }
    }

    /// How many iterations there are at most.
    pub(super) fn limit(&self) -> u32 {
        match self.options.iterations {
            Iterations::One => 1,
            Iterations::UntilSteady(most) => most.clamp(2, MOST_ITERATIONS),
            Iterations::Enough => (FEW_ACTIONS / self.program.actions().len().max(1) as u32).clamp(64, 1024),
        }
    }

    /// How the run ends, if it does now.
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

    /// Whether the second iteration begins later behind the first than asked for.
    pub fn is_late(&self) -> bool {
        let start = |iteration: usize| self.rounds.get(iteration).and_then(|round| round.first);
        let apart = start(1).unwrap_or(self.now) - start(0).unwrap_or_default();
        self.within.is_some_and(|limit| apart > limit)
    }

    /// Drops what nobody will ask for any more: only the last two whole iterations are compared, and the last one is shown.
    fn forget(&mut self) {
        let last = self.whole as usize - 1;
        self.rounds[last].users = Vec::new();
        if let Some(old) = last.checked_sub(2) {
            self.rounds[old].states = Vec::new();
        }
        if last > 0 {
            self.memories.forget(self.program, self.rounds[last].first.unwrap_or_default());
        }
    }

    /// Whether the last whole iteration is the one before, shifted.
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
