//! AdamW with moments in 8 bits.

use super::{
    AdamW, Numbers, Rule, To, convert,
    dynamic_map::{BLOCK, Coded, Map},
    half::{Wide, on_numbers},
    kernel::Scalars,
    state::{Buffer, Extent, Slot},
};
use crate::device::simd::for_each_width;
use rayon::prelude::*;

/// AdamW whose moments are stored in 8 bits by blocks (Dettmers et al., arXiv 2110.02861), with the
/// arithmetic of bitsandbytes 0.50 on processors. Parameters follow the moments before these are rounded.
/// Tensors of few numbers keep moments in 32 bits.
///
/// A step cannot be inverted: rounding loses the moments before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AdamW8bit(pub AdamW);

/// Tensors with fewer numbers keep moments in 32 bits (bitsandbytes).
const LEAST: usize = 4096;
/// Blocks of one task: their parameters and gradients fit the second-level cache.
const BLOCKS: usize = 32;

impl Rule for AdamW8bit {
    fn slots(&self, tensor: &Extent) -> Vec<Slot> {
        if tensor.shape.iter().product::<usize>() < LEAST {
            return self.0.slots(tensor);
        }
        let slots = self.0.slots(tensor).into_iter().zip([Map::Signed, Map::Unsigned]);
        slots.map(|(slot, map)| slot.in_eight_bits(map)).collect()
    }

    fn step(&self, lr: f64, parameters: &mut [f32], (gradients, factor): (Numbers<'_>, f32), (state, weights): To<'_>) {
        let [Buffer::EightBit(first), Buffer::EightBit(second)] = &mut state.buffers[..] else {
            return Rule::step(&self.0, lr, parameters, (gradients, factor), (state, weights));
        };
        state.steps += 1;
        let scalars = Scalars { factor, ..AdamW { lr, ..self.0 }.scalars(state.steps) };
        on_numbers!(gradients, gradients => step_all(scalars, parameters, gradients, [first, second]));
        weights.into_iter().for_each(|weights| convert(Numbers::F32(parameters), weights.into()));
    }
}

fn step_all<G: Wide>(scalars: Scalars, parameters: &mut [f32], gradients: &[G], moments: [&mut Coded; 2]) {
    let count = parameters.len();
    let same = gradients.len() == count && moments.iter().all(|moments| moments.codes.len() == count);
    assert!(same, "parameters, gradients and state differ in length");
    let [first, second] = moments;
    let size = BLOCKS * BLOCK;
    let firsts = first.codes.par_chunks_mut(size).zip(first.constants.par_chunks_mut(BLOCKS));
    let seconds = second.codes.par_chunks_mut(size).zip(second.constants.par_chunks_mut(BLOCKS));
    let numbers = parameters.par_chunks_mut(size).zip(gradients.par_chunks(size));
    numbers.zip(firsts.zip(seconds)).for_each(|((parameters, gradients), (first, second))| {
        step_blocks(scalars, parameters, gradients, [first, second]);
    });
}

/// Codes and constants of the same blocks.
type Blocks<'a> = (&'a mut [u8], &'a mut [f32]);

for_each_width! {
    fn step_blocks<G: Wide>(scalars: Scalars, parameters: &mut [f32], gradients: &[G], moments: [Blocks<'_>; 2]) {
        let (signed, unsigned) = (Map::Signed.tables(), Map::Unsigned.tables());
        let [(first_codes, first_constants), (second_codes, second_constants)] = moments;
        let constants = first_constants.iter_mut().zip(second_constants);
        let codes = first_codes.chunks_mut(BLOCK).zip(second_codes.chunks_mut(BLOCK));
        let numbers = parameters.chunks_mut(BLOCK).zip(gradients.chunks(BLOCK));
        let (mut firsts, mut seconds) = ([0.0; BLOCK], [0.0; BLOCK]);
        for ((parameters, gradients), (codes, constants)) in numbers.zip(codes.zip(constants)) {
            let count = parameters.len();
            let (firsts, seconds) = (&mut firsts[..count], &mut seconds[..count]);
            signed.decode(codes.0, *constants.0, firsts);
            unsigned.decode(codes.1, *constants.1, seconds);
            step_block(scalars, parameters, gradients, [firsts, seconds]);
            (*constants.0, *constants.1) = (largest(firsts), largest(seconds));
            signed.encode(firsts, *constants.0, codes.0);
            unsigned.encode(seconds, *constants.1, codes.1);
        }
    }
}

/// Updates parameters and moments of a block.
#[inline(always)]
fn step_block<G: Wide>(scalars: Scalars, parameters: &mut [f32], gradients: &[G], [firsts, seconds]: [&mut [f32]; 2]) {
    let Scalars { factor, keep, first_weight, second_decay, second_weight, second_root, eps, step } = scalars;
    let (first_decay, inverse_root) = (1.0 - first_weight, 1.0 / second_root);
    let moments = firsts.iter_mut().zip(seconds.iter_mut());
    for ((parameter, gradient), (first, second)) in parameters.iter_mut().zip(gradients).zip(moments) {
        let gradient = gradient.wide() * factor;
        *first = *first * first_decay + gradient * first_weight;
        *second = *second * second_decay + second_weight * gradient * gradient;
        let denominator = second.sqrt() * inverse_root + eps;
        *parameter = *parameter * keep + step * *first / denominator;
    }
}

/// Bits of all but the sign. Magnitudes are in the order of these, and their maximum is vectorised.
const MAGNITUDE: u32 = 0x7fff_ffff;

#[inline(always)]
fn largest(numbers: &[f32]) -> f32 {
    f32::from_bits(numbers.iter().fold(0, |most, number| most.max(number.to_bits() & MAGNITUDE)))
}
