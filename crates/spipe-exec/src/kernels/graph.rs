//! Kernels on Burn's tensors, with a step in its graphs.
#![expect(deprecated, reason = "ndarray is what the product is asked to run on; flex is its successor")]

use super::{Array, Kernel, product};
use crate::layers::Matrix;
use burn::{
    backend::{
        Autodiff, Backend, Flex, NdArray,
        autodiff::{
            NodeId,
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        flex::FlexTensor,
        ndarray::NdArrayTensor,
        tensor::FloatTensor,
    },
    tensor::{DType, Float, Tensor, TensorData},
};
use std::borrow::Cow;

/// The value of `kernel`, with its step in the graph where there is one; none on devices that have kernels of their own, and of 16-bit
/// numbers.
pub(crate) fn apply<K: Kernel<N>, const N: usize>(kernel: K, inputs: [&Matrix; N]) -> Option<Matrix> {
    if !product::is_supported() || !are_wide(inputs) {
        return None;
    }
    on::<Flex, K, N>(&kernel, inputs).or_else(|| on::<NdArray, K, N>(&kernel, inputs))
}

/// `value` as that of `kernel`, with its step in the graph; none where [`apply`] has none.
pub(super) fn known<K: Kernel<N, Kept = ()>, const N: usize>(
    kernel: K,
    inputs: [&Matrix; N],
    value: &Matrix,
) -> Option<Matrix> {
    if !product::is_supported() || !are_wide(inputs) {
        return None;
    }
    known_on::<Flex, K, N>(&kernel, inputs, value).or_else(|| known_on::<NdArray, K, N>(&kernel, inputs, value))
}

/// Whether all have the numbers that kernels compute with.
fn are_wide<const N: usize>(inputs: [&Matrix; N]) -> bool {
    inputs.iter().all(|input| input.dtype() == DType::F32)
}

/// The numbers of a matrix without a graph, in memory of their own; none on devices with another memory, and of 16-bit ones.
/// Burn's own way out of ndarray takes tensors that are shared number by number: 30 times as long.
pub(crate) fn copied(matrix: &Matrix) -> Option<Vec<f32>> {
    if matrix.dtype() != DType::F32 {
        return None;
    }
    let flex = Flex::plain(matrix).map(|tensor| Flex::numbers(&tensor).into_owned());
    flex.or_else(|| NdArray::plain(matrix).map(|tensor| NdArray::numbers(&tensor).into_owned()))
}

/// A library whose tensors lie in host memory.
trait Cpu: Backend {
    /// The numbers, row by row.
    fn numbers(tensor: &FloatTensor<Self>) -> Cow<'_, [f32]>;

    /// A tensor of these.
    fn tensor(numbers: Vec<f32>, shape: [usize; 2]) -> FloatTensor<Self>;
}

impl Cpu for Flex {
    fn numbers(tensor: &FlexTensor) -> Cow<'_, [f32]> {
        match tensor.as_slice::<f32>() {
            Some(numbers) => Cow::Borrowed(numbers),
            None => Cow::Owned(tensor.to_contiguous().storage::<f32>().to_vec()),
        }
    }

    fn tensor(numbers: Vec<f32>, shape: [usize; 2]) -> FlexTensor {
        FlexTensor::from_data(TensorData::new(numbers, shape))
    }
}

impl Cpu for NdArray {
    fn numbers(tensor: &NdArrayTensor) -> Cow<'_, [f32]> {
        let NdArrayTensor::F32(storage) = tensor else { panic!("numbers that are not f32") };
        let view = storage.view();
        match view.to_slice() {
            Some(numbers) => Cow::Borrowed(numbers),
            None => Cow::Owned(view.iter().copied().collect()),
        }
    }

    fn tensor(numbers: Vec<f32>, shape: [usize; 2]) -> NdArrayTensor {
        NdArrayTensor::from_data(TensorData::new(numbers, shape))
    }
}

/// A kernel as a step of a graph.
#[derive(Clone, Debug)]
struct Step<K>(K);

impl<B: Cpu, K: Kernel<N>, const N: usize> Backward<B, N> for Step<K> {
    type State = ([(FloatTensor<B>, [usize; 2]); N], K::Kept);

    fn backward(self, ops: Ops<Self::State, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let (inputs, kept) = &ops.state;
        let numbers = inputs.each_ref().map(|(tensor, _)| B::numbers(tensor));
        let arrays = std::array::from_fn(|index| Array { numbers: &numbers[index], shape: inputs[index].1 });
        let nodes: [Option<NodeId>; N] = ops.parents.each_ref().map(|parent| parent.as_ref().map(|node| node.id));
        let found = self.0.backward(arrays, kept, &B::numbers(&gradient), nodes.map(|node| node.is_some()));
        for ((node, found), (_, shape)) in nodes.into_iter().zip(found).zip(inputs) {
            if let (Some(node), Some(found)) = (node, found) {
                gradients.register::<B>(node, B::tensor(found, *shape));
            }
        }
    }
}

fn value<B: Cpu, K: Kernel<N>, const N: usize>(
    kernel: &K,
    inputs: &[(FloatTensor<B>, [usize; 2]); N],
) -> (FloatTensor<B>, K::Kept) {
    let numbers = inputs.each_ref().map(|(tensor, _)| B::numbers(tensor));
    let arrays = std::array::from_fn(|index| Array { numbers: &numbers[index], shape: inputs[index].1 });
    let (made, kept) = kernel.forward(arrays);
    (B::tensor(made.numbers, made.shape), kept)
}

/// All of them, or none.
fn all<T, const N: usize>(found: [Option<T>; N]) -> Option<[T; N]> {
    let found: Vec<T> = found.into_iter().collect::<Option<_>>()?;
    found.try_into().ok()
}

macro_rules! on {
    ($name:ident, $($library:ident),+) => { $(
        impl Library for $library {
            fn tracked(matrix: &Matrix) -> Option<FloatTensor<Autodiff<Self>>> {
                matrix.clone().try_into_primitive::<Autodiff<Self>>().ok()
            }

            fn plain(matrix: &Matrix) -> Option<FloatTensor<Self>> {
                matrix.clone().try_into_primitive::<Self>().ok()
            }

            fn from_tracked(tensor: FloatTensor<Autodiff<Self>>) -> Matrix {
                Tensor::<2, Float>::from_primitive::<Autodiff<Self>>(tensor)
            }

            fn from_plain(tensor: FloatTensor<Self>) -> Matrix {
                Tensor::<2, Float>::from_primitive::<Self>(tensor)
            }
        }
    )+ };
}

/// What Burn's matrices are made of in one library.
trait Library: Cpu {
    fn tracked(matrix: &Matrix) -> Option<FloatTensor<Autodiff<Self>>>;
    fn plain(matrix: &Matrix) -> Option<FloatTensor<Self>>;
    fn from_tracked(tensor: FloatTensor<Autodiff<Self>>) -> Matrix;
    fn from_plain(tensor: FloatTensor<Self>) -> Matrix;
}

on!(Library, Flex, NdArray);

fn on<B: Library, K: Kernel<N>, const N: usize>(kernel: &K, inputs: [&Matrix; N]) -> Option<Matrix> {
    if let Some(tracked) = all(inputs.map(B::tracked)) {
        return Some(recorded::<B, K, N>(kernel, with_shapes(tracked, inputs), |inputs| {
            value::<B, K, N>(kernel, inputs)
        }));
    }
    let plain = with_shapes(all(inputs.map(B::plain))?, inputs);
    Some(B::from_plain(value::<B, K, N>(kernel, &plain).0))
}

fn known_on<B: Library, K: Kernel<N, Kept = ()>, const N: usize>(
    kernel: &K,
    inputs: [&Matrix; N],
    value: &Matrix,
) -> Option<Matrix> {
    let value = B::plain(value)?;
    let tracked = with_shapes(all(inputs.map(B::tracked))?, inputs);
    Some(recorded::<B, K, N>(kernel, tracked, |_| (value, ())))
}

fn with_shapes<T, const N: usize>(tensors: [T; N], inputs: [&Matrix; N]) -> [(T, [usize; 2]); N] {
    let mut inputs = inputs.into_iter();
    tensors.map(|tensor| (tensor, inputs.next().map(|input| input.dims()).unwrap_or_default()))
}

type Tracked<B> = FloatTensor<Autodiff<B>>;

/// A step of the graph with the value that `find` finds.
fn recorded<B: Library, K: Kernel<N>, const N: usize>(
    kernel: &K,
    tracked: [(Tracked<B>, [usize; 2]); N],
    find: impl FnOnce(&[(FloatTensor<B>, [usize; 2]); N]) -> (FloatTensor<B>, K::Kept),
) -> Matrix {
    let nodes = tracked.each_ref().map(|(tensor, _)| tensor.node());
    let inputs = tracked.map(|(tensor, shape)| (tensor.into_primitive(), shape));
    let (made, kept) = find(&inputs);
    let step = Step(kernel.clone());
    let prepared = Backward::<B, N>::prepare::<NoCheckpointing>(step, nodes).compute_bound().stateful();
    B::from_tracked(match prepared {
        OpsKind::Tracked(step) => step.finish((inputs, kept), made),
        OpsKind::UnTracked(step) => step.finish(made),
    })
}
