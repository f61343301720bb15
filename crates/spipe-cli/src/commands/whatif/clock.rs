//! The stop signal of a sweep: raised by Ctrl-C, and at the end of each share of the time limit.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How often the clock is read: a small part of the shortest plan.
const TICK: Duration = Duration::from_millis(20);

/// The stop signal with its times.
pub struct Clock {
    /// Raised when the work of the moment is to end.
    pub stop: Arc<AtomicBool>,
    interrupted: Arc<AtomicBool>,
    /// The end of the whole time.
    end: Option<Instant>,
    /// The end of the share that runs.
    until: Arc<Mutex<Option<Instant>>>,
}

impl Clock {
    /// Starts the whole time.
    pub fn new(limit: Option<Duration>) -> Self {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let clock = Self {
            stop: Arc::new(AtomicBool::new(false)),
            interrupted: crate::interrupt::flag(),
            end,
            until: Arc::new(Mutex::new(end)),
        };
        clock.watch();
        clock
    }

    /// Raises the signal in time, as long as the clock exists.
    fn watch(&self) {
        let (stop, until): (Weak<AtomicBool>, _) = (Arc::downgrade(&self.stop), Arc::clone(&self.until));
        let interrupted = Arc::clone(&self.interrupted);
        thread::spawn(move || {
            while let Some(stop) = stop.upgrade() {
                // The lock keeps the signal from being raised for a share that has just ended.
                let until = until.lock().unwrap_or_else(PoisonError::into_inner);
                if interrupted.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until) {
                    stop.store(true, Ordering::Relaxed);
                }
                drop((until, stop));
                thread::sleep(TICK);
            }
        });
    }

    /// Gives what follows a share of the time that is left, and lowers the signal unless the user has
    /// interrupted the work.
    pub fn begin(&self, share: f64) {
        let now = Instant::now();
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = self.end.map(|end| now + end.saturating_duration_since(now).mul_f64(share.clamp(0.0, 1.0)));
        let over = until.is_some_and(|until| until <= now) || self.interrupted.load(Ordering::Relaxed);
        self.stop.store(over, Ordering::Relaxed);
    }
}
