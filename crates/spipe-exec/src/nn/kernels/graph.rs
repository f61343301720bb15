//! Kernels on Burn's tensors, as steps of its graphs.

use super::{Array, Kernel};
use crate::{
    device::{Cores, numbers, simd},
    nn::Matrix,
};
use burn::{
    backend::{
        Autodiff,
        autodiff::{
            NodeId,
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        tensor::FloatTensor,
    },
    tensor::{DType, TensorData},
};

/// A tensor of the library of CPU cores, and one in its graphs.
type UntrackedTensor = FloatTensor<Cores>;
type Tracked = FloatTensor<Autodiff<Cores>>;

/// The value of `kernel`, with its step in the graph if the inputs are tracked; none on other
/// devices and for 16-bit numbers.
pub(crate) fn apply<K: Kernel<N>, const N: usize>(kernel: K, inputs: [&Matrix; N]) -> Option<Matrix> {
    if !simd::has_fma() || !are_wide(inputs) {
        return None;
    }
    if let Some(tracked) = all(inputs.map(tracked)) {
        return Some(recorded(&kernel, with_shapes(tracked, inputs), |inputs| value(&kernel, inputs)));
    }
    let plain = with_shapes(all(inputs.map(plain))?, inputs);
    Some(Matrix::from_primitive::<Cores>(value(&kernel, &plain).0))
}

/// `value` as the value of `kernel`, with its step in the graph; none where [`apply`] has none.
pub(super) fn apply_with_value<K: Kernel<N, Saved = ()>, const N: usize>(
    kernel: K,
    inputs: [&Matrix; N],
    value: &Matrix,
) -> Option<Matrix> {
    if !simd::has_fma() || !are_wide(inputs) {
        return None;
    }
    let value = plain(value)?;
    let tracked = with_shapes(all(inputs.map(tracked))?, inputs);
    Some(recorded(&kernel, tracked, |_| (value, ())))
}

/// Whether all have the type in which kernels compute.
fn are_wide<const N: usize>(inputs: [&Matrix; N]) -> bool {
    inputs.iter().all(|input| input.dtype() == DType::F32)
}

/// A tensor of these numbers.
#[expect(deprecated, reason = "the library is deprecated")]
fn tensor(numbers: Vec<f32>, shape: [usize; 2]) -> UntrackedTensor {
    UntrackedTensor::from_data(TensorData::new(numbers, shape))
}

/// A kernel as a step of a graph.
#[derive(Clone, Debug)]
struct Step<K>(K);

impl<K: Kernel<N>, const N: usize> Backward<Cores, N> for Step<K> {
    type State = ([(UntrackedTensor, [usize; 2]); N], K::Saved);

    fn backward(self, ops: Ops<Self::State, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<Cores>(&ops.node);
        let (inputs, kept) = &ops.state;
        let all = inputs.each_ref().map(|(tensor, _)| numbers(tensor));
        let arrays = std::array::from_fn(|index| Array { numbers: &all[index], shape: inputs[index].1 });
        let nodes: [Option<NodeId>; N] = ops.parents.each_ref().map(|parent| parent.as_ref().map(|node| node.id));
        let found = self.0.backward(arrays, kept, &numbers(&gradient), nodes.map(|node| node.is_some()));
        for ((node, found), (_, shape)) in nodes.into_iter().zip(found).zip(inputs) {
            if let (Some(node), Some(found)) = (node, found) {
                gradients.register::<Cores>(node, tensor(found, *shape));
            }
        }
    }
}

fn value<K: Kernel<N>, const N: usize>(
    kernel: &K,
    inputs: &[(UntrackedTensor, [usize; 2]); N],
) -> (UntrackedTensor, K::Saved) {
    let all = inputs.each_ref().map(|(tensor, _)| numbers(tensor));
    let arrays = std::array::from_fn(|index| Array { numbers: &all[index], shape: inputs[index].1 });
    let (made, kept) = kernel.forward(arrays);
    (tensor(made.numbers, made.shape), kept)
}

/// All of them, or none.
fn all<T, const N: usize>(found: [Option<T>; N]) -> Option<[T; N]> {
    let found: Vec<T> = found.into_iter().collect::<Option<_>>()?;
    found.try_into().ok()
}

/// A matrix in a graph of the library; none of another library or without a graph.
fn tracked(matrix: &Matrix) -> Option<Tracked> {
    matrix.clone().try_into_primitive::<Autodiff<Cores>>().ok()
}

/// A matrix of the library without a graph.
fn plain(matrix: &Matrix) -> Option<UntrackedTensor> {
    matrix.clone().try_into_primitive::<Cores>().ok()
}

fn with_shapes<T, const N: usize>(tensors: [T; N], inputs: [&Matrix; N]) -> [(T, [usize; 2]); N] {
    let mut inputs = inputs.into_iter();
    tensors.map(|tensor| (tensor, inputs.next().map(|input| input.dims()).unwrap_or_default()))
}

/// A step of the graph, with the value that `find` returns.
fn recorded<K: Kernel<N>, const N: usize>(
    kernel: &K,
    tracked: [(Tracked, [usize; 2]); N],
    find: impl FnOnce(&[(UntrackedTensor, [usize; 2]); N]) -> (UntrackedTensor, K::Saved),
) -> Matrix {
    let nodes = tracked.each_ref().map(|(tensor, _)| tensor.node());
    let inputs = tracked.map(|(tensor, shape)| (tensor.into_primitive(), shape));
    let (made, kept) = find(&inputs);
    let step = Step(kernel.clone());
    let prepared = Backward::<Cores, N>::prepare::<NoCheckpointing>(step, nodes).compute_bound().stateful();
    Matrix::from_primitive::<Autodiff<Cores>>(match prepared {
        OpsKind::Tracked(step) => step.finish((inputs, kept), made),
        OpsKind::UnTracked(step) => step.finish(made),
    })
}
