//! Matrices of a quantised base as they are stored, and their numbers.
//!
//! ```text
//! int8  outputs × inputs codes of 8 bits │ an f32 per output
//! nf4   outputs × inputs codes of 4 bits │ an f32 per block
//! nf4   outputs × inputs codes of 4 bits │ 8 bits per block │ an f32 per 256 blocks │ an f32      (double quantisation)
//! ```
//!
//! Codes and constants are those of bitsandbytes 0.50 on processors, which stores outputs × inputs; matrices
//! here are inputs × outputs.

mod int8;
mod nf4;
mod torch_sum;

use spipe_cost::{Base, BaseFormat};

/// The storage of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// 8 bits, and a constant per output (LLM.int8, arXiv 2208.07339).
    Int8,
    /// 4 bits (QLoRA, arXiv 2305.14314).
    Nf4 {
        /// The weights that share a constant.
        block: usize,
        /// Whether constants are quantised in turn.
        double: bool,
    },
}

/// The bytes of a number in 32 bits.
const WORD: usize = size_of::<f32>();

/// Inputs whose numbers are decoded together: what is written for them stays in the first-level cache.
const TILE: usize = 64;

impl Format {
    /// The formats of bases that are executed.
    pub const EXECUTED: [BaseFormat; 3] = [BaseFormat::Bf16, BaseFormat::Int8, BaseFormat::Nf4];

    /// The storage of the matrices of `base`; none if it is not quantised, or planned only.
    pub fn of(base: &Base) -> Option<Self> {
        match base.format {
            BaseFormat::Int8 => Some(Self::Int8),
            BaseFormat::Nf4 => Some(Self::Nf4 { block: base.block as usize, double: base.double }),
            BaseFormat::Bf16 | BaseFormat::Fp4 | BaseFormat::Fp8 | BaseFormat::GptqInt4 => None,
        }
    }

    /// The bytes that a matrix of inputs × outputs takes.
    pub const fn bytes(self, [inputs, outputs]: [usize; 2]) -> usize {
        match self {
            Self::Int8 => int8::bytes([inputs, outputs]),
            Self::Nf4 { block, double } => nf4::bytes(inputs * outputs, (block, double)),
        }
    }

    /// `numbers`, inputs × outputs, as they are stored.
    pub fn encode(self, numbers: &[f32], [inputs, outputs]: [usize; 2]) -> Vec<u8> {
        let turned = transposed(numbers, [inputs, outputs]);
        match self {
            Self::Int8 => int8::encode(&turned, inputs),
            Self::Nf4 { block, double } => nf4::encode(&turned, (block, double)),
        }
    }

    /// The numbers, inputs × outputs, of what is stored; none if there are too few bytes.
    pub fn decode(self, stored: &[u8], shape: [usize; 2]) -> Option<Vec<f32>> {
        if stored.len() != self.bytes(shape) {
            return None;
        }
        Some(match self {
            Self::Int8 => int8::decode(stored, shape),
            Self::Nf4 { block, double } => nf4::decode(stored, shape, (block, double)),
        })
    }
}

/// A matrix of rows × columns, columns first.
fn transposed(numbers: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    let mut turned = vec![0.0; numbers.len()];
    for first in (0..rows).step_by(TILE) {
        let last = (first + TILE).min(rows);
        for column in 0..columns {
            for row in first..last {
                turned[column * rows + row] = numbers[row * columns + column];
            }
        }
    }
    turned
}

fn words(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<WORD>().0.iter().map(|four| f32::from_le_bytes(*four))
}

fn append(bytes: &mut Vec<u8>, words: &[f32]) {
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use safetensors::SafeTensors;

    /// The table that `tests/python/quantised.py` has made.
    const FIXTURE: &[u8] = include_bytes!("../../tests/fixtures/quantised.safetensors");

    /// Outputs × inputs, and the block, of the table's matrices.
    const CASES: [(&str, [usize; 2], usize); 4] =
        [("large", [352, 256], 64), ("narrow", [40, 36], 64), ("odd", [7, 61], 64), ("wide", [24, 130], 128)];

    /// The script's weights.
    fn weights(count: usize) -> Vec<f32> {
        let number = |index: usize| {
            let fraction = ((index * 7919 + index / 97 * 104_729) % 4093) as f32 - 2046.0;
            let scale = (-(((index / 113) % 7) as f32)).exp2();
            if (index / 200) % 5 == 3 { 0.0 } else { fraction / 2048.0 * scale }
        };
        (0..count).map(number).collect()
    }

    /// The sum of the bits of all numbers.
    fn bits(numbers: &[f32]) -> i64 {
        numbers.iter().map(|number| i64::from(number.to_bits() as i32)).sum()
    }

    #[test]
    fn codes_and_constants_are_those_of_bitsandbytes() {
        let file = SafeTensors::deserialize(FIXTURE).unwrap();
        let data = |name: String| file.tensor(&name).unwrap_or_else(|fault| panic!("{name}: {fault}")).data().to_vec();
        for (name, [outputs, inputs], block) in CASES {
            let numbers = transposed(&weights(outputs * inputs), [outputs, inputs]);
            let codes =
                |kind: &str| data(if kind == "int8" { format!("{name}.int8.codes") } else { format!("{name}.codes") });
            for (kind, format, parts) in [
                ("nf4", Format::Nf4 { block, double: false }, &["constants"][..]),
                ("double", Format::Nf4 { block, double: true }, &["constants", "constants-of-constants", "offset"]),
                ("int8", Format::Int8, &["constants"]),
            ] {
                let stored = format.encode(&numbers, [inputs, outputs]);
                assert_eq!(stored.len(), format.bytes([inputs, outputs]), "{name} {kind}");
                let mut rest = stored.as_slice();
                let expected = std::iter::once(codes(kind));
                let constants = parts.iter().map(|part| data(format!("{name}.{kind}.{part}")));
                for (place, expected) in expected.chain(constants).enumerate() {
                    let (found, more) = rest.split_at(expected.len());
                    assert!(found == expected, "{name} {kind}: part {place} differs");
                    rest = more;
                }
                assert!(rest.is_empty(), "{name} {kind}");
                // The library adds the mean back in another rounding.
                if kind == "double" {
                    continue;
                }
                let decoded = format.decode(&stored, [inputs, outputs]).unwrap();
                let expected = data(format!("{name}.{kind}.bits"));
                assert_eq!(bits(&decoded).to_le_bytes(), expected.as_slice(), "{name} {kind}");
            }
        }
    }

    #[test]
    fn means_are_those_of_torch() {
        let file = SafeTensors::deserialize(FIXTURE).unwrap();
        for count in [1, 7, 8, 65, 1000, 4097, 30_011] {
            let numbers: Vec<f32> = (0..count).map(|index| (index * 7919 % 4093) as f32 / 3.0).collect();
            let expected = file.tensor(&format!("mean.{count}")).unwrap().data();
            assert_eq!(torch_sum::mean(&numbers).to_le_bytes(), expected, "{count}");
        }
    }

    proptest! {
        #[test]
        fn numbers_are_near_what_is_stored(
            numbers in prop::collection::vec(-3.0f32..3.0, 1..2000),
            columns in 1usize..70,
            double in any::<bool>(),
        ) {
            let (rows, columns) = (numbers.len().div_ceil(columns), columns);
            let padded: Vec<f32> = numbers.iter().copied().chain(std::iter::repeat(0.5)).take(rows * columns).collect();
            for (format, share) in [(Format::Int8, 0.005), (Format::Nf4 { block: 64, double }, 0.17)] {
                let stored = format.encode(&padded, [rows, columns]);
                let decoded = format.decode(&stored, [rows, columns]).unwrap();
                // Half of the widest gap between two numbers, of a largest magnitude of 3.
                let near = |(one, other): (&f32, &f32)| (one - other).abs() <= 3.0 * share;
                prop_assert!(padded.iter().zip(&decoded).all(near), "{format:?} {padded:?} {decoded:?}");
                prop_assert!(format.decode(&stored[1..], [rows, columns]).is_none());
            }
        }
    }
}
