//! Labels of the cuts of a device's first layers into stages.

use crate::feasibility::capacity::HostOffload;
use spipe_plan::OFFLOAD_SLOTS;

/// One of the stages of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutStage {
    /// The layer after its last one.
    pub to: usize,
    pub host_offload: HostOffload,
    pub recomputed: usize,
}

/// A stage with its bytes: persistent on the device, per copied microbatch with the number of
/// copies, and on the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub choice: CutStage,
    pub stays: u64,
    pub moving: (u64, u64),
    pub of_host: u64,
}

/// The parameters with which a cut is found again: its host bytes, the limit on transient bytes,
/// and the slot size beyond which copies count as weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundCut {
    pub of_host: u64,
    pub limit: u64,
    pub slot: u64,
}

/// The resources of a label, the host first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Needs {
    pub of_host: u64,
    /// Persistent bytes on the device, and the bytes of copies beyond the slot size.
    pub weight: u64,
}

/// A label: a cut of the first layers, with its needs and its last stage. The predecessor is given
/// by layer and index.
#[derive(Clone, Copy)]
pub(crate) struct CutLabel {
    pub needs: Needs,
    stays: u64,
    moving: Moving,
    pub last: Option<(CutStage, usize, usize)>,
}

impl CutLabel {
    /// The label of no layers.
    pub const fn start() -> Self {
        Self { needs: Needs { of_host: 0, weight: 0 }, stays: 0, moving: Moving::NONE, last: None }
    }

    /// The needs with one more stage and slots of `slot` bytes.
    pub fn needs_with(&self, piece: &Piece, slot: u64) -> Needs {
        let (bytes, copies) = piece.moving;
        let weight = self.needs.weight + piece.stays + bytes.saturating_sub(slot) * copies;
        Needs { of_host: self.needs.of_host + piece.of_host, weight }
    }

    /// The label with one more stage, which has these needs; `last` is its predecessor.
    pub fn with(&self, piece: &Piece, needs: Needs, last: (usize, usize)) -> Self {
        Self {
            needs,
            stays: self.stays + piece.stays,
            moving: self.moving.with(piece.moving),
            last: Some((piece.choice, last.0, last.1)),
        }
    }

    /// The parameters with which it is found again under a limit under which it fits. With the
    /// least full slot as slot size, weight and slots add up to its bytes on the device.
    pub fn found(&self, limit: u64) -> FoundCut {
        FoundCut { of_host: self.needs.of_host, limit, slot: self.moving.least() }
    }

    /// The bytes held on the device.
    pub fn held(&self) -> u64 {
        self.stays + self.moving.total()
    }
}

/// Inserts the label with these needs unless one of `ways` dominates it, and removes those that it
/// dominates. Returns `false` if more than `most` would remain. `ways` is sorted by ascending host
/// bytes and descending weight.
pub(crate) fn keep(ways: &mut Vec<CutLabel>, most: usize, needs: Needs, way: impl FnOnce() -> CutLabel) -> bool {
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

/// The offload slots of a device, which its stages share: the bytes in each slot, in descending
/// order. The largest copies of all stages fill them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moving([u64; OFFLOAD_SLOTS as usize]);

impl Moving {
    pub const NONE: Self = Self([0; OFFLOAD_SLOTS as usize]);

    /// The slots with `copies` more copies of `bytes` each.
    pub fn with(mut self, (bytes, copies): (u64, u64)) -> Self {
        let first = self.0.partition_point(|other| *other >= bytes);
        let all = self.0.len();
        let last = all.min(first + copies.min(OFFLOAD_SLOTS) as usize);
        self.0.copy_within(first..all - (last - first), last);
        self.0[first..last].fill(bytes);
        self
    }

    /// The bytes in the least full slot.
    const fn least(&self) -> u64 {
        self.0[self.0.len() - 1]
    }

    /// The bytes in all slots.
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

        /// For each slot size, weight plus slots is at least the bytes held, and equal for one
        /// size.
        #[test]
        fn the_best_slot_counts_what_is_held(list in prop::collection::vec((0u64..9, 0u64..9, 0u64..6), 0..5)) {
            let choice = CutStage { to: 0, host_offload: HostOffload::NONE, recomputed: 0 };
            let add = |way: CutLabel, slot: u64| {
                list.iter().fold(way, |way, (stays, bytes, copies)| {
                    let piece = Piece { choice, stays: *stays, moving: (*bytes, *copies), of_host: 0 };
                    way.with(&piece, way.needs_with(&piece, slot), (0, 0))
                })
            };
            let counted = |slot: u64| add(CutLabel::start(), slot).needs.weight + OFFLOAD_SLOTS * slot;
            let slots = list.iter().map(|(_, bytes, _)| *bytes).chain([0]);
            prop_assert_eq!(slots.map(counted).min(), Some(add(CutLabel::start(), 0).held()));
            prop_assert!((0..12).all(|slot| counted(slot) >= add(CutLabel::start(), slot).held()));
            prop_assert_eq!(counted(add(CutLabel::start(), 0).found(0).slot), add(CutLabel::start(), 0).held());
        }

        #[test]
        fn ways_are_kept_that_none_is_better_than(needs in prop::collection::vec((0u64..9, 0u64..9), 0..20)) {
            let mut ways = Vec::new();
            for (weight, of_host) in &needs {
                let needs = Needs { of_host: *of_host, weight: *weight };
                let kept = keep(&mut ways, usize::MAX, needs, || CutLabel { needs, ..CutLabel::start() });
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
