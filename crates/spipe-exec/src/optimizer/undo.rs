//! Rollback of optimizer steps.
//!
//! | | memory | restored |
//! |---|---|---|
//! | [`UndoLog`] | 12 bytes per parameter | every bit |
//! | [`AdamW::undo`](super::AdamW::undo) | none, if the gradients still exist | all but rounding errors |

use super::{TensorState, pieces};
use rayon::prelude::*;

/// Parameters and moments before a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UndoLog {
    parameters: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    steps: u32,
}

impl UndoLog {
    /// A log for steps of `count` parameters, which can be used again.
    pub fn new(count: usize) -> Self {
        Self { parameters: vec![0.0; count], first: vec![0.0; count], second: vec![0.0; count], steps: 0 }
    }

    /// Its size in bytes.
    pub const fn bytes(&self) -> u64 {
        12 * self.parameters.len() as u64
    }

    /// Records the number of steps before, and returns the buffers to fill.
    pub(super) fn fill(&mut self, steps: u32) -> [&mut [f32]; 3] {
        self.steps = steps;
        [&mut self.parameters, &mut self.first, &mut self.second]
    }

    /// Restores every bit from before the last logged step.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn roll_back(&self, parameters: &mut [f32], state: &mut TensorState) {
        state.steps = self.steps;
        let saved = [&self.parameters, &self.first, &self.second];
        let [first, second] = state.numbers_mut();
        for (to, from) in [parameters, first, second].into_iter().zip(saved) {
            assert_eq!(to.len(), from.len(), "the log is of other parameters");
            let chunks = to.par_chunks_mut(pieces::CHUNK).zip(from.par_chunks(pieces::CHUNK));
            chunks.for_each(|(to, from)| to.copy_from_slice(from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::{AdamW, Exchange, Extent, Numbers};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_log_gives_back_every_bit(
            start in prop::collection::vec((-2.0f32..2.0, -1.0f32..1.0), 1..300),
            with_injected_nan in prop::sample::select(vec![1.0f32, f32::NAN, f32::INFINITY]),
        ) {
            let (mut parameters, gradients): (Vec<f32>, Vec<f32>) = start.into_iter().unzip();
            let mut moments = AdamW::default().state(&Extent::vector(parameters.len()));
            AdamW::default().step(&mut parameters, &gradients, &mut moments);
            let before = (parameters.clone(), moments.clone());
            let mut log = UndoLog::new(parameters.len());
            let bad: Vec<f32> = gradients.iter().map(|gradient| gradient * with_injected_nan).collect();
            let exchange = Exchange { log: Some(&mut log), ..Exchange::of(Numbers::F32(&bad)) };
            AdamW::default().step_with(&mut parameters, exchange, &mut moments);
            prop_assert!(parameters != before.0);
            log.roll_back(&mut parameters, &mut moments);
            prop_assert_eq!((parameters, moments), before);
        }

        #[test]
        fn the_inverse_gives_back_all_but_rounding(
            start in prop::collection::vec((-2.0f32..2.0, -1.0f32..1.0), 1..300),
            lr in 1e-5f64..1e-2,
            steps in 1usize..6,
        ) {
            let adam = AdamW { lr, ..AdamW::default() };
            let (mut parameters, gradients): (Vec<f32>, Vec<f32>) = start.into_iter().unzip();
            let mut moments = AdamW::default().state(&Extent::vector(parameters.len()));
            for _ in 1..steps {
                adam.step(&mut parameters, &gradients, &mut moments);
            }
            let before = (parameters.clone(), moments.clone());
            adam.step(&mut parameters, &gradients, &mut moments);
            adam.undo(&mut parameters, (Numbers::F32(&gradients), 1.0), &mut moments);
            prop_assert_eq!(moments.steps, before.1.steps);
            let near = |now: &[f32], before: &[f32], scale: f32| {
                now.iter().zip(before).all(|(now, before)| (now - before).abs() <= 4.0 * f32::EPSILON * before.abs().max(scale))
            };
            prop_assert!(near(&parameters, &before.0, 2.0));
            prop_assert!(near(&moments.numbers()[0], &before.1.numbers()[0], 1.0));
            prop_assert!(near(&moments.numbers()[1], &before.1.numbers()[1], 1.0));
        }
    }
}
