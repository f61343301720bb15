//! Ways to cut the first layers of a device into stages, by what they need.

use super::Help;
use spipe_plan::OFFLOAD_SLOTS;

/// One of the stages of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// The layer after its last one.
    pub to: usize,
    pub help: Help,
    pub recomputed: usize,
}

/// The same with what it keeps on its device, the copies that it has on their way, and what it needs of the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub choice: Choice,
    pub stays: u64,
    pub moving: (u64, u64),
    pub of_host: u64,
}

/// A way to cut the first layers, by what it needs, its last stage, and the way before that: by layer and number.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub stays: u64,
    pub moving: Moving,
    pub of_host: u64,
    pub last: Option<(Choice, usize, usize)>,
}

impl Way {
    /// No layers.
    pub const fn start() -> Self {
        Self { stays: 0, moving: Moving::NONE, of_host: 0, last: None }
    }

    /// With the stage behind it, which starts at `last`.
    pub fn with(&self, piece: &Piece, last: (usize, usize)) -> Self {
        Self {
            stays: self.stays + piece.stays,
            moving: self.moving.with(piece.moving),
            of_host: self.of_host + piece.of_host,
            last: Some((piece.choice, last.0, last.1)),
        }
    }

    /// What is held on the device.
    pub fn held(&self) -> u64 {
        self.stays + self.moving.total()
    }

    /// Whether it needs no more than `other`, whatever comes behind.
    fn needs_no_more(&self, other: &Self) -> bool {
        self.of_host <= other.of_host && self.stays + self.moving.beyond(&other.moving) <= other.stays
    }
}

/// Adds `way` unless one of `ways` needs no more, and takes out those that need no less; whether there was room for it.
pub(super) fn keep(ways: &mut Vec<Way>, most: usize, way: Way) -> bool {
    if ways.iter().any(|other| other.needs_no_more(&way)) {
        return true;
    }
    ways.retain(|other| !way.needs_no_more(other));
    let room = ways.len() < most;
    if room {
        ways.push(way);
    }
    room
}

/// What the stages of a device have on its way to the host and back, in slots that they share and in which the largest count: the bytes in
/// each slot, the most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moving([u64; OFFLOAD_SLOTS as usize]);

impl Moving {
    pub const NONE: Self = Self([0; OFFLOAD_SLOTS as usize]);

    /// The same with so many copies of what another stage offloads.
    pub fn with(mut self, (bytes, copies): (u64, u64)) -> Self {
        let first = self.0.partition_point(|other| *other >= bytes);
        let all = self.0.len();
        let last = all.min(first + copies.min(OFFLOAD_SLOTS) as usize);
        self.0.copy_within(first..all - (last - first), last);
        self.0[first..last].fill(bytes);
        self
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// How much more it may come to than `other` at most, whatever joins both: what joins fills all slots but some of the first.
    pub fn beyond(&self, other: &Self) -> u64 {
        let (mut own, mut others, mut beyond) = (0, 0, 0);
        for (one, other) in self.0.iter().zip(&other.0) {
            (own, others) = (own + one, others + other);
            beyond = beyond.max(own.saturating_sub(others));
        }
        beyond
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(list: &[(u64, u64)]) -> Moving {
        list.iter().fold(Moving::NONE, |moving, more| moving.with(*more))
    }

    proptest! {
        #[test]
        fn the_largest_of_all_that_moves_are_in_the_slots(list in prop::collection::vec((0u64..9, 0u64..6), 0..5)) {
            let copies = |(bytes, copies): &(u64, u64)| vec![*bytes; *copies as usize];
            let mut all: Vec<u64> = list.iter().flat_map(copies).collect();
            all.sort_unstable_by(|a, b| b.cmp(a));
            prop_assert_eq!(of(&list).total(), all.iter().take(OFFLOAD_SLOTS as usize).sum::<u64>());
        }

        /// Large things that join show the difference of any number of the first.
        #[test]
        fn nothing_that_joins_makes_more_than_that_of_the_difference(
            one in prop::collection::vec((0u64..9, 1u64..4), 0..4),
            other in prop::collection::vec((0u64..9, 1u64..4), 0..4),
            joining in prop::collection::vec((0u64..9, 1u64..4), 0..4),
        ) {
            let (one, other) = (of(&one), of(&other));
            let more = |more: &[(u64, u64)]| {
                let with = |moving: Moving| more.iter().fold(moving, |moving, more| moving.with(*more)).total();
                with(one).saturating_sub(with(other))
            };
            prop_assert!(more(&joining) <= one.beyond(&other));
            let most = (0..=OFFLOAD_SLOTS).map(|copies| more(&[(100, copies)])).max();
            prop_assert_eq!(most, Some(one.beyond(&other)));
        }
    }
}
