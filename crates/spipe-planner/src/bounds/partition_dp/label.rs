//! What matters of the stages behind a layer, and which ways to go on from it are kept.

use crate::costs::HostOffload;

/// How finely ways to go on from a layer are told apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grain {
    /// How many there are at most.
    pub most: usize,
    /// Those that differ by less than this fraction of the iteration are the same.
    pub slack: f64,
    /// Whether the sockets are told apart.
    pub sockets: bool,
    /// Whether the least iteration is looked for where the limit refuses not all.
    pub bisects: bool,
}

impl Grain {
    /// From the one that is fast to the one that is exact.
    pub const ALL: [Self; 3] = [
        Self { most: 24, slack: 3e-4, sockets: false, bisects: true },
        Self { most: 64, slack: 1e-3, sockets: true, bisects: false },
        Self { most: 256, slack: 3e-4, sockets: true, bisects: true },
    ];
}

/// How many sockets are told apart; what is beyond counts only by itself.
pub(crate) const SOCKETS: usize = 2;

/// How many microbatches further the longest ways to and fro are followed.
const TURNS: usize = 8;

/// Z: the longest ways, in ms, from a forward to the backward behind which the forward of 1, 2, 3, … microbatches later comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns([f64; TURNS]);

impl Turns {
    /// Those that stay on one stage.
    pub fn staying(busy: f64) -> Self {
        Self(std::array::from_fn(|turn| (turn + 1) as f64 * busy))
    }

    /// Those on the stage before, which is `busy` for each microbatch, has `fewer` more of them in flight, and takes `way` there and back
    /// with its own two passes.
    pub fn before(&self, busy: f64, (way, fewer): (f64, usize)) -> Self {
        let mut turns = Self::staying(busy);
        for turn in 0..TURNS {
            let stays = if turn > 0 { turns.0[turn - 1] + busy } else { busy };
            let goes = turn.checked_sub(fewer).map_or(0.0, |behind| way + self.0[behind]);
            turns.0[turn] = stays.max(goes);
        }
        turns
    }

    /// How long so many microbatches take at least.
    pub fn over(&self, counts: &Counts) -> f64 {
        let over = |(time, (whole, rest)): (&f64, &(f64, f64))| whole * time + rest * self.0[0];
        self.0.iter().zip(&counts.0).map(over).fold(0.0, f64::max)
    }

    fn join(&mut self, other: &Self) {
        for (one, other) in self.0.iter_mut().zip(&other.0) {
            *one = one.min(*other);
        }
    }
}

/// How many whole ways of 1, 2, 3, … microbatches there are in a number of them, and how many microbatches are left.
pub(crate) struct Counts([(f64, f64); TURNS]);

impl Counts {
    pub fn new(microbatches: u64) -> Self {
        Self(std::array::from_fn(|turn| {
            let length = turn as u64 + 1;
            ((microbatches / length) as f64, (microbatches % length) as f64)
        }))
    }
}

/// The longest ways through some stages, in ms, and what they hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behind {
    /// U and L.
    pub first: f64,
    pub back: f64,
    /// V.
    pub passes: f64,
    /// X, and the sum of X over all sockets.
    pub between: f64,
    pub around: f64,
    /// The sum over all sockets of the longest way around: from the gradient of a stage's first microbatch to that of the next iteration.
    pub cycle: f64,
    /// Z.
    pub turns: Turns,
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
        around: 0.0,
        cycle: 0.0,
        turns: Turns([0.0; TURNS]),
        sum: 0.0,
        since: [0.0; SOCKETS],
        closed: [f64::NEG_INFINITY; SOCKETS],
        last: [f64::NEG_INFINITY; SOCKETS],
        all: [f64::NEG_INFINITY; SOCKETS],
        held: [0; SOCKETS],
    };

    /// What ways are told apart by, the sockets only if `sockets` says so.
    pub fn shape(&self, sockets: bool) -> Shape {
        let mut shape = [0.0; 8];
        let shared = [self.sum, self.passes, self.between].into_iter();
        let of_sockets = self.all.into_iter().chain(self.last).filter(|_| sockets);
        let of_all = [self.around, self.cycle].into_iter().filter(|_| !sockets);
        shape.iter_mut().zip(shared.chain(of_sockets).chain(of_all)).for_each(|(part, ms)| *part = ms as f32);
        Shape(shape)
    }

    /// What is as good as both.
    fn join(&mut self, other: &Self) {
        (self.first, self.back) = (self.first.min(other.first), self.back.min(other.back));
        self.passes = self.passes.min(other.passes);
        (self.between, self.around) = (self.between.min(other.between), self.around.min(other.around));
        (self.sum, self.cycle) = (self.sum.min(other.sum), self.cycle.min(other.cycle));
        self.turns.join(&other.turns);
        for socket in 0..SOCKETS {
            self.last[socket] = self.last[socket].min(other.last[socket]);
            self.all[socket] = self.all[socket].min(other.all[socket]);
            self.closed[socket] = self.closed[socket].min(other.closed[socket]);
            self.since[socket] = self.since[socket].min(other.since[socket]);
            self.held[socket] = self.held[socket].min(other.held[socket]);
        }
    }
}

/// What ways are told apart by, in ms. It only says which become one, so that it may be rounded; eight are compared at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape([f32; 8]);

impl Shape {
    /// Whether it is no worse in anything, but for `slack` ms.
    fn covers(&self, other: &Self, slack: f32) -> bool {
        // Without a branch for each, which could not be foretold.
        self.0.iter().zip(&other.0).fold(true, |covers, (one, other)| covers & (*one <= other + slack))
    }

    /// How much is lost where the two become one, in ms.
    fn distance(&self, other: &Self) -> f32 {
        let lost = |(one, other): (&f32, &f32)| {
            if one.is_finite() && other.is_finite() { (one - other).abs() } else { 0.0 }
        };
        self.0.iter().zip(&other.0).map(lost).sum()
    }
}

/// A way to go on from a layer: its first stage, and which of the ways from the end of that.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub behind: Behind,
    pub to: usize,
    pub next: usize,
    pub host_offload: HostOffload,
    pub recomputed: usize,
    /// For how long hosts step what it is left open which layers it is of, in ms.
    pub hosted: f64,
}

/// The ways to go on from a layer.
#[derive(Clone, Default)]
pub(crate) struct Ways {
    pub list: Vec<Way>,
    /// By way, the shape of the first of all ways that became this one.
    shapes: Vec<Shape>,
}

impl Ways {
    /// Adds a way, unless one of them is as good but for `slack` ms: then that becomes as good as both.
    pub fn keep(&mut self, mut way: Way, (grain, slack): (Grain, f64)) {
        let shape = way.behind.shape(grain.sockets);
        if let Some(index) = self.shapes.iter().position(|known| known.covers(&shape, slack as f32)) {
            self.list[index].behind.join(&way.behind);
            return;
        }
        for index in (0..self.shapes.len()).rev() {
            if shape.covers(&self.shapes[index], 0.0) {
                way.behind.join(&self.list[index].behind);
                self.shapes.swap_remove(index);
                self.list.swap_remove(index);
            }
        }
        if self.list.len() < grain.most {
            self.shapes.push(shape);
            self.list.push(way);
            return;
        }
        let distance = |known: &Way| known.behind.shape(grain.sockets).distance(&shape);
        let distances = self.list.iter().map(distance).enumerate();
        if let Some((nearest, _)) = distances.min_by(|(_, one), (_, other)| one.total_cmp(other)) {
            self.list[nearest].behind.join(&way.behind);
        }
    }
}
