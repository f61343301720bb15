//! Conversions and sums of numbers of any width, on the threads of the current pool, or on this thread if it is
//! in none. Their number changes no bit.

use super::{
    half::{HalfMut, Narrow, Numbers, Wide, on_numbers},
    pieces::CHUNK,
};
use crate::device::simd::for_each_width;
use burn::tensor::{bf16, f16};
use rayon::prelude::*;

/// Numbers that are written.
#[derive(Debug)]
pub(crate) enum NumbersMut<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [bf16]),
    F16(&'a mut [f16]),
}

impl<'a> From<HalfMut<'a>> for NumbersMut<'a> {
    fn from(halves: HalfMut<'a>) -> Self {
        match halves {
            HalfMut::Bf16(numbers) => Self::Bf16(numbers),
            HalfMut::F16(numbers) => Self::F16(numbers),
        }
    }
}

/// Evaluates an expression on numbers that are written, whatever their type.
macro_rules! on_numbers_mut {
    ($numbers:expr, $slice:ident => $value:expr) => {
        match $numbers {
            NumbersMut::F32($slice) => $value,
            NumbersMut::Bf16($slice) => $value,
            NumbersMut::F16($slice) => $value,
        }
    };
}

/// A number that is read and written.
trait Number: Wide + Narrow {}

impl<N: Wide + Narrow> Number for N {}

/// Writes `from` to `to`, rounded to nearest, ties to even.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn convert(from: Numbers<'_>, to: NumbersMut<'_>) {
    on_numbers_mut!(to, to => on_numbers!(from, from => in_parts(to, from, convert_part)));
}

/// Adds `more` to `to`: the sum in 32 bits, then rounded to nearest, ties to even.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn add(to: NumbersMut<'_>, more: Numbers<'_>) {
    on_numbers_mut!(to, to => on_numbers!(more, more => in_parts(to, more, add_part)));
}

fn in_parts<W: Send, G: Sync>(to: &mut [W], from: &[G], work: fn(&mut [W], &[G])) {
    assert_eq!(to.len(), from.len(), "numbers differ in length");
    if rayon::current_thread_index().is_none() {
        return work(to, from);
    }
    to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(|(to, from)| work(to, from));
}

for_each_width! {
    fn convert_part<W: Narrow, G: Wide>(to: &mut [W], from: &[G]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = W::narrow(from.wide());
        }
    }

    fn add_part<W: Number, G: Wide>(to: &mut [W], more: &[G]) {
        for (to, more) in to.iter_mut().zip(more) {
            *to = W::narrow(to.wide() + more.wide());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than one part, and on three threads the same as on this one.
    #[test]
    fn parts_and_threads_change_nothing() {
        let count = 2 * CHUNK + 77;
        let wide: Vec<f32> = (0..count).map(|index| (index as f32).sin()).collect();
        let run = || {
            let mut narrow = vec![bf16::ZERO; count];
            convert(Numbers::F32(&wide), NumbersMut::Bf16(&mut narrow));
            let mut sum = vec![f16::ONE; count];
            add(NumbersMut::F16(&mut sum), Numbers::Bf16(&narrow));
            add(NumbersMut::F16(&mut sum), Numbers::F32(&wide));
            (narrow, sum)
        };
        let expected: Vec<bf16> = wide.iter().map(|number| bf16::from_f32(*number)).collect();
        let once = |narrow: &bf16, wide: &f32| f16::from_f32(f16::from_f32(1.0 + narrow.to_f32()).to_f32() + wide);
        let sums: Vec<f16> = expected.iter().zip(&wide).map(|(narrow, wide)| once(narrow, wide)).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for (narrow, sum) in [run(), pool.install(run)] {
            assert!(narrow == expected && sum == sums);
        }
    }
}
