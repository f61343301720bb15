//! Numbers of 16 bits, as accelerators hold weights and gradients.

use crate::width::for_each_width;
use burn::tensor::{bf16, f16};

/// Gradients as they arrive.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// 32 bits.
    F32(&'a [f32]),
    /// 16 bits, eight of them exponent.
    Bf16(&'a [bf16]),
    /// 16 bits, five of them exponent.
    F16(&'a [f16]),
}

impl<'a> Numbers<'a> {
    /// How many there are.
    pub const fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::Bf16(numbers) => numbers.len(),
            Self::F16(numbers) => numbers.len(),
        }
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `count`, and the rest.
    pub(super) fn split_at(self, count: usize) -> [Self; 2] {
        match self {
            Self::F32(numbers) => <[_; 2]>::from(numbers.split_at(count)).map(Self::F32),
            Self::Bf16(numbers) => <[_; 2]>::from(numbers.split_at(count)).map(Self::Bf16),
            Self::F16(numbers) => <[_; 2]>::from(numbers.split_at(count)).map(Self::F16),
        }
    }

    /// All of them in 32 bits: themselves, or converted in `room`, which must have room for them.
    pub(super) fn widened<'b>(self, room: &'b mut [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        let room = &mut room[..self.len()];
        match self {
            Self::F32(numbers) => return numbers,
            Self::Bf16(numbers) => widen_bf16(numbers, room),
            Self::F16(numbers) => widen_f16(numbers, room),
        }
        room
    }
}

/// Where weights go in the width in which they are computed with.
#[derive(Debug)]
pub enum NarrowMut<'a> {
    /// 16 bits, eight of them exponent.
    Bf16(&'a mut [bf16]),
    /// 16 bits, five of them exponent.
    F16(&'a mut [f16]),
}

impl NarrowMut<'_> {
    /// How many fit in.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bf16(numbers) => numbers.len(),
            Self::F16(numbers) => numbers.len(),
        }
    }

    /// Whether none do.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes `numbers`, rounded to the nearest, ties to even, from position `start`.
    pub(super) fn round(&mut self, start: usize, numbers: &[f32]) {
        let range = start..start + numbers.len();
        match self {
            Self::Bf16(to) => narrow_bf16(numbers, &mut to[range]),
            Self::F16(to) => narrow_f16(numbers, &mut to[range]),
        }
    }
}

impl<'a> NarrowMut<'a> {
    pub(super) fn split_at(self, count: usize) -> [Self; 2] {
        match self {
            Self::Bf16(numbers) => <[_; 2]>::from(numbers.split_at_mut(count)).map(Self::Bf16),
            Self::F16(numbers) => <[_; 2]>::from(numbers.split_at_mut(count)).map(Self::F16),
        }
    }
}

for_each_width! {
    fn widen_bf16(from: &[bf16], to: &mut [f32]) {
        for (from, to) in from.iter().zip(to) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }

    fn widen_f16(from: &[f16], to: &mut [f32]) {
        for (from, to) in from.iter().zip(to) {
            *to = f16_to_f32(from.to_bits());
        }
    }

    fn narrow_bf16(from: &[f32], to: &mut [bf16]) {
        for (from, to) in from.iter().zip(to) {
            *to = bf16::from_bits(f32_to_bf16(*from));
        }
    }

    fn narrow_f16(from: &[f32], to: &mut [f16]) {
        for (from, to) in from.iter().zip(to) {
            *to = f16::from_bits(f32_to_f16(*from));
        }
    }
}

/// Without branches, so that it becomes vectors: exponent and fraction move up, and a product with 2¹¹² puts the exponent
/// right, subnormal numbers included.
#[inline(always)]
const fn f16_to_f32(half: u16) -> f32 {
    let magnitude = ((half & 0x7fff) as u32) << 13;
    let finite = f32::from_bits(magnitude) * f32::from_bits((254 - 15) << 23);
    // The largest exponent means infinite or not a number there and here.
    let special = f32::from_bits(magnitude | (255 << 23));
    let number = if (half & 0x7fff) < 0x7c00 { finite } else { special };
    f32::from_bits(number.to_bits() | ((half & 0x8000) as u32) << 16)
}

#[inline(always)]
const fn f32_to_bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    // Half a unit in the last place, a little less where that is even.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if number.is_nan() { quiet } else { rounded }) as u16
}

#[inline(always)]
const fn f32_to_f16(number: f32) -> u16 {
    let bits = number.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Below 2⁻¹⁴ the sum with ½ leaves the subnormal fraction, rounded by the addition itself, in the lowest bits.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    // The exponent moves from a bias of 127 to one of 15.
    let normal = magnitude.wrapping_add(0xc800_0fff + ((magnitude >> 13) & 1)) >> 13;
    let finite = if magnitude < (127 - 14) << 23 { subnormal } else { normal };
    let special = if magnitude > 255 << 23 { 0x7e00 | (magnitude >> 13) & 0x3ff } else { 0x7c00 };
    // From 65520 on, half-way past the largest number, all round to infinity.
    (sign | if magnitude < 0x477f_f000 { finite } else { special }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All 16-bit patterns, numbers half-way between two of them, and their neighbours.
    fn near(widened: impl Fn(u16) -> f32) -> Vec<f32> {
        let around = |bits: u16| {
            let between = (f64::from(widened(bits)) + f64::from(widened(bits.wrapping_add(1)))) / 2.0;
            [widened(bits), between as f32, (between as f32).next_up(), (between as f32).next_down()]
        };
        (0..=u16::MAX).flat_map(around).chain([f32::MIN_POSITIVE, 1e-45, f32::MAX, 65519.99, 65520.0]).collect()
    }

    #[test]
    fn halves_are_those_of_the_library() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let mut wide = vec![0.0; all.len()];
        widen_f16(&all, &mut wide);
        for (half, wide) in all.iter().zip(&wide) {
            assert!(half.to_f32().to_bits() == wide.to_bits() || half.is_nan() && wide.is_nan(), "{half:?} {wide}");
        }
        let numbers = near(|bits| f16::from_bits(bits).to_f32());
        let mut narrow = vec![f16::ZERO; numbers.len()];
        narrow_f16(&numbers, &mut narrow);
        for (number, narrow) in numbers.iter().zip(&narrow) {
            let expected = f16::from_f32(*number);
            assert!(expected.to_bits() == narrow.to_bits() || expected.is_nan() && narrow.is_nan(), "{number:e}");
        }
    }

    #[test]
    fn brain_floats_are_those_of_the_library() {
        let all: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        let mut wide = vec![0.0; all.len()];
        widen_bf16(&all, &mut wide);
        for (brain, wide) in all.iter().zip(&wide) {
            assert!(brain.to_f32().to_bits() == wide.to_bits() || brain.is_nan() && wide.is_nan(), "{brain:?} {wide}");
        }
        let numbers = near(|bits| bf16::from_bits(bits).to_f32());
        let mut narrow = vec![bf16::ZERO; numbers.len()];
        narrow_bf16(&numbers, &mut narrow);
        for (number, narrow) in numbers.iter().zip(&narrow) {
            let expected = bf16::from_f32(*number);
            assert!(expected.to_bits() == narrow.to_bits() || expected.is_nan() && narrow.is_nan(), "{number:e}");
        }
    }
}
