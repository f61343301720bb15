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
    tensor::{Float, Tensor, TensorData},
};
use std::borrow::Cow;

/// The value of `kernel`, with its step in the graph where there is one; none on devices that have kernels of their own.
pub(crate) fn apply<K: Kernel<N>, const N: usize>(kernel: K, inputs: [&Matrix; N]) -> Option<Matrix> {
    if !product::is_supported() {
        return None;
    }
    on::<Flex, K, N>(&kernel, inputs).or_else(|| on::<NdArray, K, N>(&kernel, inputs))
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
    let shapes = inputs.map(|input| input.dims());
    let Some(tracked) = all(inputs.map(B::tracked)) else {
        let plain = all(inputs.map(B::plain))?;
        let mut shapes = shapes.into_iter();
        let inputs = plain.map(|tensor| (tensor, shapes.next().unwrap_or_default()));
        return Some(B::from_plain(value::<B, K, N>(kernel, &inputs).0));
    };
    let nodes = tracked.each_ref().map(|tensor| tensor.node());
    let mut shapes = shapes.into_iter();
    let inputs = tracked.map(|tensor| (tensor.into_primitive(), shapes.next().unwrap_or_default()));
    let (made, kept) = value::<B, K, N>(kernel, &inputs);
    let step = Step(kernel.clone());
    let prepared = Backward::<B, N>::prepare::<NoCheckpointing>(step, nodes).compute_bound().stateful();
    Some(B::from_tracked(match prepared {
        OpsKind::Tracked(step) => step.finish((inputs, kept), made),
        OpsKind::UnTracked(step) => step.finish(made),
    }))
}
