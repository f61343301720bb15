//! How wide numbers are: what a device computes in, and 32 bits where fewer are too few.
//!
//! Where a device computes in 16 bits, products do, and what lies between them; norms, the turning of channels, softmax and the loss
//! take their inputs in f32, as in mixed-precision training (Micikevicius et al. 2018, section 3.3).

use burn::tensor::{DType, FloatDType, Tensor};

/// A tensor with numbers of that width; its graph takes gradients back in its own.
pub(crate) fn cast<const D: usize>(tensor: Tensor<D>, width: FloatDType) -> Tensor<D> {
    if tensor.dtype() == DType::from(width) { tensor } else { tensor.cast(width) }
}

/// A tensor in f32.
pub(crate) fn wide<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    cast(tensor, FloatDType::F32)
}

/// A width by the name of its numbers: of 16 bits, otherwise f32.
pub(crate) const fn float(width: DType) -> FloatDType {
    match width {
        DType::F16 => FloatDType::F16,
        DType::BF16 => FloatDType::BF16,
        _ => FloatDType::F32,
    }
}

/// Numbers that a graph keeps: in the width in which its device computes, and in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub own: u64,
    pub wide: u64,
}

impl Kept {
    /// Their bytes, with `width` bytes for a number of the device.
    pub const fn bytes(self, width: u64) -> u64 {
        self.own * width + self.wide * 4
    }
}
