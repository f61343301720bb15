//! Arithmetic of layers on CPU cores, where Burn's operations are far slower than the cores.
//!
//! ```text
//! Matrix ─► apply(kernel, inputs) ─┬─ ndarray ─► Kernel::forward on slices ─► Matrix, and a step of Burn's graph
//!                                  │                                         that calls Kernel::backward
//!                                  └─ others ──► None: the layer uses Burn's operations
//! ```
//!
//! A kernel gives the same bits on any number of threads. Its derivative is tested against that of
//! Burn's operations.

mod attention;
mod cross_entropy;
mod exponential;
mod graph;
mod join;
mod matmul;
mod norm;
mod product;
mod rope;
mod swiglu;
#[cfg(test)]
mod tests;

pub(crate) use attention::{Angles, Attention};
pub(crate) use cross_entropy::CrossEntropy;
pub(crate) use graph::apply;
pub(crate) use join::Join;
pub(crate) use matmul::{matmul, matmul_known, matmul_transposed, weight_gradient};
pub(crate) use norm::{LayerNorm, RmsNorm};
pub(crate) use rope::Rope;
pub(crate) use swiglu::{GELU_CUBE, GELU_TWICE, Gelu, Swiglu};

use std::fmt::Debug;

/// An input of a kernel, row by row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array<'a> {
    pub numbers: &'a [f32],
    pub shape: [usize; 2],
}

/// The value of a kernel, row by row.
#[derive(Clone, Debug)]
pub(crate) struct KernelOutput {
    pub numbers: Vec<f32>,
    pub shape: [usize; 2],
}

/// A function of matrices and its derivative.
pub(crate) trait Kernel<const N: usize>: Clone + Send + Sync + Debug + 'static {
    /// Data kept for the derivative, beside the inputs.
    type Saved: Clone + Send + Debug + 'static;

    /// Its value.
    fn forward(&self, inputs: [Array<'_>; N]) -> (KernelOutput, Self::Saved);

    /// The gradients of the `wanted` inputs, from the gradient of the value.
    fn backward(
        &self,
        inputs: [Array<'_>; N],
        kept: &Self::Saved,
        gradient: &[f32],
        wanted: [bool; N],
    ) -> [Option<Vec<f32>>; N];
}
