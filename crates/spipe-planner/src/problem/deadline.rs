//! When to stop.

use crate::problem::Problem;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How many short steps are made even without time.
const ALWAYS: usize = 32;

/// The time limit and the stop signal together.
///
/// The only place below the command line that reads a clock beside the executor: a limit cannot be kept without one, and
/// nothing but the moment of stopping depends on it.
pub(crate) struct Deadline<'a> {
    start: Instant,
    limit: Duration,
    stop: &'a AtomicBool,
    /// Whether anything was cut short by it, or by a part of it.
    truncated: Arc<AtomicBool>,
}

impl<'a> Deadline<'a> {
    pub fn new(problem: &Problem<'a>) -> Self {
        let truncated = Arc::new(AtomicBool::new(false));
        Self { start: Instant::now(), limit: problem.options.time_limit, stop: problem.stop, truncated }
    }

    /// One that comes after so many hundredths of the time that is left.
    pub fn percent(&self, percent: u32) -> Self {
        self.at_most(self.left() * percent / 100)
    }

    /// One that comes after so much time, and no later than this.
    pub fn at_most(&self, time: Duration) -> Self {
        Self {
            start: Instant::now(),
            limit: time.min(self.left()),
            stop: self.stop,
            truncated: Arc::clone(&self.truncated),
        }
    }

    /// Whether the stop signal was given.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether the `index`th of a list of short steps is to be made: the first ones are, whatever the limit.
    pub fn allows(&self, index: usize) -> bool {
        !self.over() || (index < ALWAYS && !self.stopped())
    }

    /// Whether to stop now.
    pub fn over(&self) -> bool {
        let over = self.stopped() || self.start.elapsed() >= self.limit;
        if over {
            self.mark_truncated();
        }
        over
    }

    /// Remembers it if what was to end by now may have been cut short.
    pub fn poll(&self) {
        self.over();
    }

    /// Remembers that something was cut short.
    pub fn mark_truncated(&self) {
        self.truncated.store(true, Ordering::Relaxed);
    }

    /// Whether more time might have led to something else.
    pub fn was_truncated(&self) -> bool {
        self.truncated.load(Ordering::Relaxed) || self.over()
    }

    /// How much time there was in the beginning.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// How much time is left.
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.start.elapsed())
    }
}
