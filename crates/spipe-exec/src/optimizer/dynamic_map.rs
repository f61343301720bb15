//! The dynamic map of 8-bit states: 256 numbers from -1 or 0 to 1, dense near zero.
//!
//! ```text
//! block of 256 numbers ─► constant: the largest magnitude
//!                      └► numbers ÷ constant ─► point of a grid over [-1, 1] ─► code of the nearest number of the map
//! ```

use std::sync::LazyLock;

/// The numbers of a block, which share a constant (Dettmers et al., arXiv 2110.02861).
pub(super) const BLOCK: usize = 256;

/// Points of the grid to which bitsandbytes 0.50 rounds on processors before it looks up a code.
const POINTS: usize = 1 << 16;

/// The numbers that codes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Map {
    /// From -1 to 1.
    Signed,
    /// From 0 to 1.
    Unsigned,
}

/// The numbers of all codes, and the codes of all points.
pub(super) struct Tables {
    numbers: [f32; 256],
    codes: Box<[u8; POINTS]>,
}

static SIGNED: LazyLock<Tables> = LazyLock::new(|| Tables::new(true));
static UNSIGNED: LazyLock<Tables> = LazyLock::new(|| Tables::new(false));

impl Map {
    pub(super) fn tables(self) -> &'static Tables {
        match self {
            Self::Signed => &SIGNED,
            Self::Unsigned => &UNSIGNED,
        }
    }
}

/// Decades of the map: from 10⁻⁶ to 1.
const DECADES: i32 = 7;

/// The numbers of the map, ascending: zero, one, and in each decade the centres of equal intervals
/// from a tenth to one. Their number doubles from decade to decade (`create_dynamic_map`, which rounds to
/// f32 after every operation).
fn numbers(signed: bool) -> [f32; 256] {
    let mut all = vec![0.0f32, 1.0];
    for decade in 0..DECADES {
        let intervals = 1usize << if signed { decade } else { decade + 1 };
        let scale = 10.0f64.powi(decade + 1 - DECADES) as f32;
        let step = (1.0f32 - 0.1) / intervals as f32;
        let boundary = |index: usize| match index < intervals.div_ceil(2) {
            true => 0.1 + step * index as f32,
            false => 1.0 - step * (intervals - index) as f32,
        };
        for index in 0..intervals {
            let centre = scale * ((boundary(index) + boundary(index + 1)) / 2.0);
            all.push(centre);
            if signed {
                all.push(-centre);
            }
        }
    }
    all.sort_by(f32::total_cmp);
    std::array::from_fn(|code| all[code])
}

impl Tables {
    fn new(signed: bool) -> Self {
        let numbers = numbers(signed);
        let mut codes = Box::new([0; POINTS]);
        let mut code = 0;
        for (point, found) in codes.iter_mut().enumerate() {
            let number = -1.0 + (2 * point) as f32 / (POINTS - 1) as f32;
            while code < 255 && 0.5 * (numbers[code] + numbers[code + 1]) < number {
                code += 1;
            }
            *found = code as u8;
        }
        Self { numbers, codes }
    }

    /// The numbers of the codes of a block.
    #[inline(always)]
    pub fn decode(&self, codes: &[u8], constant: f32, numbers: &mut [f32]) {
        self.numbers_of(codes, numbers);
        for number in numbers {
            *number *= constant;
        }
    }

    fn numbers_of(&self, codes: &[u8], numbers: &mut [f32]) {
        look_up(codes, numbers, |code| self.numbers[usize::from(code)]);
    }

    fn codes_of(&self, points: &[u16], codes: &mut [u8]) {
        look_up(points, codes, |point| self.codes[usize::from(point)]);
    }

    /// The codes of the numbers of a block, whose largest magnitude is `constant`.
    #[inline(always)]
    pub fn encode(&self, numbers: &[f32], constant: f32, codes: &mut [u8]) {
        if constant == 0.0 {
            codes.fill(0);
            return;
        }
        let inverse = 1.0 / constant;
        let mut points = [0u16; BLOCK];
        for (point, number) in points.iter_mut().zip(numbers) {
            *point = truncated((number * inverse + 1.0) * (0.5 * (POINTS - 1) as f32) + 0.5);
        }
        self.codes_of(&points[..codes.len()], codes);
    }
}

/// Lookups at a time.
const LOOKUPS: usize = 8;

/// Looks up all keys, without vectors: processors are slow at gathering. Not inlined into functions for
/// wide vectors for that reason.
#[inline(never)]
fn look_up<K: Copy, V>(keys: &[K], values: &mut [V], value: impl Fn(K) -> V) {
    let (full_keys, rest_keys) = keys.as_chunks::<LOOKUPS>();
    let (full, rest) = values.as_chunks_mut::<LOOKUPS>();
    for (keys, values) in full_keys.iter().zip(full) {
        for (key, found) in keys.iter().zip(values) {
            *found = value(*key);
        }
    }
    for (key, found) in rest_keys.iter().zip(rest) {
        *found = value(*key);
    }
}

/// The integer below a number from 0 to 2¹⁶, without the branches of a cast, so that loops are
/// vectorised: a sum with 2²³ rounds to an integer and leaves it in the lowest bits.
#[inline(always)]
fn truncated(number: f32) -> u16 {
    const SHIFT: f32 = (1u32 << 23) as f32;
    let nearest = (number + SHIFT) - SHIFT;
    let below = if nearest > number { nearest - 1.0 } else { nearest };
    (below + SHIFT).to_bits() as u16
}

/// Numbers in 8 bits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Coded {
    pub map: Map,
    pub codes: Vec<u8>,
    /// One per block.
    pub constants: Vec<f32>,
}

impl Coded {
    /// `count` zeros.
    pub fn zeros(map: Map, count: usize) -> Self {
        Self { map, codes: vec![0; count], constants: vec![0.0; count.div_ceil(BLOCK)] }
    }

    /// All numbers.
    pub fn decoded(&self) -> Vec<f32> {
        let mut numbers = vec![0.0; self.codes.len()];
        let blocks = numbers.chunks_mut(BLOCK).zip(self.codes.chunks(BLOCK));
        for ((numbers, codes), constant) in blocks.zip(&self.constants) {
            self.map.tables().decode(codes, *constant, numbers);
        }
        numbers
    }

    /// `numbers` in 8 bits.
    pub fn of(map: Map, numbers: &[f32]) -> Self {
        let mut coded = Self::zeros(map, numbers.len());
        let blocks = numbers.chunks(BLOCK).zip(coded.codes.chunks_mut(BLOCK));
        for ((numbers, codes), constant) in blocks.zip(&mut coded.constants) {
            *constant = numbers.iter().fold(0.0, |most, number| number.abs().max(most));
            map.tables().encode(numbers, *constant, codes);
        }
        coded
    }

    /// A range of the numbers; none if there are fewer. Their codes stay if whole blocks come before
    /// them, otherwise blocks are cut anew.
    pub fn part(&self, part: std::ops::Range<usize>) -> Option<Self> {
        if !part.start.is_multiple_of(BLOCK) {
            return Some(Self::of(self.map, self.decoded().get(part)?));
        }
        let blocks = part.start / BLOCK..part.end.div_ceil(BLOCK);
        let (codes, constants) = (self.codes.get(part)?.to_vec(), self.constants.get(blocks)?.to_vec());
        Some(Self { map: self.map, codes, constants })
    }

    /// The numbers of both, in order. Codes stay if the first ends with a block.
    pub fn joined(mut self, other: Self) -> Self {
        if !self.codes.len().is_multiple_of(BLOCK) {
            return Self::of(self.map, &[self.decoded(), other.decoded()].concat());
        }
        self.codes.extend(other.codes);
        self.constants.extend(other.constants);
        self
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        (self.codes.len() + 4 * self.constants.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn maps_are_those_of_the_paper() {
        for (map, least) in [(Map::Signed, -0.992_968_74), (Map::Unsigned, 0.0)] {
            let numbers = map.tables().numbers;
            assert!(numbers.is_sorted() && numbers[255].to_bits() == 1.0f32.to_bits(), "{numbers:?}");
            assert!((numbers[0] - least).abs() < 1e-7 && numbers.contains(&0.0), "{numbers:?}");
        }
        // The least numbers beside zero: the centre of the first decade's one or first of two intervals.
        assert!((Map::Signed.tables().numbers[128] - 0.55e-6).abs() < 1e-12);
        assert!((Map::Unsigned.tables().numbers[1] - 0.325e-6).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn numbers_are_near_their_codes(
            numbers in prop::collection::vec(-3.0f32..3.0, 1..700),
            cut in 0usize..700,
        ) {
            let coded = Coded::of(Map::Signed, &numbers);
            for (block, decoded) in numbers.chunks(BLOCK).zip(coded.decoded().chunks(BLOCK)) {
                let most = block.iter().fold(0.0f32, |most, number| most.max(number.abs()));
                // Half an interval of the last decade, and half a step of the grid.
                let apart = |pair: (&f32, &f32)| (pair.0 - pair.1).abs() <= most * (0.9 / 128.0 + 2e-5);
                prop_assert!(block.iter().zip(decoded).all(apart), "{block:?} {decoded:?}");
            }
            // Parts that begin with a block keep every code.
            let cut = (cut % numbers.len()) / BLOCK * BLOCK;
            let parts = [0..cut, cut..numbers.len()].map(|part| coded.part(part).unwrap());
            let [first, second] = parts;
            prop_assert_eq!(first.joined(second), coded);
        }
    }
}
