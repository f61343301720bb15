//! Parameters and moments in the memory of a device.

use super::TensorState;
use crate::{device::transfer, nn::Matrix, task_error::TaskError};
use burn::tensor::{Device, TensorData};

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
