//! Lion: steps by the sign of a moment.

use super::{
    Numbers, Rule, To,
    half::{Wide, on_numbers},
    pieces::{Piece, State},
    state::{Extent, Slot},
};
use crate::device::simd::for_each_width;
use rayon::prelude::*;

/// Lion (Chen et al., arXiv 2302.06675, program 1), with the constants of the paper:
/// p ← p (1 − lr λ) − lr sign(m β₁ + g (1 − β₁)), then m ← m β₂ + g (1 − β₂).
///
/// A step cannot be inverted: near zero the sign depends on the rounding of the moment before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Lion {
    pub weight_decay: f64,
}

/// β₁ and β₂.
const BETAS: (f64, f64) = (0.9, 0.99);

#[derive(Clone, Copy)]
struct Scalars {
    factor: f32,
    keep: f32,
    step: f32,
    /// β and 1 − β of the update, then of the moment.
    update: (f32, f32),
    moment: (f32, f32),
}

impl Rule for Lion {
    fn slots(&self, tensor: &Extent) -> Vec<Slot> {
        vec![Slot::per_number("moment", tensor)]
    }

    fn step(&self, lr: f64, parameters: &mut [f32], (gradients, factor): (Numbers<'_>, f32), (state, weights): To<'_>) {
        state.steps += 1;
        let both = |beta: f64| (beta as f32, (1.0 - beta) as f32);
        let scalars = Scalars {
            factor,
            keep: (1.0 - lr * self.weight_decay) as f32,
            step: -lr as f32,
            update: both(BETAS.0),
            moment: both(BETAS.1),
        };
        let [moments] = state.numbers_mut();
        Piece::new([parameters, moments], gradients).with_weights(weights).tasks().for_each(|piece| {
            piece.change(|[parameters, moments], gradients, weights| {
                on_numbers!(gradients, gradients => update(scalars, [&mut *parameters, moments], gradients));
                weights.into_iter().for_each(|weights| weights.write(parameters));
            });
        });
    }
}

for_each_width! {
    fn update<G: Wide>(scalars: Scalars, state: State<'_, 2>, gradients: &[G]) {
        let Scalars { factor, keep, step, update, moment } = scalars;
        let [parameters, moments] = state;
        for ((parameter, gradient), held) in parameters.iter_mut().zip(gradients).zip(moments) {
            let gradient = gradient.wide() * factor;
            let towards = *held * update.0 + gradient * update.1;
            // The sign of zero is zero, as in NumPy and PyTorch.
            let sign = if towards == 0.0 { 0.0 } else { 1.0f32.copysign(towards) };
            *parameter = *parameter * keep + step * sign;
            *held = *held * moment.0 + gradient * moment.1;
        }
    }
}
