//! CPU time that the hypervisor and other processes took during a measurement.

use std::fmt;

/// An idle system takes less than this share.
const WORTH_TELLING: f64 = 0.01;

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
        (self.stolen + self.others >= WORTH_TELLING).then(|| self.to_string())
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
pub(crate) struct Watch {
    before: Option<Ticks>,
}

impl Watch {
    /// Starts a measurement.
    pub fn start() -> Self {
        Self { before: Ticks::now() }
    }

    /// The contention since the start; none where it is not counted.
    pub fn contention(self) -> Option<Contention> {
        Ticks::now().zip(self.before).and_then(|(now, before)| now.since(before))
    }
}

/// Times since boot, or since the start of the process, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    /// Of all cores, idle or not.
    all: u64,
    busy: u64,
    stolen: u64,
    /// Of all threads of this process, including those that have ended.
    own: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        let read = |file: &str| std::fs::read_to_string(file).ok();
        Self::parse(&read("/proc/stat")?, &read("/proc/self/stat")?)
    }

    /// `machine` is `/proc/stat`, `process` is `/proc/self/stat`.
    fn parse(machine: &str, process: &str) -> Option<Self> {
        let line = machine.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|number| number.parse().ok()).collect();
        let [user, nice, system, idle, waiting, hard, soft, stolen, ..] = ticks[..] else { return None };
        let busy = user + nice + system + hard + soft;
        // Its name may have spaces; what follows the parenthesis is the third field.
        let mut fields = process.rsplit_once(')')?.1.split_whitespace().skip(11);
        let own = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
        Some(Self { all: busy + idle + waiting + stolen, busy, stolen, own })
    }

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

    const BEFORE: [&str; 2] = [
        "cpu  100 0 50 800 20 0 5 25 0 0\ncpu0 50 0 25 400 10 0 2 12 0 0\n",
        "12 (spipe (run)) S 1 12 12 0 -1 4194304 1 2 3 4 60 30 0 0 20 0 1 0 9",
    ];

    #[test]
    fn ticks_are_read_as_linux_writes_them() {
        let ticks = Ticks::parse(BEFORE[0], BEFORE[1]);
        assert_eq!(ticks, Some(Ticks { all: 1000, busy: 155, stolen: 25, own: 90 }));
        assert_eq!(Ticks::parse("intr 1 2", BEFORE[1]), None);
        assert_eq!(Ticks::parse(BEFORE[0], "12 spipe"), None);
    }

    #[test]
    fn others_have_what_is_neither_idle_nor_ours() {
        let before = Ticks::parse(BEFORE[0], BEFORE[1]).unwrap();
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
        assert_eq!(before.since(before), None, "no time has passed");
    }
}
