//! The arithmetic of layers on CPU cores, where Burn's operations are far from what the cores can do.
//!
//! ```text
//! Matrix ─► apply(kernel, inputs) ─┬─ ndarray ─► Kernel::forward on slices ─► Matrix, and a step of Burn's graph
//!                                  │                                         that calls Kernel::backward
//!                                  └─ others ──► None: the layer takes Burn's operations
//! ```
//!
//! A kernel gives the same bits on any number of threads. Its derivative is tested against that of Burn's operations.

mod attention;
mod cross_entropy;
mod exponential;
mod graph;
mod join;
mod matmul;
mod norm;
mod product;
mod swiglu;
#[cfg(test)]
mod tests;
mod turn;

pub(crate) use attention::{Angles, Attention};
pub(crate) use cross_entropy::CrossEntropy;
pub(crate) use graph::{apply, copied};
pub(crate) use join::Join;
pub(crate) use matmul::{matmul, matmul_known, matmul_transposed, weight_gradient};
pub(crate) use norm::{LayerNorm, RmsNorm};
pub(crate) use product::is_supported as are_supported;
pub(crate) use swiglu::{GELU_CUBE, GELU_TWICE, Gelu, Swiglu};
pub(crate) use turn::Turn;

use burn::tensor::Device;
use std::fmt::Debug;

/// The library of CPU cores.
#[expect(deprecated, reason = "it is what the product is asked to run on")]
pub(crate) type Cores = burn::backend::NdArray;

/// The device of the library of CPU cores.
pub(crate) fn cores() -> Device {
    #[expect(deprecated, reason = "it is what the product is asked to run on")]
    Device::ndarray()
}

/// A matrix as a kernel sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array<'a> {
    pub numbers: &'a [f32],
    pub shape: [usize; 2],
}

/// A matrix that a kernel made, row by row.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub numbers: Vec<f32>,
    pub shape: [usize; 2],
}

/// A function of matrices and its derivative.
pub(crate) trait Kernel<const N: usize>: Clone + Send + Sync + Debug + 'static {
    /// What it keeps for its derivative beside its inputs.
    type Kept: Clone + Send + Debug + 'static;

    /// Its value.
    fn forward(&self, inputs: [Array<'_>; N]) -> (Made, Self::Kept);

    /// The gradients of those inputs that are `wanted`, from that of the value.
    fn backward(
        &self,
        inputs: [Array<'_>; N],
        kept: &Self::Kept,
        gradient: &[f32],
        wanted: [bool; N],
    ) -> [Option<Vec<f32>>; N];
}
