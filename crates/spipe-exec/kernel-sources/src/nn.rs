//! Kernels of layers, as they are in `spipe-exec`.

#[expect(dead_code, reason = "layers use more of it")]
#[path = "../../src/nn/fused/mod.rs"]
pub mod fused;

/// A matrix.
pub type Matrix = crate::tensor::Tensor<2>;

/// Constants that kernels of cores share. Their values do not matter to a compiler.
pub mod kernels {
    use std::f32::consts::{FRAC_2_SQRT_PI, SQRT_2};

    pub const GELU_CUBE: f32 = 0.044_715;
    pub const GELU_TWICE: f32 = FRAC_2_SQRT_PI * SQRT_2;
}
