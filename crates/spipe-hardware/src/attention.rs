//! The rate of fused attention kernels, as a share of the arithmetic peak, counting the causal half
//! alone.

use crate::{AttentionFile, AttentionKernel, interpolation::interpolate};

/// The shares of one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attention {
    /// The share by length with heads of 64, and of 128; empty if the machine does not state it.
    heads: [Vec<(f64, f64)>; 2],
    flash_2: f64,
}

/// The shares of an A100 SXM by length with heads of 128: medians of aiconfigurator's measured
/// kernels (vLLM, SGLang and TensorRT-LLM of 2025), shapes of at least 64 batch × heads.
const KIN: [(f64, f64); 8] = [
    (128.0, 0.11),
    (256.0, 0.20),
    (512.0, 0.31),
    (1024.0, 0.47),
    (2048.0, 0.56),
    (4096.0, 0.62),
    (8192.0, 0.65),
    (16384.0, 0.66),
];

/// The share of the peak that large products reach on the same GPU.
const KIN_PRODUCTS: f64 = 0.90;

/// Estimate: heads of 64 reach 0.73 (H100) to 0.84 (L40S) of the share of heads of 128.
const NARROW: f64 = 0.78;

/// FlashAttention 1 reaches half of FlashAttention 2 on an A100 (Dao 2023, arXiv 2307.08691,
/// figures 4 to 6).
const FLASH_1: f64 = 0.5;

/// The backward's share relative to the forward's: at best 63 % and 73 % of an A100's peak (Dao
/// 2023, section 4.1).
const BACKWARD: f64 = 63.0 / 73.0;

/// The blocks of 128 queries that fill a GPU: on an H100 with sequences of 4,096, 8 heads (256
/// blocks) reach nearly all of the rate of 16.
const FULL: f64 = 280.0;

/// The shapes of an attention on which its rate depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Sequences times query heads.
    pub heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Queries per sequence.
    pub queries: u64,
    /// Keys per query.
    pub keys: u64,
    /// Whether it is the backward.
    pub backward: bool,
}

impl Attention {
    pub(crate) fn new(file: Option<&AttentionFile>) -> Self {
        let Some(file) = file else { return Self::default() };
        let points = |shares: &[f64]| file.length.iter().map(|at| f64::from(*at)).zip(shares.iter().copied()).collect();
        Self { heads: [points(&file.head_64), points(&file.head_128)], flash_2: file.flash_2.unwrap_or(1.0) }
    }

    /// Returns the share of the peak that `kernel` reaches. `products` is the share of large
    /// products, by which a device without shares of its own is estimated from its kin.
    pub fn share(&self, kernel: AttentionKernel, shape: AttentionShape, products: f64) -> f64 {
        let [narrow, wide] = &self.heads;
        let length = shape.keys as f64;
        let (at_128, measured) = match wide.is_empty() {
            true => (interpolate(KIN.into_iter(), length) * products / KIN_PRODUCTS, false),
            false => (interpolate(wide.iter().copied(), length), true),
        };
        let at_64 = if narrow.is_empty() { at_128 * NARROW } else { interpolate(narrow.iter().copied(), length) };
        let by_width = interpolate([(64.0, at_64), (128.0, at_128)].into_iter(), shape.head_dim as f64);
        let of_kernel = match kernel {
            AttentionKernel::Flash1 => FLASH_1,
            _ => 1.0,
        } * match kernel {
            AttentionKernel::Flash1 | AttentionKernel::Flash2 if measured => self.flash_2,
            _ => 1.0,
        };
        let blocks = shape.heads as f64 * shape.queries.div_ceil(128) as f64;
        let direction = if shape.backward { BACKWARD } else { 1.0 };
        by_width * of_kernel * direction * (blocks / FULL).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> AttentionFile {
        AttentionFile {
            length: vec![1024, 4096],
            head_64: vec![0.2, 0.4],
            head_128: vec![0.4, 0.6],
            flash_2: Some(0.5),
            source: None,
        }
    }

    #[test]
    fn shares_are_those_of_the_file_between_its_points() {
        let attention = Attention::new(Some(&file()));
        let shape = AttentionShape { heads: 64, head_dim: 128, queries: 2048, keys: 2048, backward: false };
        let share = |kernel, shape| attention.share(kernel, shape, 0.9);
        assert!((share(AttentionKernel::Flash3, shape) - 0.5).abs() < 1e-12);
        assert!((share(AttentionKernel::Flash2, shape) - 0.25).abs() < 1e-12);
        let narrow = AttentionShape { head_dim: 64, ..shape };
        assert!((share(AttentionKernel::Flash3, narrow) - 0.3).abs() < 1e-12);
        let backward = AttentionShape { backward: true, ..shape };
        assert!(share(AttentionKernel::Flash3, backward) < 0.5);
        // Two heads of 16 blocks fill a ninth of the GPU.
        let few = AttentionShape { heads: 2, ..shape };
        assert!((share(AttentionKernel::Flash3, few) - 0.5 * 32.0 / 280.0).abs() < 1e-12);
    }

    #[test]
    fn devices_without_shares_follow_their_products() {
        let shape = AttentionShape { heads: 64, head_dim: 128, queries: 4096, keys: 4096, backward: false };
        let share = Attention::default().share(AttentionKernel::Flash2, shape, 0.45);
        assert!((share - 0.31).abs() < 1e-12, "{share}");
    }
}
