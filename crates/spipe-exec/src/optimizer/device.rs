//! AdamW by the operations of a device's library, on state in the memory of the device.

use super::{AdamW, Moments, kernel::Scalars};
use crate::{
    layers::{Matrix, cast},
    transfer,
};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};

/// The moments of one parameter tensor in the memory of a device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceMoments {
    first: Matrix,
    second: Matrix,
    steps: u32,
}

impl DeviceMoments {
    /// The same as `moments`, of a tensor of that shape.
    pub fn new(moments: Moments, shape: [usize; 2], device: &Device) -> Self {
        let there = |numbers| transfer::to_device(TensorData::new(numbers, shape), device);
        Self { first: there(moments.first), second: there(moments.second), steps: moments.steps }
    }

    /// The same in host memory.
    ///
    /// # Errors
    /// What has gone wrong on the device.
    pub fn to_host(&self) -> Result<Moments, String> {
        let numbers = transfer::all_to_host([&self.first, &self.second])?;
        let mut numbers = numbers.into_iter().map(|data| data.try_into_vec().map_err(|error| format!("{error:?}")));
        let mut next = || numbers.next().unwrap_or_else(|| Err("the device has left out a copy".into()));
        Ok(Moments { first: next()?, second: next()?, steps: self.steps })
    }

    /// Both tensors.
    pub const fn tensors(&self) -> [&Matrix; 2] {
        [&self.first, &self.second]
    }
}

impl AdamW {
    /// What [`AdamW::step`] does, with the same formula in the same order. At most one more tensor of the parameter's size is held at
    /// a time, if nobody else holds the gradient; a library may add products without rounding them first.
    pub(crate) fn step_on_device(&self, parameter: Matrix, gradient: Matrix, moments: &mut DeviceMoments) -> Matrix {
        moments.steps += 1;
        let scalars = Scalars::new(self, moments.steps);
        let first = moments.first.clone();
        moments.first = taken(&mut moments.first) + (gradient.clone() - first).mul_scalar(scalars.first_weight);
        let square = gradient.clone().mul_scalar(scalars.second_weight) * gradient;
        moments.second = taken(&mut moments.second).mul_scalar(scalars.second_decay) + square;
        let denominator = moments.second.clone().sqrt().div_scalar(scalars.second_root).add_scalar(scalars.eps);
        let change = moments.first.clone().mul_scalar(scalars.step) / denominator;
        parameter.mul_scalar(scalars.keep) + change
    }
}

/// A tensor out of its place, so that the library may reuse its memory.
fn taken(tensor: &mut Matrix) -> Matrix {
    let empty = Tensor::empty([1, 1], &tensor.device());
    std::mem::replace(tensor, empty)
}

/// The sum of the squares of all numbers of all tensors, which is finite if they are and their sum in f32 does not overflow.
///
/// # Errors
/// What has gone wrong on the device.
pub(crate) fn sums_of_squares<'a>(tensors: impl Iterator<Item = &'a Matrix>) -> Result<f64, String> {
    let squares = |tensor: &Matrix| {
        let wide = cast(tensor.clone(), FloatDType::F32);
        (wide.clone() * wide).sum().reshape([1, 1])
    };
    let sums: Vec<Matrix> = tensors.map(squares).collect();
    let sums = transfer::all_to_host(&sums)?;
    Ok(sums.iter().flat_map(|sum| sum.iter::<f32>().map(f64::from)).sum())
}
