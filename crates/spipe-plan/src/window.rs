//! The gathered stages of a device of a sharded placement: a least-recently-used window over the
//! stages.

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

/// The stages that may be gathered during a pass.
#[derive(Clone, Debug)]
pub(crate) struct Gathered {
    pub pass: Pass,
    /// The stages, and whether each may still be arriving: a stage is gathered as soon as the one
    /// that it replaces has been used for the last time.
    pub stages: Vec<(usize, bool)>,
}

/// The gathered stages during each pass of the first two rounds of an iteration; later rounds are
/// alike.
pub(crate) fn gathered(stages: usize, first: Option<usize>, resident: usize) -> Vec<Gathered> {
    const ROUNDS: usize = 3;
    let passes: Vec<Pass> = std::iter::repeat_n(round(stages, first), ROUNDS).flatten().collect();
    let mut window = Window::new(resident);
    let mut places: Vec<Vec<Stay>> = Vec::new();
    for (time, Pass { stage, .. }) in passes.iter().copied().enumerate() {
        let holds = |stage: usize| move |place: &Vec<Stay>| place.last().is_some_and(|stay| stay.stage == stage);
        match window.touch(stage) {
            Use::Present => {
                let stay = places.iter_mut().find(|place| holds(stage)(place)).and_then(|place| place.last_mut());
                stay.into_iter().for_each(|stay| stay.last = time);
            }
            Use::Gathered { instead_of } => {
                let stay = Stay { stage, first: time, last: time };
                match instead_of.and_then(|old| places.iter_mut().find(|place| holds(old)(place))) {
                    Some(place) => place.push(stay),
                    None => places.push(vec![stay]),
                }
            }
        }
    }
    let at = |(time, pass): (usize, &Pass)| {
        let next = places.iter().filter_map(|place| place.get(place.partition_point(|stay| stay.last < time)));
        Gathered { pass: *pass, stages: next.map(|stay| (stay.stage, stay.first > time)).collect() }
    };
    // The last round is left out, because the one after it is unknown.
    let known = passes.len() / ROUNDS * (ROUNDS - 1);
    passes.iter().enumerate().take(known).map(at).collect()
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
        let gathered = gathered(3, Some(0), 2);
        let of = |time: usize| {
            let mut stages = gathered[time].stages.clone();
            stages.sort_unstable();
            stages
        };
        assert_eq!(of(0), [(0, false), (1, true)]);
        assert_eq!(of(1), [(1, false), (2, true)]);
        assert_eq!(of(3), [(1, false), (2, false)]);
        assert_eq!(of(4), [(0, true), (1, false)]);
        // The forward of the next round.
        assert_eq!(of(6), [(0, false), (1, false)]);
    }
}
