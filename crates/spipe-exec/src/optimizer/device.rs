//! AdamW on state in the memory of a device: a fused kernel if the device's library supports it,
//! otherwise the library's operations.

#[cfg(feature = "cube")]
use super::fused;
use super::{AdamW, TensorState, kernel::Scalars};
use crate::{
    device::transfer,
    nn::{Matrix, cast, float},
    task_error::TaskError,
};
use burn::tensor::{Device, FloatDType, TensorData};

/// The moments of one parameter tensor in the memory of a device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceMoments {
    pub(super) first: Matrix,
    pub(super) second: Matrix,
    pub(super) steps: u32,
}

/// A parameter tensor in the memory of a device.
#[derive(Debug)]
pub(crate) struct DeviceParameter {
    /// The f32 parameter.
    pub(super) parameter: Matrix,
    /// The weights in the compute type, if that is narrower.
    pub(super) weights: Option<Matrix>,
}

impl DeviceParameter {
    /// A tensor in the compute type, and its f32 master copy if that is another tensor.
    pub fn new(tensor: Matrix, master: Option<Matrix>) -> Self {
        match master {
            Some(parameter) => Self { parameter, weights: Some(tensor) },
            None => Self { parameter: tensor, weights: None },
        }
    }

    /// The arguments of [`DeviceParameter::new`].
    pub fn into_parts(self) -> (Matrix, Option<Matrix>) {
        match self.weights {
            Some(weights) => (weights, Some(self.parameter)),
            None => (self.parameter, None),
        }
    }
}

impl DeviceMoments {
    /// The moments of a tensor of that shape, on `device`.
    pub fn new(state: &TensorState, shape: [usize; 2], device: &Device) -> Self {
        let numbers = state.numbers();
        let there = |index: usize| transfer::to_device(TensorData::new(numbers[index].clone(), shape), device);
        Self { first: there(0), second: there(1), steps: state.steps() }
    }

    /// A copy in host memory.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn to_host(&self) -> Result<TensorState, TaskError> {
        let numbers = transfer::all_to_host([&self.first, &self.second])?;
        let mut numbers = numbers.into_iter().map(|data| data.try_into_vec().map_err(TaskError::device));
        let mut next = || numbers.next().unwrap_or_else(|| Err("the device has left out a copy".into()));
        Ok(TensorState::from_numbers(vec![next()?, next()?], self.steps))
    }

    /// Number of steps in them.
    pub const fn steps(&self) -> u32 {
        self.steps
    }

    /// Both tensors.
    pub const fn tensors(&self) -> [&Matrix; 2] {
        [&self.first, &self.second]
    }
}

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
        let scalars = Scalars { factor, ..Scalars::new(self, moments.steps) };
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
