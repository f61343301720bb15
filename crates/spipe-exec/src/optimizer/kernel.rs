//! The arithmetic of a step of AdamW, and its inverse.

use super::half::{HalfMut, Narrow, Numbers, Wide, on_numbers};
use crate::device::simd::for_each_width;

/// The scalars of one step, in f32 like the tensors that they multiply.
#[derive(Clone, Copy)]
pub(super) struct Scalars {
    /// Factor of the gradients.
    pub factor: f32,
    pub keep: f32,
    pub first_weight: f32,
    pub second_decay: f32,
    pub second_weight: f32,
    pub second_root: f32,
    pub eps: f32,
    pub step: f32,
}

/// Parameters, first and second moments of the same numbers.
type State<'a> = super::pieces::State<'a, 3>;

/// Updates parameters and moments, and writes the new parameters to `weights` in 16 bits.
pub(super) fn step(scalars: Scalars, state: State<'_>, gradients: Numbers<'_>, weights: Option<HalfMut<'_>>) {
    on_numbers!(gradients, gradients => step_by(scalars, state, gradients, weights))
}

fn step_by<G: Wide>(scalars: Scalars, state: State<'_>, gradients: &[G], weights: Option<HalfMut<'_>>) {
    match weights {
        // A vector of units takes no memory.
        None => update(scalars, state, gradients, &mut vec![(); gradients.len()]),
        Some(HalfMut::Bf16(weights)) => update(scalars, state, gradients, weights),
        Some(HalfMut::F16(weights)) => update(scalars, state, gradients, weights),
    }
}

/// Inverts [`step`] on parameters and moments.
pub(super) fn undo(scalars: Scalars, state: State<'_>, gradients: Numbers<'_>) {
    on_numbers!(gradients, gradients => invert(scalars, state, gradients))
}

// One loop for everything: conversions overlap with the roots and quotients, which take longest.
for_each_width! {
    fn update<G: Wide, W: Narrow>(scalars: Scalars, state: State<'_>, gradients: &[G], weights: &mut [W]) {
        let Scalars { factor, keep, first_weight, second_decay, second_weight, second_root, eps, step } = scalars;
        let [parameters, firsts, seconds] = state;
        let (moments, ends) = (firsts.iter_mut().zip(seconds), gradients.iter().zip(weights));
        for ((parameter, (gradient, weight)), (first, second)) in parameters.iter_mut().zip(ends).zip(moments) {
            let gradient = gradient.wide() * factor;
            *first += first_weight * (gradient - *first);
            *second = *second * second_decay + second_weight * gradient * gradient;
            let denominator = second.sqrt() / second_root + eps;
            *parameter = *parameter * keep + step * *first / denominator;
            *weight = W::narrow(*parameter);
        }
    }

    /// Solves the three assignments of [`update`] for the values before, last one first.
    fn invert<G: Wide>(scalars: Scalars, state: State<'_>, gradients: &[G]) {
        let Scalars { factor, keep, first_weight, second_decay, second_weight, second_root, eps, step } = scalars;
        let [parameters, firsts, seconds] = state;
        let moments = firsts.iter_mut().zip(seconds);
        for ((parameter, gradient), (first, second)) in parameters.iter_mut().zip(gradients).zip(moments) {
            let gradient = gradient.wide() * factor;
            let denominator = second.sqrt() / second_root + eps;
            *parameter = (*parameter - step * *first / denominator) / keep;
            *first = (*first - first_weight * gradient) / (1.0 - first_weight);
            // Rounding may leave a small negative number.
            *second = ((*second - second_weight * gradient * gradient) / second_decay).max(0.0);
        }
    }
}
