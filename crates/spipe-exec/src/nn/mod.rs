//! Neural networks on one device: layers, their kernels, and the passes through consecutive layers.

#[cfg(feature = "cube")]
pub(crate) mod fused;
pub(crate) mod kernels;
pub(crate) mod layers;
pub(crate) mod passes;
mod tensor;

pub(crate) use tensor::{Matrix, Tensors, cast, float, wide};
