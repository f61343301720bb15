//! The work of a layer as a list of kernels with shapes.

use crate::Attention;
use spipe_base::Flops;

/// One operation on a device.
///
/// Attention is counted in full: each query attends to each key, although a causal mask makes half
/// of the products useless. Megatron-LM (arXiv 2104.04473, equation 3) and Zero Bubble (arXiv
/// 2401.10241, Table 1) count the same way. A more precise cost model can use `causal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// `batch` products of an m × k and a k × n matrix. A bias is added by the same kernel.
    MatMul {
        /// Independent products.
        batch: u64,
        /// Rows of the result.
        m: u64,
        /// Columns of the result.
        n: u64,
        /// The summed dimension.
        k: u64,
    },
    /// A convolution, or one of its two gradients, which take as many operations and move the same
    /// three tensors.
    Convolution {
        /// Images.
        images: u64,
        /// Pixels of an input image.
        pixels_in: u64,
        /// Pixels of an output image.
        pixels_out: u64,
        /// Input channels.
        inputs: u64,
        /// Output channels.
        outputs: u64,
        /// Pixels of the kernel.
        taps: u64,
    },
    /// softmax(Q·Kᵀ)·V, or its gradients.
    Attention {
        /// Sequences.
        batch: u64,
        /// Query heads.
        heads: u64,
        /// Key and value heads.
        kv_heads: u64,
        /// Queries per sequence.
        seq_q: u64,
        /// Keys that each query attends to.
        seq_k: u64,
        /// Width of a head.
        head_dim: u64,
        /// Whether later keys are masked.
        causal: bool,
        /// Whether these are the gradients.
        backward: bool,
    },
    /// A memory-bound operation: a norm, activation function, addition, gather or loss.
    Elementwise {
        /// Elements read plus elements written.
        elements: u64,
        /// Kernel launches.
        kernels: u32,
    },
}

/// The work of a layer in each pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerWork {
    /// The computation of the output.
    pub forward: Vec<Op>,
    /// The gradient of the input (Zero Bubble's B).
    pub backward_input: Vec<Op>,
    /// The gradients of the parameters (Zero Bubble's W).
    pub backward_weight: Vec<Op>,
}

/// Returns the product of sizes, which saturates for extreme batches.
pub(crate) fn product(sizes: &[u64]) -> u64 {
    sizes.iter().fold(1, |product, size| product.saturating_mul(*size))
}

/// Returns the saturating sum of sizes.
pub(crate) fn sum(sizes: &[u64]) -> u64 {
    sizes.iter().fold(0, |sum, size| sum.saturating_add(*size))
}

impl Op {
    /// Creates a single matrix product.
    pub(crate) const fn matmul(m: u64, n: u64, k: u64) -> Self {
        Self::MatMul { batch: 1, m, n, k }
    }

    /// Creates one memory-bound kernel that reads and writes `elements` elements.
    pub(crate) const fn elementwise(elements: u64) -> Self {
        Self::Elementwise { elements, kernels: 1 }
    }

    /// Returns the floating-point operations of the mathematics. A multiply-add counts as two:
    /// 2·m·n·k per product and 2·pixels·taps·inputs·outputs per convolution. Attention has two
    /// products in the forward and four in the backward. The scores that a fused kernel recomputes
    /// in its backward are not counted, because they are not work of the model. Memory-bound
    /// operations count as zero.
    pub fn flops(&self) -> Flops {
        Flops::flop(match *self {
            Self::MatMul { batch, m, n, k } => 2.0 * batch as f64 * m as f64 * n as f64 * k as f64,
            Self::Attention { batch, heads, seq_q, seq_k, head_dim, backward, .. } => {
                let products = if backward { 4.0 } else { 2.0 };
                products * 2.0 * batch as f64 * heads as f64 * seq_q as f64 * seq_k as f64 * head_dim as f64
            }
            Self::Convolution { images, pixels_out, inputs, outputs, taps, .. } => {
                2.0 * images as f64 * pixels_out as f64 * inputs as f64 * outputs as f64 * taps as f64
            }
            Self::Elementwise { .. } => 0.0,
        })
    }

    /// Returns the elements read from and written to the device's memory at least once.
    ///
    /// Fused attention reads Q, K and V and writes the output. Its backward reads those and the
    /// output's gradient and writes three gradients (FlashAttention, algorithms 1 and 4).
    /// Materialised attention also moves the scores: four times in the forward (written by the
    /// product, read and written by the softmax, read by the second product), seven times in the
    /// backward.
    pub fn elements_moved(&self, attention: Attention) -> u64 {
        match *self {
            Self::MatMul { batch, m, n, k } => {
                batch.saturating_mul(sum(&[product(&[m, k]), product(&[k, n]), product(&[m, n])]))
            }
            Self::Attention { batch, heads, kv_heads, seq_q, seq_k, head_dim, backward, .. } => {
                let queries = product(&[batch, heads, seq_q, head_dim]);
                // A sliding window bounds the keys per query, but neither the keys that the kernel
                // reads nor the scores that it writes.
                let all = seq_q.max(seq_k);
                let keys = product(&[batch, kv_heads, all, head_dim]);
                let passes = if backward { 4 } else { 2 };
                let scores = match (attention, backward) {
                    (Attention::Fused, _) => 0,
                    (Attention::Materialised, false) => 4,
                    (Attention::Materialised, true) => 7,
                };
                sum(&[
                    product(&[passes, queries]),
                    product(&[passes, keys]),
                    product(&[scores, batch, heads, seq_q, all]),
                ])
            }
            Self::Convolution { images, pixels_in, pixels_out, inputs, outputs, taps } => sum(&[
                product(&[images, pixels_in, inputs]),
                product(&[images, pixels_out, outputs]),
                product(&[taps, inputs, outputs]),
            ]),
            Self::Elementwise { elements, .. } => elements,
        }
    }

    /// Returns the number of kernel launches.
    pub const fn kernels(&self, attention: Attention) -> u32 {
        match (self, attention) {
            (Self::MatMul { .. } | Self::Convolution { .. }, _) => 1,
            (Self::Attention { backward: false, .. }, Attention::Fused) => 1,
            // The first kernel sums output times gradient per row, the second yields the three
            // gradients.
            (Self::Attention { backward: true, .. }, Attention::Fused) => 2,
            (Self::Attention { backward: false, .. }, Attention::Materialised) => 3,
            (Self::Attention { backward: true, .. }, Attention::Materialised) => 5,
            (Self::Elementwise { kernels, .. }, _) => *kernels,
        }
    }
}
