//! The gathered stages of a device of a sharded placement: a least-recently-used window over the
//! stages.

use spipe_base::Bytes;

/// The gathered stages of a device, least recently used first.
#[derive(Clone, Debug)]
pub struct Window {
    resident: usize,
    stages: Vec<usize>,
}

/// How a use of a stage finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Gathered by an earlier use.
    Present,
    /// Gathered for this use, in place of another stage if the window is full.
    Gathered {
        /// The stage that is dropped.
        instead_of: Option<usize>,
    },
}

impl Window {
    /// An empty window of at most `resident` stages.
    pub const fn new(resident: usize) -> Self {
        Self { resident, stages: Vec::new() }
    }

    /// Records the next use, of `stage`.
    pub fn touch(&mut self, stage: usize) -> Use {
        let present = self.stages.iter().position(|other| *other == stage);
        let instead_of = (present.is_none() && self.stages.len() >= self.resident).then_some(0);
        let dropped = present.or(instead_of).map(|index| self.stages.remove(index));
        self.stages.push(stage);
        if present.is_some() { Use::Present } else { Use::Gathered { instead_of: dropped } }
    }
}

/// A forward or backward of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The stage, counted from the first of the model.
    pub stage: usize,
    /// Whether it is the backward.
    pub backward: bool,
}

/// The passes of a device on one microbatch: the forwards of all stages, then the backwards down to
/// stage `first`, the first one that has a backward. There are no backwards if `first` is `None`.
pub fn round(stages: usize, first: Option<usize>) -> impl Iterator<Item = Pass> + Clone {
    let forward = (0..stages).map(|stage| Pass { stage, backward: false });
    forward.chain((first.unwrap_or(stages)..stages).rev().map(|stage| Pass { stage, backward: true }))
}

/// How often each of `stages` stages is gathered in an iteration of `rounds` microbatches per
/// device, with a window of `resident` stages.
pub fn gathers(stages: usize, first: Option<usize>, (rounds, resident): (u64, usize)) -> Vec<u64> {
    let mut window = Window::new(resident);
    let mut counts = vec![0; stages];
    // All rounds from the third on are alike.
    for index in 0..rounds.min(3) {
        let times = if index == 2 { rounds - 2 } else { 1 };
        for pass in round(stages, first) {
            if window.touch(pass.stage) != Use::Present {
                counts[pass.stage] += times;
            }
        }
    }
    counts
}

/// The stay of a stage in one place of the window, from the pass of its first use to that of its
/// last one.
#[derive(Clone, Copy, Debug)]
struct Stay {
    stage: usize,
    first: usize,
    last: usize,
}

/// The bytes of the stages that may be gathered during each pass of the first two rounds of an iteration; later rounds
/// are alike. `bytes` are those of a gathered stage, and those that it takes besides while it may still be arriving: a
/// stage is gathered as soon as the one that it replaces has been used for the last time.
pub(crate) fn gathered(
    (stages, first): (usize, Option<usize>),
    resident: usize,
    bytes: impl Fn(usize) -> (Bytes, Bytes),
) -> Vec<(Pass, Bytes)> {
    const ROUNDS: usize = 3;
    let passes: Vec<Pass> = std::iter::repeat_n(round(stages, first), ROUNDS).flatten().collect();
    let mut window = Window::new(resident);
    // The open stay of each gathered stage, and from when its place is free for it.
    let mut open: Vec<Option<(usize, Stay)>> = vec![None; stages];
    let mut changes = Changes(vec![(Bytes::ZERO, Bytes::ZERO); passes.len() + 1]);
    for (time, Pass { stage, .. }) in passes.iter().copied().enumerate() {
        if let Use::Gathered { instead_of } = window.touch(stage) {
            let before = instead_of.and_then(|old| open[old].take());
            let free = before.map_or(0, |(_, stay)| stay.last + 1);
            before.into_iter().for_each(|closed| changes.add(closed, &bytes));
            open[stage] = Some((free, Stay { stage, first: time, last: time }));
        }
        open[stage].iter_mut().for_each(|(_, stay)| stay.last = time);
    }
    open.into_iter().flatten().for_each(|stay| changes.add(stay, &bytes));
    // The last round is left out, because the one after it is unknown.
    let known = passes.len() / ROUNDS * (ROUNDS - 1);
    passes.into_iter().zip(changes.sums()).take(known).collect()
}

/// The bytes that come and go with each pass.
struct Changes(Vec<(Bytes, Bytes)>);

impl Changes {
    /// Adds a stay whose place is free from pass `free` on.
    fn add(&mut self, (free, stay): (usize, Stay), bytes: impl Fn(usize) -> (Bytes, Bytes)) {
        let (whole, arriving) = bytes(stay.stage);
        self.0[free].0 += whole + arriving;
        self.0[stay.first].1 += arriving;
        self.0[stay.last + 1].1 += whole;
    }

    /// The bytes during each pass.
    fn sums(&self) -> impl Iterator<Item = Bytes> {
        self.0.iter().scan(Bytes::ZERO, |held, (come, go)| {
            *held = *held + *come - *go;
            Some(*held)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recently_used_stages_are_not_gathered_again() {
        assert_eq!(gathers(4, Some(0), (1, 1)), [2, 2, 2, 1]);
        assert_eq!(gathers(4, Some(0), (1, 2)), [2, 2, 1, 1]);
        assert_eq!(gathers(4, Some(0), (3, 2)), [4, 4, 3, 3]);
        assert_eq!(gathers(4, Some(0), (3, 4)), [1, 1, 1, 1]);
        // The first stage has no backward: a round ends at the second stage, which is still
        // gathered in the next.
        assert_eq!(gathers(3, Some(1), (2, 2)), [2, 1, 2]);
        assert_eq!(gathers(3, None, (2, 2)), [2, 2, 2]);
        assert_eq!(gathers(3, None, (2, 3)), [1, 1, 1]);
    }

    #[test]
    fn a_stage_is_gathered_once_the_one_that_it_replaces_has_been_used() {
        // A digit for each stage: 1 while it is gathered, 2 while it may still be arriving.
        let bytes = |stage: usize| (Bytes::new(10u64.pow(stage as u32)), Bytes::new(10u64.pow(stage as u32)));
        let held: Vec<u64> = gathered((3, Some(0)), 2, bytes).into_iter().map(|(_, bytes)| bytes.get()).collect();
        assert_eq!(held[..2], [21, 210]);
        assert_eq!(held[3..5], [110, 12]);
        // The forward of the next round.
        assert_eq!(held[6], 11);
        assert_eq!(held.len(), 12);
    }
}
