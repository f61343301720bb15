//! The free ranges of a region.

use std::collections::BTreeMap;

/// Free ranges of a region by their start. Neighbours are one range.
#[derive(Debug)]
pub(super) struct FreeRanges(BTreeMap<usize, usize>);

impl FreeRanges {
    /// A region of `bytes`, all of them free.
    pub fn new(bytes: usize) -> Self {
        Self((bytes > 0).then_some((0, bytes)).into_iter().collect())
    }

    /// Takes `bytes` from the first range that has as many: what was touched is used again before the rest.
    pub fn take(&mut self, bytes: usize) -> Option<usize> {
        let (start, free) = self.0.iter().find(|(_, free)| **free >= bytes).map(|(start, free)| (*start, *free))?;
        self.0.remove(&start);
        if free > bytes {
            self.0.insert(start + bytes, free - bytes);
        }
        Some(start)
    }

    /// Gives back a range that was taken.
    pub fn give(&mut self, start: usize, bytes: usize) {
        let (mut start, mut bytes) = (start, bytes);
        if let Some(after) = self.0.remove(&(start + bytes)) {
            bytes += after;
        }
        if let Some((before, free)) = self.0.range(..start).next_back().map(|(before, free)| (*before, *free))
            && before + free == start
        {
            (start, bytes) = (before, bytes + free);
        }
        self.0.insert(start, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_never_overlap_and_join_again(asks in prop::collection::vec((1usize..40, 0usize..8), 1..60)) {
            let mut free = FreeRanges::new(200);
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for (bytes, place) in asks {
                if let Some(start) = free.take(bytes) {
                    prop_assert!(start + bytes <= 200);
                    prop_assert!(taken.iter().all(|(other, count)| start + bytes <= *other || other + count <= start));
                    taken.push((start, bytes));
                } else if !taken.is_empty() {
                    let (start, bytes) = taken.swap_remove(place % taken.len());
                    free.give(start, bytes);
                }
            }
            for (start, bytes) in taken {
                free.give(start, bytes);
            }
            prop_assert_eq!(free.0.into_iter().collect::<Vec<_>>(), [(0, 200)]);
        }
    }

    #[test]
    fn the_first_range_is_used_first() {
        let mut free = FreeRanges::new(100);
        let all: Vec<_> = (0..3).map(|_| free.take(30).unwrap()).collect();
        free.give(all[0], 30);
        assert_eq!((free.take(20), free.take(10), free.take(20)), (Some(0), Some(20), None));
    }
}
