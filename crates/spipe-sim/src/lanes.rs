//! Sets of lanes.

use spipe_base::LaneId;

/// A set of lanes, with one bit per lane, that returns them in the order of their ids.
pub(crate) struct LaneSet {
    words: Vec<u64>,
}

impl LaneSet {
    /// An empty set for `lanes` lanes.
    pub fn empty(lanes: usize) -> Self {
        Self { words: vec![0; lanes.div_ceil(64)] }
    }

    /// The set of all `lanes` lanes.
    pub fn full(lanes: usize) -> Self {
        let mut this = Self::empty(lanes);
        (0..lanes).for_each(|lane| this.insert(LaneId::from(lane)));
        this
    }

    pub fn insert(&mut self, lane: LaneId) {
        self.words[lane.index() / 64] |= 1 << (lane.index() % 64);
    }

    pub fn contains(&self, lane: LaneId) -> bool {
        self.words[lane.index() / 64] >> (lane.index() % 64) & 1 == 1
    }

    /// Removes and returns the lane with the smallest id.
    pub fn pop_first(&mut self) -> Option<LaneId> {
        let (index, word) = self.words.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
        let bit = word.trailing_zeros() as usize;
        *word &= *word - 1;
        Some(LaneId::from(index * 64 + bit))
    }

    /// Moves all lanes of `other` into this set.
    pub fn take_all(&mut self, other: &mut Self) {
        for (word, others) in self.words.iter_mut().zip(&mut other.words) {
            *word |= std::mem::take(others);
        }
    }
}
