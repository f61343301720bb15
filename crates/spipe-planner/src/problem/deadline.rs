//! The time limit and the stop signal of a search.

use crate::problem::{Problem, budget};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The number of short steps at the head of a list that run even after the limit, so that a limit
/// of zero still yields a heuristic plan.
const ALWAYS: usize = 32;

/// A time limit together with the stop signal. Parts of the time ([`Self::percent`],
/// [`Self::at_most`]) are deadlines of their own that share the flag `truncated`.
///
/// The planner reads the clock here only. Nothing but the moment of stopping depends on it.
pub(crate) struct Deadline<'a> {
    start: Instant,
    limit: Duration,
    stop: &'a AtomicBool,
    /// Whether this deadline, or one made from it, has cut a search short.
    truncated: Arc<AtomicBool>,
}

impl<'a> Deadline<'a> {
    pub fn new(problem: &Problem<'a>) -> Self {
        let truncated = Arc::new(AtomicBool::new(false));
        Self { start: Instant::now(), limit: problem.options.limit(), stop: problem.stop, truncated }
    }

    /// A deadline after `percent` % of the time that is left.
    pub fn percent(&self, percent: u32) -> Self {
        self.at_most(budget::share(self.left(), percent))
    }

    /// A deadline after `time`, and no later than this one.
    pub fn at_most(&self, time: Duration) -> Self {
        Self {
            start: Instant::now(),
            limit: time.min(self.left()),
            stop: self.stop,
            truncated: Arc::clone(&self.truncated),
        }
    }

    /// Whether the stop signal is set.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether to run step `index` of a list of short steps: always before the limit, and the first
    /// [`ALWAYS`] steps after it unless the stop signal is set.
    pub fn allows(&self, index: usize) -> bool {
        !self.over() || (index < ALWAYS && !self.stopped())
    }

    /// Whether the limit has passed or the stop signal is set; if so, the search counts as
    /// truncated.
    pub fn over(&self) -> bool {
        let over = self.stopped() || self.start.elapsed() >= self.limit;
        if over {
            self.mark_truncated();
        }
        over
    }

    /// Marks the search as truncated if the deadline is over.
    pub fn poll(&self) {
        self.over();
    }

    /// Marks the search as truncated.
    pub fn mark_truncated(&self) {
        self.truncated.store(true, Ordering::Relaxed);
    }

    /// Whether the search was truncated, so that more time might have changed its result.
    pub fn was_truncated(&self) -> bool {
        self.truncated.load(Ordering::Relaxed) || self.over()
    }

    /// The time that this deadline had at its start.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The time left; zero after the limit.
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.start.elapsed())
    }
}
