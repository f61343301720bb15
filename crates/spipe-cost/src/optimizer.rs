//! Optimizers: the state that each keeps for a tensor, and what a step moves and computes.

use crate::StateFormat;
use serde::{Deserialize, Serialize};
use spipe_model::Tensor;

/// The optimizer that updates parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Adam with decoupled weight decay (Loshchilov, Hutter 2019): two moments per parameter.
    #[default]
    Adamw,
    /// AdamW with moments in 8 bits by blocks (Dettmers et al., arXiv 2110.02861).
    #[serde(rename = "adamw-8bit")]
    Adamw8bit,
    /// AdamW whose moments move to DRAM while the GPU's memory is short.
    PagedAdamw,
    /// The same in 8 bits.
    #[serde(rename = "paged-adamw-8bit")]
    PagedAdamw8bit,
    /// Sums of squares over rows and columns (Shazeer, Stern, arXiv 1804.04235), without momentum.
    Adafactor,
    /// The sign of one moment (Chen et al., arXiv 2302.06675).
    Lion,
    /// Gradient descent without momentum.
    Sgd,
    /// One orthogonalised moment for matrices of blocks (Jordan et al. 2024), AdamW for the rest.
    Muon,
}

/// The elements of a block of an 8-bit state, which share a 32-bit constant (bitsandbytes).
const STATE_BLOCK: u64 = 256;

/// Tensors with fewer elements keep states of 32 bits (bitsandbytes).
const LEAST_EIGHT_BIT: u64 = 4096;

/// Bytes of a number of 32 bits.
const F32: u64 = 4;

/// The iterations of Muon's orthogonalisation.
const ORTHOGONAL_STEPS: f64 = 5.0;

impl Optimizer {
    /// Every optimizer.
    pub const ALL: [Self; 8] = [
        Self::Adamw,
        Self::Adamw8bit,
        Self::PagedAdamw,
        Self::PagedAdamw8bit,
        Self::Adafactor,
        Self::Lion,
        Self::Sgd,
        Self::Muon,
    ];

    /// Returns the name used on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adamw => "adamw",
            Self::Adamw8bit => "adamw-8bit",
            Self::PagedAdamw => "paged-adamw",
            Self::PagedAdamw8bit => "paged-adamw-8bit",
            Self::Adafactor => "adafactor",
            Self::Lion => "lion",
            Self::Sgd => "sgd",
            Self::Muon => "muon",
        }
    }

    /// Returns the formats that its state can have; the first is its own.
    pub const fn state_formats(self) -> &'static [StateFormat] {
        use StateFormat::{Bf16, EightBit, F32};
        match self {
            Self::Adamw | Self::Lion => &[F32, Bf16, EightBit],
            Self::PagedAdamw | Self::Muon | Self::Adafactor => &[F32, Bf16],
            Self::Adamw8bit | Self::PagedAdamw8bit => &[EightBit],
            Self::Sgd => &[],
        }
    }

    /// Returns the format of its state where nothing else was asked for.
    pub fn state_format(self) -> StateFormat {
        self.state_formats().first().copied().unwrap_or(StateFormat::F32)
    }

    /// Whether its state moves to DRAM while the GPU's memory is short.
    pub const fn is_paged(self) -> bool {
        matches!(self, Self::PagedAdamw | Self::PagedAdamw8bit)
    }

    /// Returns the bytes of its state for `tensor` in `format`, without a master copy. `in_block` tells
    /// whether the tensor is a matrix of a block or of an adapter, which Muon orthogonalises.
    pub fn state_bytes(self, tensor: &Tensor, format: StateFormat, in_block: bool) -> u64 {
        let elements = tensor.rows.saturating_mul(tensor.columns);
        let is_matrix = tensor.columns > 1;
        let numbers = match self {
            Self::Adamw | Self::Adamw8bit | Self::PagedAdamw | Self::PagedAdamw8bit => 2 * elements,
            Self::Adafactor if is_matrix => tensor.rows + tensor.columns,
            Self::Adafactor | Self::Lion => elements,
            Self::Muon if is_matrix && in_block => elements,
            Self::Muon => 2 * elements,
            Self::Sgd => 0,
        };
        let bytes = match format {
            StateFormat::EightBit if elements >= LEAST_EIGHT_BIT => {
                let states = numbers / elements;
                numbers + states * elements.div_ceil(STATE_BLOCK) * F32
            }
            StateFormat::EightBit | StateFormat::F32 => numbers.saturating_mul(F32),
            StateFormat::Bf16 => numbers.saturating_mul(2),
        };
        bytes.saturating_mul(tensor.count)
    }

    /// Returns the floating-point operations of a step that are not per element: Muon's five iterations
    /// of X ← aX + (bA + cA²)X with A = XXᵀ, of 4n²m + 2n³ each for an n × m matrix, n ≤ m.
    pub fn step_flops(self, tensor: &Tensor, in_block: bool) -> f64 {
        if self != Self::Muon || !in_block || tensor.columns <= 1 {
            return 0.0;
        }
        let (short, long) = (tensor.rows.min(tensor.columns) as f64, tensor.rows.max(tensor.columns) as f64);
        ORTHOGONAL_STEPS * (4.0 * short * short * long + 2.0 * short.powi(3)) * tensor.count as f64
    }

    /// Returns the rate of a step on a socket, in parameters/s, relative to AdamW's with states of 32
    /// bits, which move 28 bytes per parameter; `step_bytes` is what this one moves. Steps that convert
    /// or sum beside moving reach half of AdamW's rate: an estimate.
    pub fn socket_factor(self, step_bytes: f64) -> f64 {
        let by_bytes = ADAMW_STEP_BYTES / step_bytes.max(1.0);
        match self {
            Self::Adamw8bit | Self::PagedAdamw8bit | Self::Adafactor => by_bytes.min(0.5),
            _ => by_bytes,
        }
    }
}

/// The bytes that a step of AdamW moves per parameter, in every precision: gradient in, parameter in
/// and out, both moments in and out; with narrow parameters their master copy is the one read.
pub const ADAMW_STEP_BYTES: f64 = 28.0;

#[cfg(test)]
mod tests {
    use super::*;

    const MATRIX: Tensor = Tensor { rows: 4096, columns: 1000, count: 1 };
    const NORM: Tensor = Tensor { rows: 1000, columns: 1, count: 2 };

    #[test]
    fn states_have_the_bytes_of_their_papers() {
        let bytes = |optimizer: Optimizer, format| optimizer.state_bytes(&MATRIX, format, true);
        let elements = 4_096_000;
        assert_eq!(bytes(Optimizer::Adamw, StateFormat::F32), 8 * elements);
        assert_eq!(bytes(Optimizer::Adamw, StateFormat::Bf16), 4 * elements);
        assert_eq!(bytes(Optimizer::Adamw8bit, StateFormat::EightBit), 2 * elements + 2 * 4 * elements / 256);
        assert_eq!(bytes(Optimizer::Lion, StateFormat::F32), 4 * elements);
        assert_eq!(bytes(Optimizer::Muon, StateFormat::F32), 4 * elements);
        assert_eq!(bytes(Optimizer::Sgd, StateFormat::F32), 0);
        assert_eq!(bytes(Optimizer::Adafactor, StateFormat::F32), 4 * 5096);
        // Small tensors keep 32 bits, and the last block is padded.
        assert_eq!(Optimizer::Adamw8bit.state_bytes(&NORM, StateFormat::EightBit, true), 2 * 8000);
        let odd = Tensor { rows: 4097, columns: 1, count: 1 };
        assert_eq!(Optimizer::Adamw8bit.state_bytes(&odd, StateFormat::EightBit, true), 2 * (4097 + 17 * 4));
        // Muon's other tensors are AdamW's.
        assert_eq!(Optimizer::Muon.state_bytes(&NORM, StateFormat::F32, true), 16_000);
        assert_eq!(Optimizer::Muon.state_bytes(&MATRIX, StateFormat::F32, false), 8 * elements);
    }
}
