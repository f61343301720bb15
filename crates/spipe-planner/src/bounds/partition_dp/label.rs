//! Labels of the dynamic program: path lengths through the stages behind a layer, with dominance.

use crate::{costs::HostOffload, problem::tolerances::LABELS};

/// Limits on the labels per layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LabelLimits {
    /// Limit on their number.
    pub most: usize,
    /// Labels that differ by less than this fraction of the iteration are merged.
    pub slack: f64,
}

impl LabelLimits {
    /// From the fastest to the most exact.
    pub const ALL: [Self; 2] = [Self { most: 24, slack: LABELS }, Self { most: 256, slack: LABELS }];
}

/// Limit on distinguished sockets, as most machines have at most two; stages on others are bounded one
/// by one.
pub(crate) const SOCKETS: usize = 2;

/// Limit on the microbatches over which the longest round trips are followed: eight devices of 1F1B have
/// at most eight in flight.
const TURNS: usize = 8;

/// Z: the longest paths, in ms, from a forward to the backward that the forward of 1, 2, 3, …
/// microbatches later follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns([f64; TURNS]);

impl Turns {
    /// Returns the paths that stay on one stage.
    pub fn staying(busy: f64) -> Self {
        Self(std::array::from_fn(|turn| (turn + 1) as f64 * busy))
    }

    /// Returns the paths from the stage before. It is busy for `busy` ms per microbatch, has
    /// `fewer` more microbatches in flight, and takes `way` ms there and back including its own two
    /// passes.
    pub fn before(&self, busy: f64, (way, fewer): (f64, usize)) -> Self {
        let mut turns = Self::staying(busy);
        for turn in 0..TURNS {
            let stays = if turn > 0 { turns.0[turn - 1] + busy } else { busy };
            let goes = turn.checked_sub(fewer).map_or(0.0, |behind| way + self.0[behind]);
            turns.0[turn] = stays.max(goes);
        }
        turns
    }

    /// Returns the least time, in ms, of the microbatches that `counts` divides.
    pub fn over(&self, counts: &TurnCounts) -> f64 {
        let over = |(time, (whole, rest)): (&f64, &(f64, f64))| whole * time + rest * self.0[0];
        self.0.iter().zip(&counts.0).map(over).fold(0.0, f64::max)
    }

    fn join(&mut self, other: &Self) {
        for (one, other) in self.0.iter_mut().zip(&other.0) {
            *one = one.min(*other);
        }
    }
}

/// Division of a number of microbatches into whole paths of 1, 2, 3, … microbatches and a
/// remainder.
pub(crate) struct TurnCounts([(f64, f64); TURNS]);

impl TurnCounts {
    pub fn new(microbatches: u64) -> Self {
        Self(std::array::from_fn(|turn| {
            let length = turn as u64 + 1;
            ((microbatches / length) as f64, (microbatches % length) as f64)
        }))
    }
}

/// A label: the longest paths through some stages, in ms, and the bytes that they hold on hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suffix {
    /// U and L.
    pub first: f64,
    pub back: f64,
    /// V.
    pub passes: f64,
    /// X.
    pub between: f64,
    /// Z.
    pub turns: Turns,
    /// The steps on sockets.
    pub stepped: f64,
    /// Bytes in the memory of each socket.
    pub held: [u64; SOCKETS],
}

impl Suffix {
    pub const NOTHING: Self = Self {
        first: 0.0,
        back: 0.0,
        passes: 0.0,
        between: 0.0,
        turns: Turns([0.0; TURNS]),
        stepped: 0.0,
        held: [0; SOCKETS],
    };

    /// Returns the components that dominance compares.
    pub fn shape(&self) -> DominanceKey {
        DominanceKey([self.passes, self.between, self.stepped].map(|ms| ms as f32))
    }

    /// Takes the minimum with `other` in every component.
    fn join(&mut self, other: &Self) {
        (self.first, self.back) = (self.first.min(other.first), self.back.min(other.back));
        self.passes = self.passes.min(other.passes);
        (self.between, self.stepped) = (self.between.min(other.between), self.stepped.min(other.stepped));
        self.turns.join(&other.turns);
        for socket in 0..SOCKETS {
            self.held[socket] = self.held[socket].min(other.held[socket]);
        }
    }
}

/// Components that dominance compares, in ms. They only decide which labels are merged, so they may
/// be rounded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DominanceKey([f32; 3]);

impl DominanceKey {
    /// Returns whether it is no worse in any component, up to `slack` ms.
    fn covers(&self, other: &Self, slack: f32) -> bool {
        // Without a branch per component, which would be mispredicted.
        self.0.iter().zip(&other.0).fold(true, |covers, (one, other)| covers & (*one <= other + slack))
    }

    /// Returns the loss if the two are merged, in ms.
    fn distance(&self, other: &Self) -> f32 {
        let lost = |(one, other): (&f32, &f32)| (one - other).abs();
        self.0.iter().zip(&other.0).map(lost).sum()
    }
}

/// A label with its first stage, and the index of the label at the end of that stage that it
/// extends.
#[derive(Clone, Copy)]
pub(crate) struct Label {
    pub behind: Suffix,
    pub to: usize,
    pub next: usize,
    pub host_offload: HostOffload,
    pub recomputed: usize,
}

/// The labels of a layer.
#[derive(Clone, Default)]
pub(crate) struct LabelSet {
    pub list: Vec<Label>,
    /// By label, the components of the first of all labels merged into it.
    shapes: Vec<DominanceKey>,
}

impl LabelSet {
    /// Inserts a label. If a known one dominates it up to `slack` ms, or the limit is reached, it
    /// is merged into that one or the nearest one, which takes the minimum of both.
    pub fn keep(&mut self, mut way: Label, (grain, slack): (LabelLimits, f64)) {
        let shape = way.behind.shape();
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
        let distance = |known: &Label| known.behind.shape().distance(&shape);
        let distances = self.list.iter().map(distance).enumerate();
        if let Some((nearest, _)) = distances.min_by(|(_, one), (_, other)| one.total_cmp(other)) {
            self.list[nearest].behind.join(&way.behind);
        }
    }
}
