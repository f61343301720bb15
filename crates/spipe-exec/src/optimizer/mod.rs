//! AdamW in one pass over memory.
//!
//! ```text
//! gradients (f32, bf16 or f16) ─┐
//! master weights (f32) ─────────┼─► one pass on all threads of the pool ─► master weights, moments, weights of 16 bits
//! moments (f32) ────────────────┘                 └─► undo log
//! ```

mod device;
#[cfg(feature = "cube")]
mod fused;
mod half;
mod host;
mod kernel;
mod norm;
mod pieces;
mod schedule;
mod undo;

pub(crate) use device::{DeviceMoments, DeviceParameter, sums_of_squares};
pub(crate) use half::narrowed;
pub use half::{HalfMut, Numbers};
pub(crate) use host::{adam_w, step};
pub(crate) use norm::sum_of_squares;
pub use schedule::{Decay, Schedule};
pub use undo::UndoLog;

use kernel::Scalars;
use pieces::Piece;
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

/// The moments of one parameter tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    first: Vec<f32>,
    second: Vec<f32>,
    steps: u32,
}

impl Moments {
    /// The moments of `count` parameters before their first step.
    pub fn new(count: usize) -> Self {
        Self { first: vec![0.0; count], second: vec![0.0; count], steps: 0 }
    }

    /// The moments of parameters after `steps` steps.
    ///
    /// # Panics
    /// If the lengths of `first` and `second` differ.
    pub fn from_numbers(first: Vec<f32>, second: Vec<f32>, steps: u32) -> Self {
        assert_eq!(first.len(), second.len(), "first and second moments differ in length");
        Self { first, second, steps }
    }

    /// The moments of a tensor from those of its parts, in order; none of no parts.
    pub(crate) fn joined(parts: Vec<Self>) -> Option<Self> {
        parts.into_iter().reduce(|mut all, part| {
            all.first.extend(part.first);
            all.second.extend(part.second);
            all
        })
    }

    /// First and second moments.
    pub fn numbers(&self) -> [&[f32]; 2] {
        [&self.first, &self.second]
    }

    /// Number of steps in them.
    pub const fn steps(&self) -> u32 {
        self.steps
    }

    /// Their size in bytes.
    pub fn bytes(&self) -> u64 {
        4 * (self.first.len() + self.second.len()) as u64
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
    /// The optimizer of step `step`, from 0, of a run of `steps`.
    pub fn in_step(self, schedule: Schedule, (step, steps): (u32, u32)) -> Self {
        Self { lr: self.lr * schedule.factor(step, steps), ..self }
    }

    /// Updates `parameters` in place from `gradients`, on the threads of the current pool.
    ///
    /// Formula and order of operations are those of PyTorch's single-tensor form
    /// (`torch/optim/adamw.py`): decay, m ← m + (g − m)(1 − β₁), v ← v β₂ + (1 − β₂) g g, p ← p −
    /// (lr ÷ (1 − β₁ᵗ)) m ÷ (√v ÷ √(1 − β₂ᵗ) + ε). The coefficients are computed in f64 and rounded
    /// once.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn step(&self, parameters: &mut [f32], gradients: &[f32], moments: &mut Moments) {
        self.step_with(parameters, Exchange::of(Numbers::F32(gradients)), moments);
    }

    /// The same in a single pass, with gradients of any type, 16-bit weights out, and an undo log.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn step_with(&self, parameters: &mut [f32], exchange: Exchange<'_>, moments: &mut Moments) {
        let before = moments.steps;
        moments.steps += 1;
        let scalars = Scalars { factor: exchange.factor, ..Scalars::new(self, moments.steps) };
        let mut all = Piece::new([parameters, &mut moments.first, &mut moments.second], exchange.gradients);
        let count = all.gradients.len();
        if let Some(weights) = exchange.weights {
            assert_eq!(weights.len(), count, "weights and parameters differ in length");
            all.weights = Some(weights);
        }
        if let Some(log) = exchange.log {
            assert_eq!(log.bytes(), 12 * count as u64, "the log is of other parameters");
            all.log = Some(log.fill(before));
        }
        all.tasks().for_each(|piece| {
            piece.change(|state, gradients, weights| kernel::step(scalars, state, gradients, weights));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{bf16, f16};
    use proptest::prelude::*;

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
            let mut moments = Moments::new(1);
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
        let (mut expected, mut moments) = (start.clone(), Moments::new(count));
        AdamW::default().step(&mut expected, &wide, &mut moments);
        let (mut brain, mut half) = (vec![bf16::ZERO; count], vec![f16::ZERO; count]);
        let sources =
            [(Numbers::Bf16(&gradients), HalfMut::Bf16(&mut brain)), (Numbers::F16(&halves), HalfMut::F16(&mut half))];
        for (gradients, weights) in sources {
            let (mut parameters, mut found) = (start.clone(), Moments::new(count));
            let exchange = Exchange { weights: Some(weights), ..Exchange::of(gradients) };
            AdamW::default().step_with(&mut parameters, exchange, &mut found);
            assert!(parameters == expected && found == moments);
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
            let (mut parameters, mut moments) = (start.clone(), Moments::new(count));
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
        let (mut parameters, mut moments) = ([1.0f32, 1.0], Moments::new(2));
        adam.step(&mut parameters, &[0.25, -3.0], &mut moments);
        assert!((parameters[0] - 0.999).abs() < 1e-6 && (parameters[1] - 1.001).abs() < 1e-6, "{parameters:?}");
    }
}
