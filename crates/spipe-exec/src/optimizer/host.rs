//! Steps on tensors in host memory.

use super::{Numbers, Optimizer, TensorState};
use crate::nn::{Matrix, Tensors};
use burn::tensor::Tensor;

/// One step of every tensor of `parameters`, with its gradient times `factor` and its state. Layers
/// without gradients stay as they are. A tensor that nobody else holds is updated in place.
pub(crate) fn step(
    optimizer: &Optimizer,
    parameters: Tensors,
    (gradients, factor): (Tensors, f32),
    states: &mut [Vec<TensorState>],
) -> Tensors {
    let layers = parameters.into_iter().zip(gradients).zip(states);
    layers
        .map(|((parameters, gradients), states)| {
            if gradients.is_empty() {
                return parameters;
            }
            let tensors = parameters.into_iter().zip(gradients).zip(states);
            tensors.map(|((parameter, gradient), state)| one(optimizer, parameter, (gradient, factor), state)).collect()
        })
        .collect()
}

fn one(optimizer: &Optimizer, parameter: Matrix, (gradient, factor): (Matrix, f32), state: &mut TensorState) -> Matrix {
    let device = parameter.device();
    let (mut data, gradient) = (parameter.into_data(), gradient.into_data());
    {
        let parameters = data.as_mut_slice::<f32>().expect("parameters are f32");
        let gradients = gradient.as_slice::<f32>().expect("gradients are f32");
        optimizer.step(parameters, (Numbers::F32(gradients), factor), state);
    }
    Tensor::from_data(data, &device)
}
