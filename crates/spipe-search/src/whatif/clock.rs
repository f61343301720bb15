//! The stop signal of a sweep: raised by the user, and at the end of each share of the time limit. An
//! answer without any machine helps nobody, so that the first plan may take longer.

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

/// The time that the first plan may take beyond its share, as a multiple of the whole limit.
const PATIENCE: u32 = 3;

/// The stop signal with its times.
pub struct Clock {
    /// Raised when the work of the moment is to end.
    pub(super) stop: Arc<AtomicBool>,
    interrupted: Arc<AtomicBool>,
    /// The end of the whole time.
    end: Option<Instant>,
    /// The end of the share that runs.
    until: Arc<Mutex<Option<Instant>>>,
    /// Whether a machine has a plan.
    planned: Arc<AtomicBool>,
    /// The time that is added until a machine has a plan.
    patience: Duration,
}

impl Clock {
    /// Starts the whole time; `interrupted` is raised by the user.
    pub fn new(limit: Option<Duration>, interrupted: Arc<AtomicBool>) -> Self {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let clock = Self {
            stop: Arc::new(AtomicBool::new(false)),
            interrupted,
            end,
            until: Arc::new(Mutex::new(end)),
            planned: Arc::new(AtomicBool::new(false)),
            patience: limit.unwrap_or_default().saturating_mul(PATIENCE),
        };
        clock.watch();
        clock
    }

    /// Raises the signal in time, as long as the clock exists.
    fn watch(&self) {
        let (stop, until): (Weak<AtomicBool>, _) = (Arc::downgrade(&self.stop), Arc::clone(&self.until));
        let (interrupted, planned, patience) =
            (Arc::clone(&self.interrupted), Arc::clone(&self.planned), self.patience);
        thread::spawn(move || {
            while let Some(stop) = stop.upgrade() {
                // The lock keeps the signal from being raised for a share that has just ended.
                let until = until.lock().unwrap_or_else(PoisonError::into_inner);
                let more = if planned.load(Ordering::Relaxed) { Duration::ZERO } else { patience };
                let over = until.is_some_and(|until| until.elapsed() >= more && Instant::now() >= until);
                if interrupted.load(Ordering::Relaxed) || over {
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

    /// Is told that a machine has a plan: from now on, the time counts.
    pub fn planned(&self) {
        self.planned.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_counts_from_the_first_plan_on() {
        // A share that is over at once, and patience that a busy machine does not use up.
        let clock = Clock::new(Some(Duration::from_secs(20)), Arc::default());
        clock.begin(0.001);
        thread::sleep(Duration::from_millis(80));
        assert!(!clock.stop.load(Ordering::Relaxed), "no machine has a plan");
        clock.planned();
        let asked = Instant::now();
        while !clock.stop.load(Ordering::Relaxed) {
            assert!(asked.elapsed() < Duration::from_secs(60), "the time is up");
            thread::sleep(TICK);
        }
    }
}
