//! Gradient descent without momentum.

use super::{
    Numbers, Rule, To,
    half::{Wide, on_numbers},
    pieces::{Piece, State},
    state::{Extent, Slot},
};
use crate::device::simd::for_each_width;
use rayon::prelude::*;

/// Gradient descent: p ← p (1 − lr λ) − lr g, which is `torch.optim.SGD` with weight decay λ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sgd {
    pub weight_decay: f64,
}

#[derive(Clone, Copy)]
struct Scalars {
    keep: f32,
    step: f32,
}

impl Sgd {
    fn scalars(self, lr: f64, factor: f32) -> Scalars {
        Scalars { keep: (1.0 - lr * self.weight_decay) as f32, step: -lr as f32 * factor }
    }
}

impl Rule for Sgd {
    fn slots(&self, _: &Extent) -> Vec<Slot> {
        Vec::new()
    }

    fn step(&self, lr: f64, parameters: &mut [f32], (gradients, factor): (Numbers<'_>, f32), (state, weights): To<'_>) {
        state.steps += 1;
        let scalars = self.scalars(lr, factor);
        let all = Piece::new([parameters], gradients).with_weights(weights);
        all.tasks().for_each(|piece| {
            piece.change(|[parameters], gradients, weights| {
                on_numbers!(gradients, gradients => update(scalars, [&mut *parameters], gradients));
                weights.into_iter().for_each(|weights| weights.write(parameters));
            });
        });
    }

    fn inverse(&self) -> Option<super::Inverse<'_>> {
        Some(Box::new(|lr, parameters, (gradients, factor), state| {
            state.steps -= 1;
            let scalars = self.scalars(lr, factor);
            Piece::new([parameters], gradients).tasks().for_each(|piece| {
                piece.change(
                    |state, gradients, _| on_numbers!(gradients, gradients => invert(scalars, state, gradients)),
                );
            });
        }))
    }
}

for_each_width! {
    fn update<G: Wide>(scalars: Scalars, state: State<'_, 1>, gradients: &[G]) {
        let Scalars { keep, step } = scalars;
        let [parameters] = state;
        for (parameter, gradient) in parameters.iter_mut().zip(gradients) {
            *parameter = *parameter * keep + step * gradient.wide();
        }
    }

    fn invert<G: Wide>(scalars: Scalars, state: State<'_, 1>, gradients: &[G]) {
        let Scalars { keep, step } = scalars;
        let [parameters] = state;
        for (parameter, gradient) in parameters.iter_mut().zip(gradients) {
            *parameter = (*parameter - step * gradient.wide()) / keep;
        }
    }
}
