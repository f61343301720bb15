//! Codes of 8 bits, and a constant per output: the largest magnitude of its weights.

use super::{TILE, WORD, append, words};
use burn::tensor::f16;
use rayon::prelude::*;

/// The largest code.
const MOST: f32 = 127.0;

pub(super) const fn bytes([inputs, outputs]: [usize; 2]) -> usize {
    inputs * outputs + WORD * outputs
}

/// Codes and constants of `numbers`, which come output by output, each of `inputs`. They are rounded to 16
/// bits first, as `Int8Params` of bitsandbytes does.
pub(super) fn encode(numbers: &[f32], inputs: usize) -> Vec<u8> {
    let narrow = |number: &f32| f16::from_f32(*number).to_f32();
    let row = |row: &[f32]| {
        let row: Vec<f32> = row.iter().map(narrow).collect();
        let constant = row.iter().fold(0.0f32, |most, number| most.max(number.abs()));
        // PyTorch divides a number by a tensor as the inverse times the number.
        let factor = constant.recip() * MOST;
        // A row of zeros has no factor; the cast of what is no number is zero.
        let codes: Vec<u8> =
            row.iter().map(|number| ((number * factor).round_ties_even() as i8).cast_unsigned()).collect();
        (codes, constant)
    };
    let rows: Vec<(Vec<u8>, f32)> = numbers.par_chunks(inputs).map(row).collect();
    let mut stored: Vec<u8> = rows.iter().flat_map(|(codes, _)| codes).copied().collect();
    append(&mut stored, &rows.iter().map(|(_, constant)| *constant).collect::<Vec<_>>());
    stored
}

/// The numbers, inputs × outputs.
pub(super) fn decode(stored: &[u8], [inputs, outputs]: [usize; 2]) -> Vec<f32> {
    let (codes, constants) = stored.split_at(inputs * outputs);
    let constants: Vec<f32> = words(constants).collect();
    let mut numbers = vec![0.0; inputs * outputs];
    numbers.par_chunks_mut(TILE * outputs).enumerate().for_each(|(tile, numbers)| {
        let first = tile * TILE;
        for (output, constant) in constants.iter().enumerate() {
            let codes = &codes[output * inputs + first..(output + 1) * inputs];
            for (row, code) in numbers.chunks_exact_mut(outputs).zip(codes) {
                row[output] = f32::from(code.cast_signed()) * constant * MOST.recip();
            }
        }
    });
    numbers
}
