//! The kernels of optimizers, as they are in `spipe-exec`.

#[path = "../../src/optimizer/fused.rs"]
mod fused;

use crate::nn::Matrix;
use device_state::{DeviceMoments, DeviceParameter};
use kernel::Scalars;

/// The fields of `spipe-exec`'s own.
mod device_state {
    use super::Matrix;

    pub struct DeviceMoments {
        pub first: Matrix,
        pub second: Matrix,
        pub steps: u32,
    }

    pub struct DeviceParameter {
        pub parameter: Matrix,
        pub weights: Option<Matrix>,
    }
}

/// The fields of `spipe-exec`'s own.
mod kernel {
    #[derive(Clone, Copy, Default)]
    pub struct Scalars {
        pub factor: f32,
        pub keep: f32,
        pub first_weight: f32,
        pub second_decay: f32,
        pub second_weight: f32,
        pub second_root: f32,
        pub eps: f32,
        pub step: f32,
    }
}

/// A step of AdamW on parameters and moments of f32, with weights of 16 bits if there are any.
pub fn step([parameter, first, second]: [Matrix; 3], gradient: Matrix, weights: Option<Matrix>) {
    let (held, moments) = (DeviceParameter { parameter, weights }, DeviceMoments { first, second, steps: 1 });
    let stepped = fused::step(Scalars::default(), held, gradient, moments);
    assert!(stepped.is_ok(), "all tensors are on one device");
}
