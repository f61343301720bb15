//! 16-bit numbers, in which accelerators store weights and gradients.

use crate::device::simd::for_each_width;
use burn::tensor::{bf16, f16};

/// Gradients in their own type.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// 32 bits.
    F32(&'a [f32]),
    /// 16 bits with an exponent of eight.
    Bf16(&'a [bf16]),
    /// 16 bits with an exponent of five.
    F16(&'a [f16]),
}

/// Evaluates an expression on gradients, whatever their type.
macro_rules! on_numbers {
    ($numbers:expr, $slice:ident => $value:expr) => {
        match $numbers {
            $crate::optimizer::Numbers::F32($slice) => $value,
            $crate::optimizer::Numbers::Bf16($slice) => $value,
            $crate::optimizer::Numbers::F16($slice) => $value,
        }
    };
}
pub(super) use on_numbers;

impl Numbers<'_> {
    /// Their number.
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

    /// All of them in 32 bits.
    pub(crate) fn widened(self) -> Vec<f32> {
        match self {
            Self::F32(numbers) => numbers.to_vec(),
            Self::Bf16(numbers) => wide(numbers),
            Self::F16(numbers) => wide(numbers),
        }
    }

    /// A range of them.
    pub(crate) fn part(self, range: std::ops::Range<usize>) -> Self {
        let [_, rest] = self.split_at(range.start);
        let [part, _] = rest.split_at(range.len());
        part
    }

    /// The first `count`, and the rest.
    pub(super) fn split_at(self, count: usize) -> [Self; 2] {
        match self {
            Self::F32(numbers) => <[_; 2]>::from(numbers.split_at(count)).map(Self::F32),
            Self::Bf16(numbers) => <[_; 2]>::from(numbers.split_at(count)).map(Self::Bf16),
            Self::F16(numbers) => <[_; 2]>::from(numbers.split_at(count)).map(Self::F16),
        }
    }
}

/// A destination of 16-bit weights.
#[derive(Debug)]
pub enum HalfMut<'a> {
    /// 16 bits with an exponent of eight.
    Bf16(&'a mut [bf16]),
    /// 16 bits with an exponent of five.
    F16(&'a mut [f16]),
}

impl HalfMut<'_> {
    /// Their number.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bf16(numbers) => numbers.len(),
            Self::F16(numbers) => numbers.len(),
        }
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> HalfMut<'a> {
    /// Writes numbers, rounded to nearest, ties to even.
    pub(super) fn write(self, wide: &[f32]) {
        match self {
            Self::Bf16(numbers) => narrow(wide, numbers),
            Self::F16(numbers) => narrow(wide, numbers),
        }
    }

    pub(super) fn split_at(self, count: usize) -> [Self; 2] {
        match self {
            Self::Bf16(numbers) => <[_; 2]>::from(numbers.split_at_mut(count)).map(Self::Bf16),
            Self::F16(numbers) => <[_; 2]>::from(numbers.split_at_mut(count)).map(Self::F16),
        }
    }
}

/// A number that a step converts to f32.
pub(super) trait Wide: Copy + Send + Sync {
    fn wide(self) -> f32;
}

impl Wide for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
}

impl Wide for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Wide for f16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f16_to_f32(self.to_bits())
    }
}

/// The type in which a step stores a new weight, rounded to nearest, ties to even; `()` stores
/// nothing.
pub(crate) trait Narrow {
    fn narrow(wide: f32) -> Self;
}

impl Narrow for () {
    #[inline(always)]
    fn narrow(_: f32) {}
}

impl Narrow for f32 {
    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        wide
    }
}

impl Narrow for bf16 {
    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        Self::from_bits(f32_to_bf16(wide))
    }
}

impl Narrow for f16 {
    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        Self::from_bits(f32_to_f16(wide))
    }
}

for_each_width! {
    fn widen<N: Wide>(narrow: &[N], wide: &mut [f32]) {
        for (wide, narrow) in wide.iter_mut().zip(narrow) {
            *wide = narrow.wide();
        }
    }

    fn narrow<N: Narrow>(wide: &[f32], narrow: &mut [N]) {
        for (narrow, wide) in narrow.iter_mut().zip(wide) {
            *narrow = N::narrow(*wide);
        }
    }
}

fn wide<N: Wide>(narrow: &[N]) -> Vec<f32> {
    let mut all = vec![0.0; narrow.len()];
    widen(narrow, &mut all);
    all
}

/// The numbers in 16 bits, rounded to nearest, ties to even.
pub(crate) fn narrowed<N: Narrow + Clone + Default>(wide: &[f32]) -> Vec<N> {
    let mut all = vec![N::default(); wide.len()];
    narrow(wide, &mut all);
    all
}

/// Conversion without branches, so that loops are vectorised: exponent and fraction are shifted,
/// and a product with 2¹¹² corrects the exponent, of subnormal numbers as well.
#[inline(always)]
const fn f16_to_f32(half: u16) -> f32 {
    let magnitude = ((half & 0x7fff) as u32) << 13;
    let finite = f32::from_bits(magnitude) * f32::from_bits((254 - 15) << 23);
    // The largest exponent means infinity or NaN in both types.
    let special = f32::from_bits(magnitude | (255 << 23));
    let number = if (half & 0x7fff) < 0x7c00 { finite } else { special };
    f32::from_bits(number.to_bits() | ((half & 0x8000) as u32) << 16)
}

#[inline(always)]
const fn f32_to_bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    // Half a unit in the last place, a little less if that is even.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if number.is_nan() { quiet } else { rounded }) as u16
}

#[inline(always)]
const fn f32_to_f16(number: f32) -> u16 {
    let bits = number.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Below 2⁻¹⁴ the sum with ½ leaves the subnormal fraction, rounded by the addition itself, in
    // the lowest bits.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    // The exponent moves from a bias of 127 to one of 15.
    let normal = magnitude.wrapping_add(0xc800_0fff + ((magnitude >> 13) & 1)) >> 13;
    let finite = if magnitude < (127 - 14) << 23 { subnormal } else { normal };
    let special = if magnitude > 255 << 23 { 0x7e00 | (magnitude >> 13) & 0x3ff } else { 0x7c00 };
    // From 65520 on, half-way past the largest number, everything rounds to infinity.
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
        for half in &all {
            let wide = half.wide();
            assert!(half.to_f32().to_bits() == wide.to_bits() || half.is_nan() && wide.is_nan(), "{half:?} {wide}");
        }
        let numbers = near(|bits| f16::from_bits(bits).to_f32());
        for number in numbers {
            let (narrow, expected) = (f16::narrow(number), f16::from_f32(number));
            assert!(expected.to_bits() == narrow.to_bits() || expected.is_nan() && narrow.is_nan(), "{number:e}");
        }
    }

    #[test]
    fn brain_floats_are_those_of_the_library() {
        let all: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        for brain in &all {
            let wide = brain.wide();
            assert!(brain.to_f32().to_bits() == wide.to_bits() || brain.is_nan() && wide.is_nan(), "{brain:?} {wide}");
        }
        let numbers = near(|bits| bf16::from_bits(bits).to_f32());
        for number in numbers {
            let (narrow, expected) = (bf16::narrow(number), bf16::from_f32(number));
            assert!(expected.to_bits() == narrow.to_bits() || expected.is_nan() && narrow.is_nan(), "{number:e}");
        }
    }
}
