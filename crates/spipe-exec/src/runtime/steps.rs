//! The steps of a run as its caller sees them, and the checkpoints between them.
//!
//! Lanes run ahead into the next step, but not past a checkpoint: when the last permitted step is
//! over, nothing runs, and resident buffers have the values after that step.

use crate::{
    error::RunError,
    persist::checkpoint::{CheckpointError, TrainingState, Writer},
    report::Step,
    runtime::{monitor::Monitor, run_state::Finished},
};
use std::{ops::ControlFlow, time::Duration};

/// The caller's side of a run.
pub(crate) struct Steps<'a, 'b> {
    pub monitor: &'a Monitor<'b>,
    /// Number of steps before the run's first iteration.
    pub done: u32,
    /// Tokens per step.
    pub tokens: u64,
    /// The writer of checkpoints, if the options ask for them.
    pub writer: Option<&'a Writer<'a>>,
    pub state: &'a dyn TrainingState,
}

impl Steps<'_, '_> {
    /// Lets the lanes begin the iterations before the first checkpoint.
    pub fn start(&self) {
        self.allow(0);
    }

    /// Reports each step and writes checkpoints until the run is over.
    pub fn follow(&self, on_step: &mut dyn FnMut(&Step) -> ControlFlow<()>) -> Result<(), RunError> {
        let mut stopped = false;
        loop {
            while let Some(finished) = self.monitor.next_finished()? {
                let step = self.step(finished);
                if on_step(&step).is_break() && !stopped {
                    stopped = true;
                    self.monitor.stop();
                }
                if !step.loss.is_finite() {
                    return Err(RunError::NotFinite { what: format!("the loss of step {}", step.index) });
                }
            }
            let (iterations, more) = self.monitor.progress();
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
        let Finished { index, loss, norm, left_out, duration, peaks, work, launches } = finished;
        let duration = Duration::from_nanos(duration.as_ns());
        Step { index: self.done + index, loss, norm, left_out, duration, tokens: self.tokens, peaks, work, launches }
    }

    /// Lets iterations up to the next checkpoint begin, after `iterations` have finished.
    fn allow(&self, iterations: u32) {
        if let Some(writer) = self.writer {
            let every = writer.place.every.max(1);
            let next = ((self.done + iterations) / every + 1).saturating_mul(every);
            self.monitor.allow(next - self.done);
        }
    }
}

/// The failure of a run whose checkpoint cannot be written.
fn refusal(error: CheckpointError) -> RunError {
    match error {
        CheckpointError::NotFinite { tensor, step } => {
            RunError::NotFinite { what: format!("`{tensor}` after step {step}") }
        }
        other => other.into(),
    }
}
