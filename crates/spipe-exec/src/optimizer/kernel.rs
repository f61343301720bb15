//! The arithmetic of a step, and its inverse.

use super::AdamW;
use crate::width::for_each_width;

/// The numbers of one step, as f32 like the tensors they multiply.
#[derive(Clone, Copy)]
pub(super) struct Scalars {
    keep: f32,
    first_weight: f32,
    second_decay: f32,
    second_weight: f32,
    second_root: f32,
    eps: f32,
    step: f32,
}

impl Scalars {
    /// Those of step number `steps`, from 1. Computed in f64 and rounded once.
    pub fn new(adam: &AdamW, steps: u32) -> Self {
        let (first, second) = adam.betas;
        let correction = |beta: f64| 1.0 - beta.powi(steps.cast_signed());
        Self {
            keep: (1.0 - adam.lr * adam.weight_decay) as f32,
            first_weight: (1.0 - first) as f32,
            second_decay: second as f32,
            second_weight: (1.0 - second) as f32,
            second_root: correction(second).sqrt() as f32,
            eps: adam.eps as f32,
            step: -(adam.lr / correction(first)) as f32,
        }
    }
}

/// Slices of the same numbers' parameters, first and second moments.
pub(super) type State<'a> = [&'a mut [f32]; 3];

for_each_width! {
    pub(super) fn update(scalars: Scalars, state: State<'_>, gradients: &[f32]) {
        let Scalars { keep, first_weight, second_decay, second_weight, second_root, eps, step } = scalars;
        let [parameters, firsts, seconds] = state;
        let moments = firsts.iter_mut().zip(seconds);
        for ((parameter, gradient), (first, second)) in parameters.iter_mut().zip(gradients).zip(moments) {
            *first += first_weight * (*gradient - *first);
            *second = *second * second_decay + second_weight * *gradient * *gradient;
            let denominator = second.sqrt() / second_root + eps;
            *parameter = *parameter * keep + step * *first / denominator;
        }
    }

    /// Solves the three assignments of [`update`] for what was there before, last one first.
    pub(super) fn invert(scalars: Scalars, state: State<'_>, gradients: &[f32]) {
        let Scalars { keep, first_weight, second_decay, second_weight, second_root, eps, step } = scalars;
        let [parameters, firsts, seconds] = state;
        let moments = firsts.iter_mut().zip(seconds);
        for ((parameter, gradient), (first, second)) in parameters.iter_mut().zip(gradients).zip(moments) {
            let denominator = second.sqrt() / second_root + eps;
            *parameter = (*parameter - step * *first / denominator) / keep;
            *first = (*first - first_weight * *gradient) / (1.0 - first_weight);
            // Rounding may leave a little less than nothing.
            *second = ((*second - second_weight * *gradient * *gradient) / second_decay).max(0.0);
        }
    }
}
