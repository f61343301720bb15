//! AdamW on tensors in host memory.

use super::{AdamW, Exchange, Moments, Numbers};
use crate::nn::{Matrix, Tensors};
use burn::tensor::Tensor;

/// Applies `change` to every tensor of `parameters`, with its gradient and moments. Layers without
/// gradients stay as they are.
pub(crate) fn step(
    parameters: Tensors,
    gradients: Tensors,
    moments: &mut [Vec<Moments>],
    change: impl Fn(Matrix, Matrix, &mut Moments) -> Matrix,
) -> Tensors {
    let layers = parameters.into_iter().zip(gradients).zip(moments);
    layers
        .map(|((parameters, gradients), moments)| {
            if gradients.is_empty() {
                return parameters;
            }
            let tensors = parameters.into_iter().zip(gradients).zip(moments);
            tensors.map(|((parameter, gradient), moments)| change(parameter, gradient, moments)).collect()
        })
        .collect()
}

/// AdamW in host memory, with gradients times `factor`. If nobody else holds a tensor, it is
/// updated in place.
pub(crate) fn adam_w(adam: AdamW, factor: f32) -> impl Fn(Matrix, Matrix, &mut Moments) -> Matrix {
    move |parameter, gradient, moments| {
        let device = parameter.device();
        let (mut data, gradient) = (parameter.into_data(), gradient.into_data());
        {
            let parameters = data.as_mut_slice::<f32>().expect("parameters are f32");
            let gradients = gradient.as_slice::<f32>().expect("gradients are f32");
            let exchange = Exchange { factor, ..Exchange::of(Numbers::F32(gradients)) };
            adam.step_with(parameters, exchange, moments);
        }
        Tensor::from_data(data, &device)
    }
}
