//! What matters of the stages behind a layer, and which ways to go on from it are kept.

use crate::figures::Help;

/// How finely ways to go on from a layer are told apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grain {
    /// How many there are at most.
    pub most: usize,
    /// Those that differ by less than this fraction of the iteration are the same.
    pub slack: f64,
    /// Whether the sockets are told apart.
    pub sockets: bool,
}

impl Grain {
    /// From the one that is fast to the one that is exact.
    pub const ALL: [Self; 3] = [
        Self { most: 24, slack: 3e-4, sockets: false },
        Self { most: 64, slack: 1e-3, sockets: true },
        Self { most: 256, slack: 3e-4, sockets: true },
    ];
}

/// How many sockets are told apart; what is beyond counts only by itself.
pub(super) const SOCKETS: usize = 2;

/// The longest ways through some stages, in ms, and what they hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind {
    /// U and L.
    pub first: f64,
    pub back: f64,
    /// V.
    pub passes: f64,
    /// X.
    pub between: f64,
    /// D and Y, by socket.
    pub last: [f64; SOCKETS],
    pub all: [f64; SOCKETS],
    /// Y at the first stage that a socket steps, and the forwards and activations before that.
    pub closed: [f64; SOCKETS],
    pub since: [f64; SOCKETS],
    /// The sum of the former, or V.
    pub sum: f64,
    /// Bytes in the memory of each socket.
    pub held: [u64; SOCKETS],
}

impl Behind {
    pub const NOTHING: Self = Self {
        first: 0.0,
        back: 0.0,
        passes: 0.0,
        between: 0.0,
        sum: 0.0,
        since: [0.0; SOCKETS],
        closed: [f64::NEG_INFINITY; SOCKETS],
        last: [f64::NEG_INFINITY; SOCKETS],
        all: [f64::NEG_INFINITY; SOCKETS],
        held: [0; SOCKETS],
    };

    /// What ways are told apart by, the sockets only if `sockets` says so.
    fn shape(&self, sockets: bool) -> impl Iterator<Item = f64> {
        [self.sum, self.passes, self.between].into_iter().chain(self.all.into_iter().filter(move |_| sockets))
    }

    /// Whether it is no worse in any of that, but for `slack` ms.
    fn covers(&self, other: &Self, sockets: bool, slack: f64) -> bool {
        self.shape(sockets).zip(other.shape(sockets)).all(|(one, other)| one <= other + slack)
    }

    /// How much is lost where the two become one, in ms.
    fn distance(&self, other: &Self, sockets: bool) -> f64 {
        let lost =
            |(one, other): (f64, f64)| if one.is_finite() && other.is_finite() { (one - other).abs() } else { 0.0 };
        self.shape(sockets).zip(other.shape(sockets)).map(lost).sum()
    }

    /// What is as good as both.
    fn join(&mut self, other: &Self) {
        (self.first, self.back) = (self.first.min(other.first), self.back.min(other.back));
        self.passes = self.passes.min(other.passes);
        (self.sum, self.between) = (self.sum.min(other.sum), self.between.min(other.between));
        for socket in 0..SOCKETS {
            self.last[socket] = self.last[socket].min(other.last[socket]);
            self.all[socket] = self.all[socket].min(other.all[socket]);
            self.closed[socket] = self.closed[socket].min(other.closed[socket]);
            self.since[socket] = self.since[socket].min(other.since[socket]);
            self.held[socket] = self.held[socket].min(other.held[socket]);
        }
    }
}

/// A way to go on from a layer: its first stage, and which of the ways from the end of that.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub behind: Behind,
    /// The same of the first of all ways that became this one.
    pub first: Behind,
    pub to: usize,
    pub next: usize,
    pub help: Help,
    pub recomputed: usize,
}

/// Adds a way to those that go on from a layer, unless one of them is as good but for `slack` ms: then that becomes as good as both.
pub(super) fn keep(ways: &mut Vec<Way>, mut way: Way, (grain, slack): (Grain, f64)) {
    if let Some(known) = ways.iter_mut().find(|known| known.first.covers(&way.behind, grain.sockets, slack)) {
        known.behind.join(&way.behind);
        return;
    }
    ways.retain(|known| {
        let covered = way.first.covers(&known.behind, grain.sockets, 0.0);
        if covered {
            way.behind.join(&known.behind);
        }
        !covered
    });
    if ways.len() < grain.most {
        ways.push(way);
        return;
    }
    let distance = |known: &&mut Way| known.behind.distance(&way.behind, grain.sockets);
    if let Some(nearest) = ways.iter_mut().min_by(|one, other| distance(one).total_cmp(&distance(other))) {
        nearest.behind.join(&way.behind);
    }
}
