//! AdamW in one pass over memory.

use rayon::prelude::*;

/// AdamW with decoupled weight decay (Loshchilov, Hutter 2019); the defaults are those of `torch.optim.AdamW`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first and of the second moment.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Share of a parameter, times the learning rate, that it loses in each step.
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
    /// Those of `count` parameters before their first step.
    pub fn new(count: usize) -> Self {
        Self { first: vec![0.0; count], second: vec![0.0; count], steps: 0 }
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        4 * (self.first.len() + self.second.len()) as u64
    }
}

/// Elements that one task updates: four arrays of this fit the second-level cache of a core.
const CHUNK: usize = 1 << 16;

/// The numbers of one step, as f32 like the tensors they multiply.
#[derive(Clone, Copy)]
struct Scalars {
    keep: f32,
    first_weight: f32,
    second_decay: f32,
    second_weight: f32,
    second_root: f32,
    eps: f32,
    step: f32,
}

impl AdamW {
    /// Updates `parameters` in place from `gradients`, on the threads of the current pool.
    ///
    /// Formula and order of operations are those of PyTorch's single-tensor form (`torch/optim/adamw.py`): decay,
    /// m ← m + (g − m)(1 − β₁), v ← v β₂ + (1 − β₂) g g, p ← p − (lr ÷ (1 − β₁ᵗ)) m ÷ (√v ÷ √(1 − β₂ᵗ) + ε). The
    /// coefficients are computed in f64 and rounded once.
    ///
    /// # Panics
    /// If the three do not have the same length.
    pub fn step(&self, parameters: &mut [f32], gradients: &[f32], moments: &mut Moments) {
        assert!(
            parameters.len() == gradients.len() && parameters.len() == moments.first.len(),
            "parameters, gradients and moments differ in length"
        );
        moments.steps += 1;
        let scalars = self.scalars(moments.steps);
        let chunks = parameters.par_chunks_mut(CHUNK).zip(gradients.par_chunks(CHUNK));
        let moments = moments.first.par_chunks_mut(CHUNK).zip(moments.second.par_chunks_mut(CHUNK));
        chunks.zip(moments).for_each(|((parameters, gradients), (first, second))| {
            update(scalars, (parameters, gradients), (first, second));
        });
    }

    fn scalars(&self, steps: u32) -> Scalars {
        let (first, second) = self.betas;
        let correction = |beta: f64| 1.0 - beta.powi(steps.cast_signed());
        Scalars {
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

fn update(scalars: Scalars, (parameters, gradients): (&mut [f32], &[f32]), (first, second): (&mut [f32], &mut [f32])) {
    let Scalars { keep, first_weight, second_decay, second_weight, second_root, eps, step } = scalars;
    let moments = first.iter_mut().zip(second);
    for ((parameter, gradient), (first, second)) in parameters.iter_mut().zip(gradients).zip(moments) {
        *first += first_weight * (*gradient - *first);
        *second = *second * second_decay + second_weight * *gradient * *gradient;
        let denominator = second.sqrt() / second_root + eps;
        *parameter = *parameter * keep + step * *first / denominator;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Algorithm 2 of the paper as it stands there, in f64.
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
    fn chunks_and_threads_change_nothing() {
        let count = 3 * CHUNK + 17;
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
