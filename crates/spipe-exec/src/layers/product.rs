//! Matrix products with weights, whose weight gradients may be computed later than the gradients of their inputs.
//!
//! A graph that records every product as `input · weight` yields both gradients in one backward. Where the backward is split,
//! the weight is a constant of the graph, and what its gradient takes is written down on the way:
//!
//! ```text
//! input ──► · weight ──► tap ──► …          backward-input:   tap keeps dY, the graph goes on with dX = dY Wᵀ
//!   └─────────── Product { input, dY } ◄─────┘  backward-weight: dW = Xᵀ dY
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
use std::sync::{Arc, Mutex, PoisonError};

#[expect(deprecated, reason = "it is what the product is asked to run on; flex is its successor")]
type Plain = burn::backend::NdArray;

/// The products of one layer on one microbatch, in the order in which they were computed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Products(Arc<Mutex<Vec<Tapped>>>);

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

/// A product that has been computed, and how the gradient of its output is found.
#[derive(Debug)]
struct Tapped {
    input: Matrix,
    gradient: Tap,
}

/// Where the gradient of an output turns up.
#[derive(Debug)]
enum Tap {
    /// An operation of the graph leaves it here.
    Slot(Slot),
    /// It is the gradient of this leaf.
    Leaf(Box<Matrix>),
}

type Slot = Arc<Mutex<Option<Matrix>>>;

impl Products {
    /// Writes down that `output` is the product of `input` with a weight that no graph tracks; returns it.
    pub fn note(&self, input: Matrix, output: Matrix) -> Matrix {
        let (output, gradient) = tap(output);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Tapped { input: input.inner(), gradient });
        output
    }

    /// What the weight gradients are computed from, once the graph's backward is over; `leaf` finds the gradients of leaves.
    pub fn collect(self, leaf: &mut dyn FnMut(&Matrix) -> Matrix) -> Vec<Product> {
        let tapped = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let product = |Tapped { input, gradient }: Tapped| {
            let gradient = match gradient {
                Tap::Leaf(matrix) => leaf(&matrix),
                Tap::Slot(slot) => slot
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take()
                    .expect("the backward passes every product"),
            };
            Product { input, gradient }
        };
        tapped.into_iter().map(product).collect()
    }
}

/// `output`, unchanged, with a way to its gradient.
fn tap(output: Matrix) -> (Matrix, Tap) {
    if let Some(tapped) = tap_in::<Flex>(&output) {
        return tapped;
    }
    if let Some(tapped) = tap_in::<Plain>(&output) {
        return tapped;
    }
    // On any other backend a leaf of zeros is added; its gradient is that of the sum.
    let leaf = output.clone().inner().zeros_like().autodiff().require_grad();
    (output + leaf.clone(), Tap::Leaf(Box::new(leaf)))
}

/// The same where `output` belongs to the backend `B`.
fn tap_in<B: Backend>(output: &Matrix) -> Option<(Matrix, Tap)>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B>> + DispatchKindConversion<B>,
{
    let (primitive, guard) = output.clone().try_into_primitive::<Autodiff<B>>().ok()?.into_parts();
    let slot = Slot::default();
    let tapped = match Backward::<B, 1>::prepare::<NoCheckpointing>(Identity, [guard]).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(Arc::clone(&slot), primitive),
        OpsKind::UnTracked(prepared) => prepared.finish(primitive),
    };
    Some((Matrix::from_primitive::<Autodiff<B>>(tapped), Tap::Slot(slot)))
}

/// Passes its gradient on and leaves a copy of it in the slot.
#[derive(Debug)]
struct Identity;

impl<B: Backend> Backward<B, 1> for Identity
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Slot;

    fn backward(self, ops: Ops<Slot, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let seen = Matrix::from_primitive::<B>(gradient.clone());
        *ops.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, gradient);
        }
    }
}
