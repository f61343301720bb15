//! Codes of 4 bits by blocks: the place of a weight, divided by the largest magnitude of its block, among
//! the quantiles of a normal distribution.

use super::{TILE, WORD, append, torch_sum, words};
use crate::optimizer::{Coded, Map};
use rayon::prelude::*;

/// The numbers of all codes (QLoRA, arXiv 2305.14314, appendix E; bitsandbytes).
const NUMBERS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The code of zero, which fills the last byte of an odd number of weights.
const ZERO: u8 = 7;

/// The least magnitude that weights are divided by, as in bitsandbytes.
const LEAST: f32 = 1e-38;

/// The constants of a block of double quantisation.
const CONSTANTS: usize = 256;

/// The bytes of `count` weights in blocks of `block`, with constants that are quantised or not.
pub(super) const fn bytes(count: usize, (block, double): (usize, bool)) -> usize {
    let blocks = count.div_ceil(block);
    let constants = if double { blocks + WORD * blocks.div_ceil(CONSTANTS) + WORD } else { WORD * blocks };
    count.div_ceil(2) + constants
}

/// The code of a number from -1 to 1: the number of midpoints below it.
fn code(number: f32) -> u8 {
    let middle = |pair: &[f32]| (pair[0] + pair[1]) / 2.0;
    NUMBERS.windows(2).filter(|pair| middle(pair) < number).count() as u8
}

/// Codes and constants of `numbers`.
pub(super) fn encode(numbers: &[f32], (block, double): (usize, bool)) -> Vec<u8> {
    let of = |weights: &[f32]| {
        let constant = weights.iter().fold(0.0f32, |most, number| most.max(number.abs()));
        // bitsandbytes multiplies by the inverse, but divides a last block that is not full.
        let (is_full, bounded) = (weights.len() == block, constant.max(LEAST));
        let scaled = |number: &f32| if is_full { number * (1.0 / bounded) } else { number / bounded };
        let codes: Vec<u8> = weights.iter().map(|number| code(scaled(number).clamp(-1.0, 1.0))).collect();
        (codes, if is_full { constant } else { bounded })
    };
    let blocks: Vec<(Vec<u8>, f32)> = numbers.par_chunks(block).map(of).collect();
    let constants: Vec<f32> = blocks.iter().map(|(_, constant)| *constant).collect();
    let codes: Vec<u8> = blocks.into_iter().flat_map(|(codes, _)| codes).collect();
    let mut stored: Vec<u8> = codes.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or(ZERO)).collect();
    if double {
        let offset = torch_sum::mean(&constants);
        let rest: Vec<f32> = constants.iter().map(|constant| constant - offset).collect();
        let coded = Coded::of(Map::Signed, &rest);
        stored.extend(&coded.codes);
        append(&mut stored, &coded.constants);
        append(&mut stored, &[offset]);
    } else {
        append(&mut stored, &constants);
    }
    stored
}

/// The constants of all blocks.
fn constants(stored: &[u8], blocks: usize, double: bool) -> Vec<f32> {
    if !double {
        return words(stored).collect();
    }
    let (codes, rest) = stored.split_at(blocks);
    let mut constants: Vec<f32> = words(rest).collect();
    let offset = constants.pop().unwrap_or_default();
    let coded = Coded { map: Map::Signed, codes: codes.to_vec(), constants };
    coded.decoded().into_iter().map(|constant| constant + offset).collect()
}

/// The numbers, inputs × outputs.
pub(super) fn decode(stored: &[u8], [inputs, outputs]: [usize; 2], (block, double): (usize, bool)) -> Vec<f32> {
    let count = inputs * outputs;
    let (codes, rest) = stored.split_at(count.div_ceil(2));
    let constants = constants(rest, count.div_ceil(block), double);
    let number = |place: usize| {
        let pair = codes[place / 2];
        NUMBERS[usize::from(if place.is_multiple_of(2) { pair >> 4 } else { pair & 15 })] * constants[place / block]
    };
    let mut numbers = vec![0.0; count];
    numbers.par_chunks_mut(TILE * outputs).enumerate().for_each(|(tile, numbers)| {
        for output in 0..outputs {
            let first = output * inputs + tile * TILE;
            for (row, place) in numbers.chunks_exact_mut(outputs).zip(first..) {
                row[output] = number(place);
            }
        }
    });
    numbers
}
