//! AdamW in one pass over memory.
//!
//! ```text
//! gradients (f32, bf16 or f16) ─┐
//! master weights (f32) ─────────┼─► one pass on all threads of the pool ─► master weights, moments, weights of 16 bits
//! moments (f32) ────────────────┘                 └─► undo log
//! ```

use super::{
    HalfMut, Numbers, Rule, To, UndoLog, kernel,
    kernel::Scalars,
    pieces::Piece,
    state::{Extent, Slot, TensorState},
};
use rayon::prelude::*;

/// AdamW with decoupled weight decay (Loshchilov, Hutter 2019); the defaults are those of
/// `torch.optim.AdamW`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first and of the second moment.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decay of a parameter per step, as a multiple of the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 }
    }
}

/// Inputs and outputs of a step besides master weights and moments.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// The gradients.
    pub gradients: Numbers<'a>,
    /// Factor of the gradients.
    pub factor: f32,
    /// Destination of the new weights in 16 bits.
    pub weights: Option<HalfMut<'a>>,
    /// Destination of all values before the step.
    pub log: Option<&'a mut UndoLog>,
}

impl<'a> Exchange<'a> {
    /// Gradients, and no outputs.
    pub const fn of(gradients: Numbers<'a>) -> Self {
        Self { gradients, factor: 1.0, weights: None, log: None }
    }
}

impl AdamW {
    /// Updates `parameters` in place from `gradients`, on the threads of the current pool.
    ///
    /// Formula and order of operations are those of PyTorch's single-tensor form
    /// (`torch/optim/adamw.py`): decay, m ← m + (g − m)(1 − β₁), v ← v β₂ + (1 − β₂) g g, p ← p −
    /// (lr ÷ (1 − β₁ᵗ)) m ÷ (√v ÷ √(1 − β₂ᵗ) + ε). The coefficients are computed in f64 and rounded
    /// once.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn step(&self, parameters: &mut [f32], gradients: &[f32], state: &mut TensorState) {
        self.step_with(parameters, Exchange::of(Numbers::F32(gradients)), state);
    }

    /// The same in a single pass, with gradients of any type, 16-bit weights out, and an undo log.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn step_with(&self, parameters: &mut [f32], exchange: Exchange<'_>, state: &mut TensorState) {
        let before = state.steps;
        state.steps += 1;
        let scalars = Scalars { factor: exchange.factor, ..self.scalars(state.steps) };
        let [first, second] = state.numbers_mut();
        let mut all = Piece::new([parameters, first, second], exchange.gradients).with_weights(exchange.weights);
        let count = all.gradients.len();
        if let Some(log) = exchange.log {
            assert_eq!(log.bytes(), 12 * count as u64, "the log is of other parameters");
            all.log = Some(log.fill(before));
        }
        all.tasks().for_each(|piece| {
            piece.change(|state, gradients, weights| kernel::step(scalars, state, gradients, weights));
        });
    }

    /// Inverts the last step, which was made with `gradients` times `factor`, by solving its
    /// formula.
    ///
    /// Rounding errors of the step remain: parameters are restored within some units in the last
    /// place, moments within some units of the larger of themselves and their share of the
    /// gradient. A step with a gradient that is not finite cannot be inverted.
    ///
    /// # Panics
    /// If the lengths differ, or if no step was made.
    pub fn undo(&self, parameters: &mut [f32], (gradients, factor): (Numbers<'_>, f32), state: &mut TensorState) {
        assert!(state.steps > 0, "there is no step to take back");
        let scalars = Scalars { factor, ..self.scalars(state.steps) };
        state.steps -= 1;
        let [first, second] = state.numbers_mut();
        Piece::new([parameters, first, second], gradients).tasks().for_each(|piece| {
            piece.change(|state, gradients, _| kernel::undo(scalars, state, gradients));
        });
    }

    /// The scalars of step number `steps`, from 1; computed in f64 and rounded once.
    pub(super) fn scalars(&self, steps: u32) -> Scalars {
        let (first, second) = self.betas;
        let correction = |beta: f64| 1.0 - beta.powi(steps.cast_signed());
        Scalars {
            factor: 1.0,
            keep: (1.0 - self.lr * self.weight_decay) as f32,
            first_weight: (1.0 - first) as f32,
            second_decay: second as f32,
            second_weight: (1.0 - second) as f32,
            second_root: correction(second).sqrt() as f32,
            eps: self.eps as f32,
            step: -(self.lr / correction(first)) as f32,
        }
    }
}

/// The names of the moments in checkpoints.
pub(super) const MOMENTS: [&str; 2] = ["first-moment", "second-moment"];

impl AdamW {
    /// The state of a tensor before its first step.
    pub fn state(&self, tensor: &Extent) -> TensorState {
        TensorState::new(&Rule::slots(self, tensor))
    }
}

impl Rule for AdamW {
    fn slots(&self, tensor: &Extent) -> Vec<Slot> {
        MOMENTS.map(|name| Slot::per_number(name, tensor)).into()
    }

    fn step(&self, lr: f64, parameters: &mut [f32], gradients: (Numbers<'_>, f32), (state, weights): To<'_>) {
        let exchange = Exchange { factor: gradients.1, weights, ..Exchange::of(gradients.0) };
        Self { lr, ..*self }.step_with(parameters, exchange, state);
    }

    fn inverse(&self) -> Option<super::Inverse<'_>> {
        Some(Box::new(|lr, parameters, gradients, state| Self { lr, ..*self }.undo(parameters, gradients, state)))
    }

    fn on_devices(&self, lr: f64) -> Option<AdamW> {
        Some(Self { lr, ..*self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::pieces;
    use burn::tensor::{bf16, f16};
    use proptest::prelude::*;

    fn moments(count: usize) -> TensorState {
        AdamW::default().state(&Extent::vector(count))
    }

    /// Algorithm 2 of the paper, in f64.
    fn literal(adam: &AdamW, parameter: f64, gradients: &[f64]) -> f64 {
        let (mut p, mut m, mut v) = (parameter, 0.0, 0.0);
        for (index, g) in gradients.iter().enumerate() {
            let t = index as i32 + 1;
            m = adam.betas.0 * m + (1.0 - adam.betas.0) * g;
            v = adam.betas.1 * v + (1.0 - adam.betas.1) * g * g;
            let m_hat = m / (1.0 - adam.betas.0.powi(t));
            let v_hat = v / (1.0 - adam.betas.1.powi(t));
            p -= adam.lr * (m_hat / (v_hat.sqrt() + adam.eps) + adam.weight_decay * p);
        }
        p
    }

    proptest! {
        #[test]
        fn steps_follow_the_formula(
            parameter in -2.0f32..2.0,
            gradients in prop::collection::vec(-1.0f32..1.0, 1..12),
            lr in 1e-5f64..1e-1,
            weight_decay in 0.0f64..0.3,
        ) {
            let adam = AdamW { lr, weight_decay, ..AdamW::default() };
            let mut parameters = [parameter];
            let mut moments = moments(1);
            for gradient in &gradients {
                adam.step(&mut parameters, &[*gradient], &mut moments);
            }
            let wide: Vec<f64> = gradients.iter().map(|gradient| f64::from(*gradient)).collect();
            let expected = literal(&adam, f64::from(parameter), &wide);
            let tolerance = 2e-5 * (expected.abs() + lr * gradients.len() as f64) + 1e-7;
            prop_assert!((f64::from(parameters[0]) - expected).abs() <= tolerance, "{} {expected}", parameters[0]);
        }
    }

    #[test]
    fn narrow_gradients_and_weights_are_rounded_and_nothing_else() {
        let count = 2 * pieces::CHUNK + 1234;
        let gradients: Vec<bf16> = (0..count).map(|index| bf16::from_f32((index % 977) as f32 / 977.0 - 0.5)).collect();
        let halves: Vec<f16> = gradients.iter().map(|gradient| f16::from_f32(gradient.to_f32())).collect();
        let wide: Vec<f32> = halves.iter().map(|gradient| gradient.to_f32()).collect();
        let start: Vec<f32> = (0..count).map(|index| (index % 13) as f32 / 13.0).collect();
        let (mut expected, mut state) = (start.clone(), moments(count));
        AdamW::default().step(&mut expected, &wide, &mut state);
        let (mut brain, mut half) = (vec![bf16::ZERO; count], vec![f16::ZERO; count]);
        let sources =
            [(Numbers::Bf16(&gradients), HalfMut::Bf16(&mut brain)), (Numbers::F16(&halves), HalfMut::F16(&mut half))];
        for (gradients, weights) in sources {
            let (mut parameters, mut found) = (start.clone(), moments(count));
            let exchange = Exchange { weights: Some(weights), ..Exchange::of(gradients) };
            AdamW::default().step_with(&mut parameters, exchange, &mut found);
            assert!(parameters == expected && found == state);
        }
        assert!(brain.iter().zip(&expected).all(|(brain, wide)| *brain == bf16::from_f32(*wide)));
        assert!(half.iter().zip(&expected).all(|(half, wide)| *half == f16::from_f32(*wide)));
    }

    #[test]
    fn chunks_and_threads_change_nothing() {
        let count = 3 * pieces::CHUNK + 17;
        let gradients: Vec<f32> = (0..count).map(|index| ((index * 7919) % 1000) as f32 / 1000.0 - 0.5).collect();
        let start: Vec<f32> = (0..count).map(|index| (index % 13) as f32 / 13.0).collect();
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let (mut parameters, mut moments) = (start.clone(), moments(count));
            pool.install(|| {
                for _ in 0..3 {
                    AdamW::default().step(&mut parameters, &gradients, &mut moments);
                }
            });
            (parameters, moments)
        };
        assert_eq!(run(1), run(3));
    }

    #[test]
    fn the_first_step_moves_by_the_learning_rate() {
        let adam = AdamW { weight_decay: 0.0, ..AdamW::default() };
        let (mut parameters, mut moments) = ([1.0f32, 1.0], moments(2));
        adam.step(&mut parameters, &[0.25, -3.0], &mut moments);
        assert!((parameters[0] - 0.999).abs() < 1e-6 && (parameters[1] - 1.001).abs() < 1e-6, "{parameters:?}");
    }
}
