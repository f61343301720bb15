//! A time budget, divided among measurements.

use spipe_base::Seconds;
use std::time::{Duration, Instant};

/// Gives each measurement its share of the remaining time.
#[derive(Debug)]
pub(super) struct Clock {
    end: Instant,
    /// Shares not given out.
    left: usize,
    spread: f64,
}

/// Median and spread of repetitions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub median: Seconds,
    /// Half the distance of the 10th and the 90th percentile, divided by the median.
    pub spread: f64,
    /// The time of the first runs beyond the median: kernels were compiled and tuned.
    pub compiling: Duration,
}

/// Maximum of repetitions; the median of more is no more precise.
const MOST: usize = 60;

impl Clock {
    pub fn new(start: Instant, budget: Duration, shares: usize) -> Self {
        Self { end: start + budget, left: shares.max(1), spread: 0.0 }
    }

    /// Takes `shares` shares of the remaining time.
    pub fn take(&mut self, shares: usize) -> Duration {
        let left = self.end.saturating_duration_since(Instant::now());
        let share = left.mul_f64(shares as f64 / self.left.max(shares) as f64);
        self.left = self.left.saturating_sub(shares).max(1);
        share
    }

    /// Whether the budget is used up.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Records the spread of a sample. The time in which its kernels were compiled does not count.
    pub fn note(&mut self, sample: Sample) -> Sample {
        self.spread = self.spread.max(sample.spread);
        self.exclude(sample.compiling);
        sample
    }

    /// Adds time to the budget.
    pub fn exclude(&mut self, time: Duration) {
        self.end += time;
    }

    pub const fn largest_spread(&self) -> f64 {
        self.spread
    }
}

/// The most runs before the measurement: a device that compiles its kernels when they are needed
/// may tune them in the run after that.
const MOST_WARM_UPS: usize = 4;

/// Runs `work` until a run takes at least half as long as the one before it, so that all its
/// kernels are compiled; returns the time beyond that of the last run.
pub(super) fn warm_up(mut work: impl FnMut()) -> Duration {
    let start = Instant::now();
    let mut before = Duration::ZERO;
    for count in 1..=MOST_WARM_UPS {
        let run = Instant::now();
        work();
        let took = run.elapsed();
        let settled = count > 1 && took >= before / 2;
        before = took;
        // The first run of a CPU's kernel is as fast as any other.
        if settled {
            break;
        }
    }
    start.elapsed().saturating_sub(2 * before)
}

/// Repeats `work`, which returns its own duration, for `time`: to warm up, then at least once.
pub(super) fn repeat(time: Duration, mut work: impl FnMut() -> Duration) -> Sample {
    let compiling = warm_up(|| {
        work();
    });
    let start = Instant::now();
    let mut times = Vec::new();
    while times.is_empty() || (times.len() < MOST && start.elapsed() < time) {
        times.push(work());
    }
    Sample { compiling, ..sample(times) }
}

/// Repeats `work` for `time`, `count` times per sample: it is shorter than the precision of the
/// clock.
pub(super) fn repeat_many(time: Duration, count: u32, mut work: impl FnMut()) -> Sample {
    repeat(time, || {
        let start = Instant::now();
        for _ in 0..count {
            work();
        }
        start.elapsed() / count
    })
}

pub(super) fn sample(mut times: Vec<Duration>) -> Sample {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize].as_secs_f64();
    // At least one nanosecond, so that rates stay finite.
    let median = at(0.5).max(1e-9);
    Sample { median: Seconds::s(median), spread: (at(0.9) - at(0.1)) / 2.0 / median, compiling: Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_budget() {
        let mut clock = Clock::new(Instant::now(), Duration::from_secs(100), 4);
        assert!((clock.take(1).as_secs_f64() - 25.0).abs() < 0.1);
        assert!((clock.take(3).as_secs_f64() - 100.0).abs() < 0.1, "no time has passed");
        assert!(!clock.is_over());
    }

    #[test]
    fn the_median_and_the_spread() {
        let sample = sample((1..=11).rev().map(Duration::from_millis).collect());
        assert!((sample.median.to_ms() - 6.0).abs() < 1e-9);
        assert!((sample.spread - 4.0 / 6.0).abs() < 1e-9);
        let mut runs = 0;
        repeat(Duration::ZERO, || {
            runs += 1;
            Duration::from_millis(1)
        });
        assert!((3..=5).contains(&runs), "twice or more to warm up, once to measure: {runs}");
    }

    #[test]
    fn compiling_takes_none_of_the_budget() {
        let mut runs = 0;
        let compiling = warm_up(|| {
            runs += 1;
            std::thread::sleep(Duration::from_millis(if runs == 1 { 60 } else { 5 }));
        });
        assert!(runs >= 3, "the second run took less than half of the first: {runs}");
        assert!(compiling >= Duration::from_millis(50), "{compiling:?}");
        let mut clock = Clock::new(Instant::now(), Duration::ZERO, 1);
        clock.note(Sample { compiling: Duration::from_secs(10), ..sample(vec![Duration::from_millis(1)]) });
        assert!(!clock.is_over());
    }
}
