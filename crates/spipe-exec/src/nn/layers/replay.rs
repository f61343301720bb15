//! Functions whose graph keeps only their inputs: everything between is recomputed in the backward.
//!
//! Burn's graph of a composite function keeps the operands of every operation. On a GPU, where this
//! crate's kernels do not run, attention would keep two f32 numbers per score, while plans count
//! one number in the compute type.

use super::Matrix;
use crate::device::Cores;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use burn::backend::Cube;
use burn::backend::{
    Autodiff, Backend, DispatchKindConversion, DispatchTensor,
    autodiff::{
        NodeId,
        checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
};
use std::fmt::Debug;

/// A function of matrices, made of Burn's operations.
pub(crate) trait Replayed<const N: usize>: Clone + Debug + Send + 'static {
    /// Its value, tracked or not.
    fn value(&self, inputs: [Matrix; N]) -> Matrix;

    /// The gradients of its inputs, in their types, from the gradient of its value; nothing is
    /// tracked.
    fn gradients(&self, inputs: [Matrix; N], gradient: Matrix) -> [Matrix; N];
}

/// The value as one step of the graph of its inputs. If these are not all in one graph, each
/// operation is a step.
pub(crate) fn replayed<const N: usize>(function: &impl Replayed<N>, inputs: [Matrix; N]) -> Matrix {
    let own = on::<Cores, N>(function, &inputs);
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    let own = own.or_else(|| on::<Cube, N>(function, &inputs));
    own.unwrap_or_else(|| function.value(inputs))
}

/// The same for inputs on a GPU, where the value is one kernel; none elsewhere.
#[cfg(feature = "cube")]
pub(crate) fn replayed_on_gpu<const N: usize>(function: &impl Replayed<N>, inputs: [&Matrix; N]) -> Option<Matrix> {
    let inputs = inputs.map(Matrix::clone);
    let is_plain = || inputs[0].clone().try_into_primitive::<Cube>().is_ok();
    on::<Cube, N>(function, &inputs).or_else(|| is_plain().then(|| function.value(inputs.clone())))
}

fn on<B: Backend, const N: usize>(function: &impl Replayed<N>, inputs: &[Matrix; N]) -> Option<Matrix>
where
    DispatchTensor: DispatchKindConversion<Autodiff<B>> + DispatchKindConversion<B>,
{
    let mut nodes = Vec::with_capacity(N);
    for input in inputs {
        nodes.push(input.clone().try_into_primitive::<Autodiff<B>>().ok()?.into_parts().1);
    }
    let nodes = nodes.try_into().ok()?;
    let inner = inputs.each_ref().map(|input| input.clone().inner());
    let value = function.value(inner.clone()).try_into_primitive::<B>().ok()?;
    let step = Step(function.clone());
    let value = match Backward::<B, N>::prepare::<NoCheckpointing>(step, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(inner, value),
        OpsKind::UnTracked(prepared) => prepared.finish(value),
    };
    Some(Matrix::from_primitive::<Autodiff<B>>(value))
}

/// A function that is linear in its inputs, so that its graph keeps nothing.
#[cfg(feature = "cube")]
pub(crate) trait LinearFunction<const N: usize>: Clone + Debug + Send + 'static {
    /// Its value of inputs on a GPU, which are not tracked.
    fn value(&self, inputs: [Matrix; N]) -> Matrix;

    /// The gradients of its inputs from the gradient of its value.
    fn gradients(&self, gradient: Matrix) -> [Matrix; N];
}

/// The value of a linear function as one step of the graph of its inputs, if these are on a GPU;
/// none elsewhere.
#[cfg(feature = "cube")]
pub(crate) fn linear_on_gpu<const N: usize>(function: &impl LinearFunction<N>, inputs: [&Matrix; N]) -> Option<Matrix> {
    if inputs[0].clone().try_into_primitive::<Cube>().is_ok() {
        return Some(function.value(inputs.map(Matrix::clone)));
    }
    let mut nodes = Vec::with_capacity(N);
    for input in inputs {
        nodes.push(input.clone().try_into_primitive::<Autodiff<Cube>>().ok()?.into_parts().1);
    }
    let nodes = nodes.try_into().ok()?;
    let value = function.value(inputs.map(|input| input.clone().inner())).try_into_primitive::<Cube>().ok()?;
    let step = LinearStep(function.clone());
    let value = match Backward::<Cube, N>::prepare::<NoCheckpointing>(step, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish((), value),
        OpsKind::UnTracked(prepared) => prepared.finish(value),
    };
    Some(Matrix::from_primitive::<Autodiff<Cube>>(value))
}

/// A linear function as a step of a graph.
#[cfg(feature = "cube")]
#[derive(Clone, Debug)]
struct LinearStep<F>(F);

#[cfg(feature = "cube")]
impl<F: LinearFunction<N>, const N: usize> Backward<Cube, N> for LinearStep<F> {
    type State = ();

    fn backward(self, ops: Ops<(), N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = Matrix::from_primitive::<Cube>(gradients.consume::<Cube>(&ops.node));
        register::<Cube, N>(
            ops.parents.map(|parent| parent.map(|node| node.id)),
            self.0.gradients(gradient),
            gradients,
        );
    }
}

/// Adds what was found to the gradients of the tracked inputs.
fn register<B: Backend, const N: usize>(parents: [Option<NodeId>; N], found: [Matrix; N], gradients: &mut Gradients)
where
    DispatchTensor: DispatchKindConversion<B>,
{
    for (parent, found) in parents.into_iter().zip(found) {
        if let Some(parent) = parent {
            let found = found.try_into_primitive::<B>().expect("a gradient is on the device of its input");
            gradients.register::<B>(parent, found);
        }
    }
}

/// A function as a step of a graph.
#[derive(Clone, Debug)]
struct Step<F>(F);

impl<B: Backend, F: Replayed<N>, const N: usize> Backward<B, N> for Step<F>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = [Matrix; N];

    fn backward(self, ops: Ops<Self::State, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = Matrix::from_primitive::<B>(gradients.consume::<B>(&ops.node));
        register::<B, N>(
            ops.parents.map(|parent| parent.map(|node| node.id)),
            self.0.gradients(ops.state, gradient),
            gradients,
        );
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::{
            activation::{Approximate, Gated},
            norm::Normed,
        },
        *,
    };
    use crate::device::cores;
    use burn::tensor::{Tensor, TensorData};
    use spipe_model::Norm;

    fn matrix(shape: [usize; 2], seed: usize) -> Matrix {
        let numbers =
            (0..shape[0] * shape[1]).map(|index| ((index * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0);
        Tensor::from_data(TensorData::new(numbers.collect::<Vec<_>>(), shape), &cores()).autodiff().require_grad()
    }

    fn numbers(matrix: Matrix) -> Vec<f32> {
        matrix.into_data().try_to_vec().unwrap()
    }

    /// Compares the value, and the gradients of Σ value · weight, with those of Burn's graph of the
    /// function.
    pub fn derives<const N: usize>(function: &impl Replayed<N>, shapes: [[usize; 2]; N]) {
        let by = |value: &dyn Fn([Matrix; N]) -> Matrix| {
            let mut seed = 0;
            let inputs = shapes.map(|shape| {
                seed += 1;
                matrix(shape, seed)
            });
            let value = value(inputs.clone());
            let gradients = (value.clone() * matrix(value.dims(), 77)).sum().backward();
            let found = inputs.map(|input| numbers(input.grad(&gradients).unwrap()));
            (numbers(value.inner()), found)
        };
        let (ours, theirs) = (by(&|inputs| replayed(function, inputs)), by(&|inputs| function.value(inputs)));
        let near = |ours: &[f32], theirs: &[f32]| {
            ours.iter().zip(theirs).all(|(ours, theirs)| (ours - theirs).abs() <= 2e-5 * (1.0 + theirs.abs()))
        };
        assert!(near(&ours.0, &theirs.0), "{function:?}: {:?} {:?}", ours.0, theirs.0);
        for (ours, theirs) in ours.1.iter().zip(&theirs.1) {
            assert!(ours.len() == theirs.len() && near(ours, theirs), "{function:?}: {ours:?} {theirs:?}");
        }
    }

    #[test]
    fn derivatives_are_those_of_the_operations() {
        derives(&Gated, [[6, 10], [6, 10]]);
        derives(&Approximate, [[6, 10]]);
        derives(&Normed { norm: Norm::RmsNorm, epsilon: 1e-5 }, [[6, 10], [1, 10]]);
        derives(&Normed { norm: Norm::LayerNorm, epsilon: 1e-5 }, [[6, 10], [1, 10], [1, 10]]);
    }
}
