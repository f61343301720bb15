//! Matrix products as steps of a graph.

use super::{
    Array, Kernel, KernelOutput,
    graph::{apply, apply_with_value},
    product::{View, multiply},
};
use crate::nn::Matrix;

/// a b.
#[derive(Clone, Copy, Debug)]
struct Matmul;

/// aᵀ b.
#[derive(Clone, Copy, Debug)]
struct TransposedMatmul;

/// a bᵀ.
#[derive(Clone, Copy, Debug)]
struct MatmulTransposed;

/// The product, by this crate's kernel if it applies, otherwise by Burn.
pub(crate) fn matmul(left: Matrix, right: Matrix) -> Matrix {
    match apply(Matmul, [&left, &right]) {
        Some(product) => product,
        None => left.matmul(right),
    }
}

/// The product, with the step of [`matmul`] in the graph. If the kernel applies, `known` is used as
/// its value.
pub(crate) fn matmul_known(left: Matrix, right: Matrix, known_before: Option<Matrix>) -> Matrix {
    let step = known_before.and_then(|product| apply_with_value(Matmul, [&left, &right], &product));
    step.unwrap_or_else(|| matmul(left, right))
}

/// a bᵀ. For the gradient of a product and its right factor it equals, bit for bit, the gradient of
/// the left factor in the backward of [`matmul`].
pub(crate) fn matmul_transposed(left: Matrix, right: Matrix) -> Matrix {
    match apply(MatmulTransposed, [&left, &right]) {
        Some(product) => product,
        None => left.matmul(right.transpose()),
    }
}

/// The gradient of the right factor of a product, leftᵀ · gradient; bit for bit that of the
/// backward of [`matmul`].
pub(crate) fn weight_gradient(left: Matrix, gradient: Matrix) -> Matrix {
    match apply(TransposedMatmul, [&left, &gradient]) {
        Some(product) => product,
        None => left.transpose().matmul(gradient),
    }
}

fn view<'a>(array: &Array<'a>) -> View<'a> {
    View::new(array.numbers, array.shape)
}

fn product_of(left: View<'_>, right: View<'_>, shape: [usize; 2]) -> KernelOutput {
    let mut numbers = vec![0.0; shape[0] * shape[1]];
    multiply(left, right, &mut numbers);
    KernelOutput { numbers, shape }
}

impl Kernel<2> for Matmul {
    type Saved = ();

    fn forward(&self, [left, right]: [Array<'_>; 2]) -> (KernelOutput, ()) {
        (product_of(view(&left), view(&right), [left.shape[0], right.shape[1]]), ())
    }

    fn backward(
        &self,
        [left, right]: [Array<'_>; 2],
        (): &(),
        gradient: &[f32],
        wanted: [bool; 2],
    ) -> [Option<Vec<f32>>; 2] {
        let gradient = View::new(gradient, [left.shape[0], right.shape[1]]);
        [
            wanted[0].then(|| product_of(gradient, view(&right).transposed(), left.shape).numbers),
            wanted[1].then(|| product_of(view(&left).transposed(), gradient, right.shape).numbers),
        ]
    }
}

impl Kernel<2> for TransposedMatmul {
    type Saved = ();

    fn forward(&self, [left, right]: [Array<'_>; 2]) -> (KernelOutput, ()) {
        (product_of(view(&left).transposed(), view(&right), [left.shape[1], right.shape[1]]), ())
    }

    /// d(aᵀ b): the gradient of a is b gᵀ, that of b is a g.
    fn backward(
        &self,
        [left, right]: [Array<'_>; 2],
        (): &(),
        gradient: &[f32],
        wanted: [bool; 2],
    ) -> [Option<Vec<f32>>; 2] {
        let gradient = View::new(gradient, [left.shape[1], right.shape[1]]);
        [
            wanted[0].then(|| product_of(view(&right), gradient.transposed(), left.shape).numbers),
            wanted[1].then(|| product_of(view(&left), gradient, right.shape).numbers),
        ]
    }
}

impl Kernel<2> for MatmulTransposed {
    type Saved = ();

    fn forward(&self, [left, right]: [Array<'_>; 2]) -> (KernelOutput, ()) {
        (product_of(view(&left), view(&right).transposed(), [left.shape[0], right.shape[0]]), ())
    }

    /// d(a bᵀ): the gradient of a is g b, that of b is gᵀ a.
    fn backward(
        &self,
        [left, right]: [Array<'_>; 2],
        (): &(),
        gradient: &[f32],
        wanted: [bool; 2],
    ) -> [Option<Vec<f32>>; 2] {
        let gradient = View::new(gradient, [left.shape[0], right.shape[0]]);
        [
            wanted[0].then(|| product_of(gradient, view(&right), left.shape).numbers),
            wanted[1].then(|| product_of(gradient.transposed(), view(&left), right.shape).numbers),
        ]
    }
}
