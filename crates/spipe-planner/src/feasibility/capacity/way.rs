//! Ways to cut the first layers of a device into stages, by what they need.

use crate::feasibility::capacity::HostOffload;
use spipe_plan::OFFLOAD_SLOTS;

/// One of the stages of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    /// The layer after its last one.
    pub to: usize,
    pub host_offload: HostOffload,
    pub recomputed: usize,
}

/// The same with what it keeps on its device, the copies that it has on their way, and what it needs of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub choice: Choice,
    pub stays: u64,
    pub moving: (u64, u64),
    pub of_host: u64,
}

/// Stages that need so much of the host are found among those that need no more than `limit` in passing, if of each copy on its way what
/// is beyond `slot` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub of_host: u64,
    pub limit: u64,
    pub slot: u64,
}

/// What a way needs, the host first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Needs {
    pub of_host: u64,
    /// What it keeps on its device, and what copies on their way have beyond a slot.
    pub weight: u64,
}

/// A way to cut the first layers, by what it needs, its last stage, and the way before that: by layer and number.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub needs: Needs,
    stays: u64,
    moving: Moving,
    pub last: Option<(Choice, usize, usize)>,
}

impl Way {
    /// No layers.
    pub const fn start() -> Self {
        Self { needs: Needs { of_host: 0, weight: 0 }, stays: 0, moving: Moving::NONE, last: None }
    }

    /// What it needs with the stage behind it, with slots of so much.
    pub fn needs_with(&self, piece: &Piece, slot: u64) -> Needs {
        let (bytes, copies) = piece.moving;
        let weight = self.needs.weight + piece.stays + bytes.saturating_sub(slot) * copies;
        Needs { of_host: self.needs.of_host + piece.of_host, weight }
    }

    /// With the stage behind it, which starts at `last`, and needs that are known.
    pub fn with(&self, piece: &Piece, needs: Needs, last: (usize, usize)) -> Self {
        Self {
            needs,
            stays: self.stays + piece.stays,
            moving: self.moving.with(piece.moving),
            last: Some((piece.choice, last.0, last.1)),
        }
    }

    /// How it is found again under a limit under which it fits: with its least full slot, its weight is what it holds.
    pub fn found(&self, limit: u64) -> Found {
        Found { of_host: self.needs.of_host, limit, slot: self.moving.least() }
    }

    /// What is held on the device.
    pub fn held(&self) -> u64 {
        self.stays + self.moving.total()
    }
}

/// Adds the way with those needs unless one of `ways` needs no more, and takes out those that need no less; whether there was room for it.
/// They are in the order of what they need of the host, of which the next one needs more, and the device less.
pub(crate) fn keep(ways: &mut Vec<Way>, most: usize, needs: Needs, way: impl FnOnce() -> Way) -> bool {
    let behind = ways.partition_point(|other| other.needs.of_host <= needs.of_host);
    let last = behind.checked_sub(1).map(|last| ways[last].needs);
    if last.is_some_and(|last| last.weight <= needs.weight) {
        return true;
    }
    let first = behind - usize::from(last.is_some_and(|last| last.of_host == needs.of_host));
    let worse = ways[first..].iter().take_while(|other| other.needs.weight >= needs.weight).count();
    if worse == 0 && ways.len() >= most {
        return false;
    }
    ways.splice(first..first + worse, [way()]);
    true
}

/// What the stages of a device have on its way to the host and back, in slots that they share and in which the largest count: the bytes in
/// each slot, the most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moving([u64; OFFLOAD_SLOTS as usize]);

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

    /// What is in the last slot.
    const fn least(&self) -> u64 {
        self.0[self.0.len() - 1]
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
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

        /// For slots of any size the weight and what fills the slots are no less than what is held, and for one they are that.
        #[test]
        fn the_best_slot_counts_what_is_held(list in prop::collection::vec((0u64..9, 0u64..9, 0u64..6), 0..5)) {
            let choice = Choice { to: 0, host_offload: HostOffload::NONE, recomputed: 0 };
            let add = |way: Way, slot: u64| {
                list.iter().fold(way, |way, (stays, bytes, copies)| {
                    let piece = Piece { choice, stays: *stays, moving: (*bytes, *copies), of_host: 0 };
                    way.with(&piece, way.needs_with(&piece, slot), (0, 0))
                })
            };
            let counted = |slot: u64| add(Way::start(), slot).needs.weight + OFFLOAD_SLOTS * slot;
            let slots = list.iter().map(|(_, bytes, _)| *bytes).chain([0]);
            prop_assert_eq!(slots.map(counted).min(), Some(add(Way::start(), 0).held()));
            prop_assert!((0..12).all(|slot| counted(slot) >= add(Way::start(), slot).held()));
            prop_assert_eq!(counted(add(Way::start(), 0).found(0).slot), add(Way::start(), 0).held());
        }

        #[test]
        fn ways_are_kept_that_none_is_better_than(needs in prop::collection::vec((0u64..9, 0u64..9), 0..20)) {
            let mut ways = Vec::new();
            for (weight, of_host) in &needs {
                let needs = Needs { of_host: *of_host, weight: *weight };
                let kept = keep(&mut ways, usize::MAX, needs, || Way { needs, ..Way::start() });
                prop_assert!(kept);
            }
            let better = |one: &(u64, u64), other: &(u64, u64)| one != other && one.0 <= other.0 && one.1 <= other.1;
            let mut best: Vec<(u64, u64)> =
                needs.iter().filter(|one| !needs.iter().any(|other| better(other, one))).copied().collect();
            best.sort_unstable_by_key(|(_, of_host)| *of_host);
            best.dedup();
            let kept: Vec<(u64, u64)> = ways.iter().map(|way| (way.needs.weight, way.needs.of_host)).collect();
            prop_assert_eq!(kept, best);
        }
    }
}
