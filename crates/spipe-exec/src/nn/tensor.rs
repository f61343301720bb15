//! Matrices and their types.
//!
//! Products and most other operations run in the compute type. Norms, rotation, softmax and the
//! loss take their inputs in f32, as in mixed-precision training (Micikevicius et al. 2018, section
//! 3.3).

use burn::tensor::{DType, FloatDType, Tensor};

/// A matrix of tokens × width, or of parameters.
pub(crate) type Matrix = Tensor<2>;

/// The tensors of consecutive layers, layer by layer.
pub(crate) type Tensors = Vec<Vec<Matrix>>;

/// A tensor in type `width`. In a graph, the gradient returns in the type of the input.
pub(crate) fn cast<const D: usize>(tensor: Tensor<D>, width: FloatDType) -> Tensor<D> {
    if tensor.dtype() == DType::from(width) { tensor } else { tensor.cast(width) }
}

/// A tensor in f32.
pub(crate) fn wide<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    cast(tensor, FloatDType::F32)
}

/// The float type of `width`; f32 if `width` is none of these.
pub(crate) const fn float(width: DType) -> FloatDType {
    match width {
        DType::F16 => FloatDType::F16,
        DType::BF16 => FloatDType::BF16,
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}
