//! Outputs of products with weights, written down by a forward whose activations leave the device.
//!
//! A graph belongs to the library and cannot move. What can is what it is made from:
//!
//! ```text
//! forward    no graph; every product's output is written down ──► host
//! backward   host ──► the graph again: products have their outputs already, what lies between is computed from them
//! ```

use super::Matrix;
use crate::kernels;
use burn::backend::{
    Autodiff, Backend, DispatchKindConversion, DispatchTensor, Flex,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind, binary},
    },
    tensor::FloatTensor,
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

#[expect(deprecated, reason = "it is what the product is asked to run on; flex is its successor")]
type Plain = burn::backend::NdArray;

/// Outputs of the products of consecutive layers, in the order in which they are computed.
#[derive(Clone, Debug)]
pub(crate) struct Tape {
    outputs: Arc<Mutex<VecDeque<Matrix>>>,
    writes: bool,
}

impl Tape {
    /// One to write to.
    pub fn blank() -> Self {
        Self { outputs: Arc::default(), writes: true }
    }

    /// One to read from.
    pub fn of(outputs: Vec<Matrix>) -> Self {
        Self { outputs: Arc::new(Mutex::new(outputs.into())), writes: false }
    }

    /// What is on it.
    pub fn take(&self) -> Vec<Matrix> {
        std::mem::take(&mut *self.outputs.lock().unwrap_or_else(PoisonError::into_inner)).into()
    }

    /// `input · weight`: computed and written down, or as it was written down.
    ///
    /// # Panics
    /// If more products are read than were written.
    pub fn multiply(&self, input: Matrix, weight: Matrix) -> Matrix {
        if self.writes {
            let output = kernels::matmul(input, weight);
            self.outputs.lock().unwrap_or_else(PoisonError::into_inner).push_back(output.clone().inner());
            return output;
        }
        let known = self.outputs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let known = known.expect("a repetition has as many products as its forward");
        kernels::known_product(&input, &weight, &known)
            .or_else(|| known_in::<Flex>(&input, &weight, &known))
            .or_else(|| known_in::<Plain>(&input, &weight, &known))
            // Other backends compute it again.
            .unwrap_or_else(|| input.matmul(weight))
    }
}

/// `output` as the product of `input` and `weight` in their graph, if all belong to the backend `B`.
fn known_in<B: Backend>(input: &Matrix, weight: &Matrix, output: &Matrix) -> Option<Matrix>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B>> + DispatchKindConversion<B>,
{
    let (input, input_node) = input.clone().try_into_primitive::<Autodiff<B>>().ok()?.into_parts();
    let (weight, weight_node) = weight.clone().try_into_primitive::<Autodiff<B>>().ok()?.into_parts();
    let output = output.clone().try_into_primitive::<B>().ok()?;
    let nodes = [input_node, weight_node];
    let known = match Backward::<B, 2>::prepare::<NoCheckpointing>(Known, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish((input, weight), output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    Some(Matrix::from_primitive::<Autodiff<B>>(known))
}

/// A product whose output is known, with the backward of Burn's own.
#[derive(Debug)]
struct Known;

impl<B: Backend> Backward<B, 2> for Known {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let (input, weight) = ops.state;
        binary::<B, _, _>(
            ops.parents,
            ops.node,
            gradients,
            |gradient| B::float_matmul(gradient, B::float_transpose(weight)),
            |gradient| B::float_matmul(B::float_transpose(input), gradient),
        );
    }
}
