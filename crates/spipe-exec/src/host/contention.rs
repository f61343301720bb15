//! CPU time that the hypervisor and other processes took during a measurement.

use super::{system, ticks::Ticks};
use std::fmt;

/// An idle system takes less than this share.
const WORTH_TELLING: f64 = 0.01;
/// Rates are lower by about the share that others take, and their spread is a few percent.
const WORTH_A_WARNING: f64 = 0.03;

/// Shares of the CPU time of all cores that others took, as Linux counts it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contention {
    /// The hypervisor, for other virtual machines.
    pub stolen: f64,
    /// Other processes.
    pub others: f64,
}

impl Contention {
    /// A note for a report; none if others took next to nothing.
    pub fn note(&self) -> Option<String> {
        (self.share() >= WORTH_TELLING).then(|| self.to_string())
    }

    /// The share of both.
    pub fn share(&self) -> f64 {
        self.stolen + self.others
    }

    /// Whether figures measured meanwhile are off by more than their usual spread.
    pub fn disturbs(&self) -> bool {
        self.share() >= WORTH_A_WARNING
    }
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stolen, others) = (100.0 * self.stolen, 100.0 * self.others);
        write!(
            f,
            "others took {:.0} % of the CPU time while this was measured (the hypervisor {stolen:.0} %, other processes {others:.0} %): \
             this machine alone is faster",
            stolen + others
        )
    }
}

/// A measurement of contention.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    before: Option<Ticks>,
}

impl Watch {
    /// Starts a measurement.
    pub fn start() -> Self {
        Self { before: system::ticks() }
    }

    /// The contention since the start; none where it is not counted.
    pub fn contention(self) -> Option<Contention> {
        system::ticks().zip(self.before).and_then(|(now, before)| now.since(before))
    }
}

impl Ticks {
    fn since(self, before: Self) -> Option<Contention> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)? as f64;
        let (busy, own) = (self.busy.saturating_sub(before.busy), self.own.saturating_sub(before.own));
        let stolen = self.stolen.saturating_sub(before.stolen);
        Some(Contention { stolen: stolen as f64 / all, others: busy.saturating_sub(own) as f64 / all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_counts_our_own_time() {
        let before = system::ticks().unwrap();
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 50 {
            std::hint::spin_loop();
        }
        let now = system::ticks().unwrap();
        assert!(now.own > before.own && now.all > before.all && now.busy <= now.all, "{before:?} {now:?}");
    }

    #[test]
    fn others_have_what_is_neither_idle_nor_ours() {
        let before = Ticks { all: 1000, busy: 155, stolen: 25, own: 90 };
        // Of another 1000 ticks 700 are ours, 60 of other processes, 140 of the hypervisor.
        let now = Ticks { all: 2000, busy: 915, stolen: 165, own: 790 };
        let contention = now.since(before).unwrap();
        assert_eq!(contention, Contention { stolen: 0.14, others: 0.06 });
        assert_eq!(
            contention.note().unwrap(),
            "others took 20 % of the CPU time while this was measured (the hypervisor 14 %, other processes 6 %): this machine alone is \
             faster"
        );
        assert_eq!(Contention { stolen: 0.004, others: 0.005 }.note(), None);
        assert!(contention.disturbs() && !Contention { stolen: 0.004, others: 0.015 }.disturbs());
        assert_eq!(before.since(before), None, "no time has passed");
    }
}
