//! Functions of layers as single kernels of GPUs, where each operation of Burn's would be a kernel of its own.
//!
//! ```text
//! Matrix ─► value ─┬─ of a GPU ─► one kernel
//!                  └─ of cores ─► None: the caller has kernels of its own
//! ```
//!
//! They compute in f32, read and write the types of their tensors, and take tensors without a
//! graph: `layers/replay.rs` makes steps of graphs of them. Their sums have an order of their own,
//! which is the same in every run.

mod activation;
mod columns;
mod heads;
mod loss;
mod norm;
mod rotary;
mod softmax;
mod sum;
#[cfg(all(test, feature = "wgpu"))]
mod tests;

pub(crate) use activation::{Activated, Activation, activated, activated_gradients, gated, gated_gradients};
pub(crate) use columns::column_sums;
pub(crate) use heads::{Heads, joined, split};
pub(crate) use loss::{loss_gradient, losses};
pub(crate) use norm::{Norm, norm_gradients, normed};
pub(crate) use rotary::{Rotation, turned};
pub(crate) use softmax::{Softmax, score_gradients, shares};
pub(crate) use sum::add_in_place;

use crate::nn::Matrix;
use burn::{
    backend::{Autodiff, Cube},
    tensor::{DType, Shape, Tensor},
};
use burn_cubecl::{
    cubecl::{
        self, calculate_cube_count_elemwise,
        client::Client,
        ir::{ElemType, FloatKind},
        prelude::*,
        std::tensor::layout::linear::LinearViewLaunch,
    },
    kernel::into_contiguous,
    ops::numeric::empty_device_dtype,
    tensor::CubeTensor,
};

/// Units of a cube that shares the work on a row or on some columns: a power of two that every
/// device has.
const UNITS: usize = 256;

/// Below every score and logit, and a number: WebGPU has no infinity.
const LOWEST: f32 = -3.0e38;

/// The most cubes in one direction of a grid: the limit of WebGPU.
const MOST_CUBES: usize = 65_535;

/// The tensor of a GPU's library, its numbers in order; none of another library or with a graph.
fn own<const D: usize>(tensor: &Tensor<D>) -> Option<CubeTensor> {
    tensor.clone().try_into_primitive::<Cube>().ok().map(into_contiguous)
}

/// All of them, or none.
fn all<const N: usize>(tensors: [&Matrix; N]) -> Option<[CubeTensor; N]> {
    let found: Vec<CubeTensor> = tensors.into_iter().map(own).collect::<Option<_>>()?;
    found.try_into().ok()
}

/// Whether a tensor belongs to a GPU, with or without a graph.
pub(crate) fn is_on_gpu<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.clone().try_into_primitive::<Cube>().is_ok() || tensor.clone().try_into_primitive::<Autodiff<Cube>>().is_ok()
}

/// A tensor for the user.
pub(crate) fn matrix<const D: usize>(tensor: CubeTensor) -> Tensor<D> {
    Tensor::from_primitive::<Cube>(tensor)
}

/// A tensor to be filled, on the device of `like`.
fn blank(like: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    empty_device_dtype(like.client.clone(), like.device.clone(), shape.into(), dtype)
}

/// The same tensor if nobody else reads it, otherwise a copy.
pub(crate) fn in_place(tensor: CubeTensor) -> CubeTensor {
    if tensor.can_mut() && tensor.is_nonoverlapping() { tensor } else { tensor.copy() }
}

/// Number of neighbours that a unit can take at once.
pub(crate) fn vector_size(tensor: &CubeTensor) -> usize {
    let sizes = tensor.client.io_optimized_vector_sizes(tensor.dtype.size());
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    cubecl::tensor_vector_size_parallel(sizes, shape, strides, tensor.meta.num_dims() - 1)
}

/// A type by the library's name.
pub(crate) fn element(width: DType) -> ElemType {
    ElemType::Float(match width {
        DType::F16 => FloatKind::F16,
        DType::BF16 => FloatKind::BF16,
        _ => FloatKind::F32,
    })
}

/// The type that addresses all numbers of each of them.
pub(crate) fn addresses<'a>(tensors: impl IntoIterator<Item = &'a CubeTensor>) -> AddressType {
    tensors.into_iter().map(CubeTensor::required_address_type).max().unwrap_or_default()
}

/// A tensor as the argument of a kernel.
fn view(tensor: &CubeTensor) -> LinearViewLaunch {
    tensor.clone().into_linear_view()
}

/// A cube for each of `count` pieces of work.
fn cubes(count: usize) -> CubeCount {
    let across = count.clamp(1, MOST_CUBES);
    CubeCount::Static(across as u32, count.div_ceil(across) as u32, 1)
}

/// A cube's units, in a row.
fn units(client: &Client) -> CubeDim {
    debug_assert!(client.properties().hardware.max_units_per_cube as usize >= UNITS, "a device with small cubes");
    CubeDim::new_1d(UNITS as u32)
}

/// The last two dimensions, all others in the first.
fn rows_and_columns(tensor: &CubeTensor) -> [usize; 2] {
    let columns = tensor.meta.shape().last().copied().unwrap_or(1);
    [tensor.meta.num_elements() / columns.max(1), columns]
}

/// A unit for each of `count` pieces of work.
pub(crate) fn each(client: &Client, count: usize) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new(client, count);
    (calculate_cube_count_elemwise(client, count, dim), dim)
}

/// The sum, or the largest, of the numbers of all units, which each of them gets.
#[cube]
fn combined(shared: &mut Shared<[f32]>, number: f32, #[comptime] adds: bool) -> f32 {
    let unit = UNIT_POS as usize;
    // What was found before has been read by all.
    sync_cube();
    shared[unit] = number;
    sync_cube();
    let mut width = CUBE_DIM as usize / 2;
    while width > 0 {
        if unit < width {
            let (one, other) = (shared[unit], shared[unit + width]);
            if comptime!(adds) {
                shared[unit] = one + other;
            } else {
                shared[unit] = select(one > other, one, other);
            }
        }
        sync_cube();
        width /= 2;
    }
    shared[0]
}

/// The sum of the numbers of all units, which each of them gets.
#[cube]
fn total(shared: &mut Shared<[f32]>, number: f32) -> f32 {
    combined(shared, number, true)
}

/// The largest of the numbers of all units, which each of them gets.
#[cube]
fn largest(shared: &mut Shared<[f32]>, number: f32) -> f32 {
    combined(shared, number, false)
}
