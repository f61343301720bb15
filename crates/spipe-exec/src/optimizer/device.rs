//! AdamW on state in the memory of a device: a fused kernel if the device's library supports it,
//! otherwise the library's operations.

#[cfg(feature = "cube")]
use super::fused;
use super::{
    AdamW,
    device_state::{DeviceMoments, DeviceParameter},
    kernel::Scalars,
};
use crate::{
    device::transfer,
    nn::{Matrix, cast, float},
    task_error::TaskError,
};
use burn::tensor::FloatDType;

impl AdamW {
    /// One step as in [`AdamW::step`], by the same formula in the same order, with a gradient of
    /// any type times `factor`. Needs at most two more tensors of the parameter's size at a time,
    /// if nobody else holds these. A device may fuse multiplications and additions.
    pub(crate) fn step_on_device(
        &self,
        held: DeviceParameter,
        (gradient, factor): (Matrix, f32),
        mut moments: DeviceMoments,
    ) -> (DeviceParameter, DeviceMoments) {
        moments.steps += 1;
        let scalars = Scalars { factor, ..self.scalars(moments.steps) };
        #[cfg(feature = "cube")]
        let (held, gradient, moments) = match fused::step(scalars, held, gradient, moments) {
            Ok(stepped) => return stepped,
            Err(same) => same,
        };
        by_operations(scalars, held, gradient, moments)
    }
}

fn by_operations(
    scalars: Scalars,
    held: DeviceParameter,
    gradient: Matrix,
    moments: DeviceMoments,
) -> (DeviceParameter, DeviceMoments) {
    let DeviceMoments { first, second, steps } = moments;
    let gradient = cast(gradient, FloatDType::F32).mul_scalar(scalars.factor);
    let first = first.clone() + (gradient.clone() - first).mul_scalar(scalars.first_weight);
    let square = gradient.clone().mul_scalar(scalars.second_weight) * gradient;
    let second = second.mul_scalar(scalars.second_decay) + square;
    let denominator = second.clone().sqrt().div_scalar(scalars.second_root).add_scalar(scalars.eps);
    let change = first.clone().mul_scalar(scalars.step) / denominator;
    let parameter = held.parameter.mul_scalar(scalars.keep) + change;
    let weights = held.weights.map(|weights| cast(parameter.clone(), float(weights.dtype())));
    (DeviceParameter { parameter, weights }, DeviceMoments { first, second, steps })
}

/// The sum of the squares of all numbers of all tensors. It is finite if they are and no tensor's
/// sum in f32 overflows.
///
/// # Errors
/// A failure of the device.
pub(crate) fn sums_of_squares<'a>(tensors: impl Iterator<Item = &'a Matrix>) -> Result<f64, TaskError> {
    let squares = |tensor: &Matrix| {
        let wide = cast(tensor.clone(), FloatDType::F32);
        (wide.clone() * wide).sum().reshape([1, 1])
    };
    let sums: Vec<Matrix> = tensors.map(squares).collect();
    let sums = transfer::all_to_host(&sums)?;
    Ok(sums.iter().flat_map(|sum| sum.iter::<f32>().map(f64::from)).sum())
}
