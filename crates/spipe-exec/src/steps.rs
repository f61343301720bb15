//! The steps of a run as its caller sees them, and the checkpoints between them.
//!
//! Lanes run ahead into the next step. Before a checkpoint they may not: when the last step that may begin is over, nothing
//! runs, and what is resident is what the step has left.

use crate::{
    RunError, Step,
    board::Board,
    checkpoint::{Between, CheckpointError, Writer},
    state::Finished,
};
use std::{ops::ControlFlow, time::Duration};

/// What follows a run.
pub(crate) struct Steps<'a, 'b> {
    pub board: &'a Board<'b>,
    /// Steps before the run's first iteration.
    pub done: u32,
    /// Tokens of a step.
    pub tokens: u64,
    /// What writes checkpoints, if they are wanted.
    pub writer: Option<&'a Writer<'a>>,
    pub state: &'a dyn Between,
}

impl Steps<'_, '_> {
    /// Lets the lanes begin what comes before the first checkpoint.
    pub fn start(&self) {
        self.allow(0);
    }

    /// Tells of each step and writes checkpoints until the run is over.
    pub fn follow(&self, on_step: &mut dyn FnMut(&Step) -> ControlFlow<()>) -> Result<(), RunError> {
        let mut stopped = false;
        loop {
            while let Some(finished) = self.board.next_finished()? {
                let step = self.step(finished);
                if on_step(&step).is_break() && !stopped {
                    stopped = true;
                    self.board.stop();
                }
                if !step.loss.is_finite() {
                    return Err(RunError::NotFinite { what: format!("the loss of step {}", step.index) });
                }
            }
            let (iterations, more) = self.board.progress();
            if let Some(writer) = self.writer {
                writer.write(self.done + iterations, self.state).map_err(refusal)?;
            }
            if !more {
                return Ok(());
            }
            self.allow(iterations);
        }
    }

    fn step(&self, finished: Finished) -> Step {
        let Finished { index, loss, norm, left_out, duration, peaks } = finished;
        let duration = Duration::from_nanos(duration.as_ns());
        Step { index: self.done + index, loss, norm, left_out, duration, tokens: self.tokens, peaks }
    }

    /// Lets iterations up to the next checkpoint begin, `iterations` being over.
    fn allow(&self, iterations: u32) {
        if let Some(writer) = self.writer {
            let every = writer.place.every.max(1);
            let next = ((self.done + iterations) / every + 1).saturating_mul(every);
            self.board.allow(next - self.done);
        }
    }
}

/// What a checkpoint that cannot be written means for the run.
fn refusal(error: CheckpointError) -> RunError {
    match error {
        CheckpointError::NotFinite { tensor, step } => {
            RunError::NotFinite { what: format!("`{tensor}` after step {step}") }
        }
        other => other.into(),
    }
}
