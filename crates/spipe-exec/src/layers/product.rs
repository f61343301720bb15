//! Matrix products with weights, whose weight gradients may be computed later than the gradients of their inputs.
//!
//! A graph that records every product as `input · weight` yields both gradients in one backward, and holds the weight until
//! then. Where the backward is split, or the weight does not stay, the product is one operation of its own: its weight is lent
//! to it, and what the gradient of the weight takes is written down on the way:
//!
//! ```text
//! input ──► · weight ──► …            backward-input:   dX = dY Wᵀ goes on, dY is kept
//!   └────── Product { input, dY } ◄───┘  backward-weight: dW = Xᵀ dY
//! ```

use super::Matrix;
use crate::kernels;
use burn::backend::{
    Autodiff, Backend, DispatchKindConversion, DispatchTensor, Flex,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[expect(deprecated, reason = "it is what the product is asked to run on; flex is its successor")]
type Plain = burn::backend::NdArray;

/// The products of one layer on one microbatch, in the order in which they were computed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Products(Arc<Mutex<Vec<Recorded>>>);

/// What the gradient of a weight is computed from.
#[derive(Debug)]
pub(crate) struct Product {
    input: Matrix,
    gradient: Matrix,
}

impl Product {
    /// The gradient of the weight, as the backward of a graph that tracks the weight computes it.
    pub fn weight_gradient(self) -> Matrix {
        kernels::weight_gradient(self.input, self.gradient)
    }
}

/// A product that has been computed.
#[derive(Debug)]
struct Recorded {
    input: Matrix,
    way: Way,
}

/// How its backward works.
#[derive(Debug)]
enum Way {
    /// As an operation of its own.
    Own(Slots),
    /// As Burn's, which holds the weight; the gradient of its output is that of this leaf.
    Burn(Box<Matrix>),
}

/// What an operation of its own is given, and what it leaves.
#[derive(Clone, Debug, Default)]
struct Slots {
    weight: Slot,
    gradient: Slot,
}

/// Where a tensor is put and taken.
#[derive(Clone, Debug, Default)]
struct Slot(Arc<Mutex<Option<Matrix>>>);

impl Slot {
    fn put(&self, matrix: Option<Matrix>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = matrix;
    }

    /// What is there, which is there no longer.
    ///
    /// # Panics
    /// If there is nothing: weights are lent before a backward, which passes every product.
    fn take(&self) -> Matrix {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().expect("what a product needs is there")
    }
}

impl Products {
    fn all(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `input · weight`, where no graph tracks the weight; `known` if it has been computed before.
    pub fn multiply(&self, input: Matrix, weight: Matrix, known: Option<Matrix>) -> Matrix {
        let plain = input.clone().inner();
        let (output, way) = multiply(input, weight, known.as_ref());
        self.all().push(Recorded { input: plain, way });
        output
    }

    /// Lets go of the weights until they are lent again.
    pub fn forget(&self) {
        for recorded in self.all().iter() {
            if let Way::Own(slots) = &recorded.way {
                slots.weight.put(None);
            }
        }
    }

    /// Lends the weights, in the order in which they were multiplied with.
    pub fn lend(&self, weights: impl Iterator<Item = Matrix>) {
        for (recorded, weight) in self.all().iter().zip(weights) {
            if let Way::Own(slots) = &recorded.way {
                slots.weight.put(Some(weight));
            }
        }
    }

    /// What the weight gradients are computed from, once the graph's backward is over; `leaf` finds the gradients of leaves.
    pub fn collect(self, leaf: &mut dyn FnMut(&Matrix) -> Matrix) -> Vec<Product> {
        let all = std::mem::take(&mut *self.all());
        let product = |Recorded { input, way }: Recorded| {
            let gradient = match way {
                Way::Burn(matrix) => leaf(&matrix),
                Way::Own(slots) => slots.gradient.take(),
            };
            Product { input, gradient }
        };
        all.into_iter().map(product).collect()
    }
}

fn multiply(input: Matrix, weight: Matrix, known: Option<&Matrix>) -> (Matrix, Way) {
    let own = multiply_on::<Flex>(&input, &weight, known).or_else(|| multiply_on::<Plain>(&input, &weight, known));
    own.unwrap_or_else(|| {
        // On any other backend a leaf of zeros is added; its gradient is that of the sum.
        let output = input.matmul(weight);
        let leaf = output.clone().inner().zeros_like().autodiff().require_grad();
        (output + leaf.clone(), Way::Burn(Box::new(leaf)))
    })
}

/// The same where `input` belongs to the backend `B`.
fn multiply_on<B: Backend>(input: &Matrix, weight: &Matrix, known: Option<&Matrix>) -> Option<(Matrix, Way)>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B>> + DispatchKindConversion<B>,
{
    let (_, guard) = input.clone().try_into_primitive::<Autodiff<B>>().ok()?.into_parts();
    let weight = weight.clone().inner();
    let output = match known {
        Some(known) => known.clone(),
        None => kernels::matmul(input.clone().inner(), weight.clone()),
    };
    let output = output.try_into_primitive::<B>().ok()?;
    let slots = Slots::default();
    slots.weight.put(Some(weight));
    let output = match Backward::<B, 1>::prepare::<NoCheckpointing>(Own, [guard]).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(slots.clone(), output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    Some((Matrix::from_primitive::<Autodiff<B>>(output), Way::Own(slots)))
}

/// Keeps the gradient of its output, and passes on that of its input.
#[derive(Debug)]
struct Own;

impl<B: Backend> Backward<B, 1> for Own
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Slots;

    fn backward(self, ops: Ops<Slots, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = Matrix::from_primitive::<B>(gradients.consume::<B>(&ops.node));
        ops.state.gradient.put(Some(gradient.clone()));
        if let [Some(parent)] = ops.parents {
            let found = kernels::matmul_transposed(gradient, ops.state.weight.take()).try_into_primitive::<B>();
            gradients.register::<B>(parent.id, found.expect("a weight is lent on the device of its product"));
        }
    }
}
