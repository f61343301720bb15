//! Sums of squares for norms, in f64, where the order hardly matters.

use super::{
    half::{Numbers, Wide, on_numbers},
    pieces::CHUNK,
};
use crate::device::simd::for_each_width;
use rayon::prelude::*;

/// Partial sums.
const LANES: usize = 16;

/// The sum of the squares of all numbers, on the threads of the current pool, and independent of
/// their number. It is finite if all numbers are.
pub(crate) fn sum_of_squares<'a>(tensors: impl IntoIterator<Item = Numbers<'a>>) -> f64 {
    let pieces: Vec<Numbers<'_>> = tensors.into_iter().flat_map(pieces).collect();
    let sums: Vec<f64> = pieces.into_par_iter().map(piece).collect();
    sums.iter().sum()
}

fn pieces(mut rest: Numbers<'_>) -> Vec<Numbers<'_>> {
    let mut pieces = Vec::with_capacity(rest.len().div_ceil(CHUNK));
    while rest.len() > CHUNK {
        let [piece, after] = rest.split_at(CHUNK);
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

fn piece(numbers: Numbers<'_>) -> f64 {
    let mut sum = 0.0;
    on_numbers!(numbers, numbers => add_squares(numbers, &mut sum));
    sum
}

for_each_width! {
    fn add_squares<G: Wide>(numbers: &[G], sum: &mut f64) {
        let mut lanes = [0.0f64; LANES];
        let (blocks, rest) = numbers.as_chunks::<LANES>();
        let mut add = |block: &[G]| {
            for (lane, number) in lanes.iter_mut().zip(block) {
                let number = f64::from(number.wide());
                *lane += number * number;
            }
        };
        for block in blocks {
            add(block);
        }
        add(rest);
        *sum += lanes.iter().sum::<f64>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{bf16, f16};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn threads_and_widths_change_nothing(
            numbers in prop::collection::vec(-100.0f32..100.0, 0..500),
            times in 1usize..400,
        ) {
            let halves: Vec<f16> = numbers.iter().copied().cycle().take(numbers.len() * times).map(f16::from_f32).collect();
            let brains: Vec<bf16> = halves.iter().map(|half| bf16::from_f32(half.to_f32())).collect();
            let wide: Vec<f32> = brains.iter().map(|number| number.to_f32()).collect();
            let expected: f64 = wide.iter().map(|number| f64::from(*number) * f64::from(*number)).sum();
            let on = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| sum_of_squares([Numbers::Bf16(&brains), Numbers::F32(&wide)]))
            };
            prop_assert_eq!(on(1).to_bits(), on(3).to_bits());
            prop_assert!((on(1) - 2.0 * expected).abs() <= 1e-9 * expected);
            let exact: f64 = halves.iter().map(|half| half.to_f64() * half.to_f64()).sum();
            prop_assert!((sum_of_squares([Numbers::F16(&halves)]) - exact).abs() <= 1e-9 * exact);
        }

        #[test]
        fn one_number_that_is_none_is_enough(
            mut numbers in prop::collection::vec(-1e38f32..1e38, 1..100),
            place in 0usize..100,
            bad in prop::sample::select(vec![f32::NAN, f32::INFINITY]),
        ) {
            prop_assert!(sum_of_squares([Numbers::F32(&numbers)]).is_finite());
            let count = numbers.len();
            numbers[place % count] = bad;
            prop_assert!(!sum_of_squares([Numbers::F32(&numbers)]).is_finite());
        }
    }
}
