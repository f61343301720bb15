//! Which stages a device has in whole that shares everything: as many as are resident, those used last.

/// The stages that are there, the one whose last use is longest ago first.
#[derive(Clone, Debug)]
pub struct Window {
    resident: usize,
    stages: Vec<usize>,
}

/// How a stage comes to be there for a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is there since an earlier use.
    There,
    /// It is gathered, in the place of another one if there is no room beside it.
    Gathered {
        /// The one that leaves.
        instead_of: Option<usize>,
    },
}

impl Window {
    /// Nothing is there yet of at most `resident` stages.
    pub const fn new(resident: usize) -> Self {
        Self { resident, stages: Vec::new() }
    }

    /// The next use is of `stage`.
    pub fn uses(&mut self, stage: usize) -> Use {
        let there = self.stages.iter().position(|there| *there == stage);
        let instead_of = (there.is_none() && self.stages.len() >= self.resident).then_some(0);
        let leaves = there.or(instead_of).map(|index| self.stages.remove(index));
        self.stages.push(stage);
        if there.is_some() { Use::There } else { Use::Gathered { instead_of: leaves } }
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

/// What a device computes in a round: forwards, and then backwards to the first stage that has one, if any has.
pub fn round(stages: usize, first: Option<usize>) -> impl Iterator<Item = Pass> + Clone {
    let forward = (0..stages).map(|stage| Pass { stage, backward: false });
    forward.chain((first.unwrap_or(stages)..stages).rev().map(|stage| Pass { stage, backward: true }))
}

/// How often each of so many stages is gathered in an iteration of so many rounds.
pub fn gathers(stages: usize, first: Option<usize>, (rounds, resident): (u64, usize)) -> Vec<u64> {
    let mut window = Window::new(resident);
    let mut counts = vec![0; stages];
    // From the second round on all are alike.
    for index in 0..rounds.min(3) {
        let times = if index == 2 { rounds - 2 } else { 1 };
        for pass in round(stages, first) {
            if window.uses(pass.stage) != Use::There {
                counts[pass.stage] += times;
            }
        }
    }
    counts
}

/// A stage that is in a place on a device from its first use to its last one.
#[derive(Clone, Copy, Debug)]
struct Stay {
    stage: usize,
    first: usize,
    last: usize,
}

/// What may be in whole while a pass computes.
#[derive(Clone, Debug)]
pub(crate) struct There {
    pub pass: Pass,
    /// Stages, and whether they may still be on their way: what is gathered comes as soon as what it replaces has been left.
    pub stages: Vec<(usize, bool)>,
}

/// For each pass of the first rounds of an iteration; later ones are alike.
pub(crate) fn there(stages: usize, first: Option<usize>, resident: usize) -> Vec<There> {
    const ROUNDS: usize = 3;
    let passes: Vec<Pass> = std::iter::repeat_n(round(stages, first), ROUNDS).flatten().collect();
    let mut window = Window::new(resident);
    let mut places: Vec<Vec<Stay>> = Vec::new();
    for (time, Pass { stage, .. }) in passes.iter().copied().enumerate() {
        let holds = |stage: usize| move |place: &Vec<Stay>| place.last().is_some_and(|stay| stay.stage == stage);
        match window.uses(stage) {
            Use::There => {
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
        There { pass: *pass, stages: next.map(|stay| (stay.stage, stay.first > time)).collect() }
    };
    // What follows the last round is not known.
    let known = passes.len() / ROUNDS * (ROUNDS - 1);
    passes.iter().enumerate().take(known).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_is_not_gathered_again() {
        assert_eq!(gathers(4, Some(0), (1, 1)), [2, 2, 2, 1]);
        assert_eq!(gathers(4, Some(0), (1, 2)), [2, 2, 1, 1]);
        assert_eq!(gathers(4, Some(0), (3, 2)), [4, 4, 3, 3]);
        assert_eq!(gathers(4, Some(0), (3, 4)), [1, 1, 1, 1]);
        // The first stage has no backward: a round ends at the second, which is there for the next.
        assert_eq!(gathers(3, Some(1), (2, 2)), [2, 1, 2]);
        assert_eq!(gathers(3, None, (2, 2)), [2, 2, 2]);
        assert_eq!(gathers(3, None, (2, 3)), [1, 1, 1]);
    }

    #[test]
    fn the_next_stage_comes_once_the_one_before_has_been_left() {
        let there = there(3, Some(0), 2);
        let of = |time: usize| {
            let mut stages = there[time].stages.clone();
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
