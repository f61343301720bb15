//! The norm of all gradients, and its consequences: whether the gradients are used, and by how much
//! they are clipped.

use super::Interpreter;
use crate::{
    actions::{
        Outcome,
        store::{HostLayer, Value},
    },
    optimizer::{sum_of_squares, sums_of_squares},
    stored::{all_own, numbers},
    task_error::TaskError,
};
use spipe_base::{ActionId, BufferId, LayerId};
use std::sync::{Arc, PoisonError};

/// The decision about all gradients of an iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// They are used, times this factor.
    Use(f32),
    /// Some are not finite: all steps are skipped.
    LeaveOut,
}

impl Verdict {
    /// The factor of the gradients, if they are used.
    pub fn factor(self) -> Option<f32> {
        match self {
            Self::Use(factor) => Some(factor),
            Self::LeaveOut => None,
        }
    }

    /// Whether speculative steps stand.
    pub fn outcome(self) -> spipe_schedule::Outcome {
        match self {
            Self::Use(factor) if factor.to_bits() == 1.0f32.to_bits() => spipe_schedule::Outcome::Pass,
            _ => spipe_schedule::Outcome::Fail,
        }
    }
}

impl Interpreter<'_> {
    /// The verdict on the gradients of an iteration's steps; none if nobody checks them, or not
    /// yet.
    pub(super) fn verdict(&self, iteration: u32) -> Option<Verdict> {
        self.numerics.verdicts.lock().unwrap_or_else(PoisonError::into_inner).get(&iteration).copied()
    }

    /// Stores the sum of the squares of some gradients.
    pub(super) fn sum_squares(
        &self,
        iteration: u32,
        (action, gradients): (ActionId, BufferId),
        to: BufferId,
    ) -> Result<Outcome, TaskError> {
        let device = self.program.lanes()[self.program.actions()[action].lane].device;
        let context = &self.contexts[&device];
        let at = self.at(gradients, iteration);
        let on_device = self.store.look(at, |value| match value {
            Value::Tensors(tensors) if context.discrete_memory => Some(tensors.clone()),
            _ => None,
        });
        let squares = match on_device {
            Ok(tensors) => {
                let tensors = all_own(tensors, &context.device)?;
                let tensors = self.with_injected_nan(iteration, self.layers_of(gradients)?, tensors);
                context.compute(|| sums_of_squares(tensors.iter().flatten()))??
            }
            Err(_) => match self.gradients_of(iteration, gradients)? {
                Some(layers) => context.compute(|| squares(&layers))??,
                None => 0.0,
            },
        };
        let mut outcome = Outcome::default();
        self.put(&mut outcome, self.at(to, iteration), Value::Norm(squares, self.scale_of(iteration, gradients)));
        Ok(outcome)
    }

    /// Decides about all gradients, before the steps that wait for it or after speculative steps.
    pub(super) fn check(
        &self,
        iteration: u32,
        (norms, states): (&[BufferId], &[BufferId]),
    ) -> Result<Outcome, TaskError> {
        let (mut squares, mut scaled) = (0.0, self.scale(iteration));
        for norm in norms {
            let (of_part, scale) = self.store.look(self.at(*norm, iteration), |value| match value {
                Value::Norm(squares, scale) => Some((*squares, *scale)),
                _ => None,
            })?;
            squares += of_part;
            scaled = scale;
        }
        for state in states {
            squares += self.store.look(self.at(*state, iteration), |value| value.state().map(|kept| kept.squares()))?;
        }
        let norm = squares.sqrt() / f64::from(scaled);
        let verdict = match self.training.clip_norm {
            _ if !norm.is_finite() => Verdict::LeaveOut,
            Some(clip) => Verdict::Use(clip.factor(norm)),
            None => Verdict::Use(1.0),
        };
        let left_out = verdict == Verdict::LeaveOut;
        self.learn_scale(iteration, scaled, left_out)?;
        let mut verdicts = self.numerics.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.retain(|known, _| known + 3 > iteration);
        verdicts.insert(iteration, verdict);
        drop(verdicts);
        // With delayed steps the first iteration has no gradients.
        let known = norm.is_finite() && norm > 0.0;
        Ok(Outcome { norm: known.then_some(norm), left_out, ..Outcome::default() })
    }
}

/// The sum of the squares of all numbers of layers in host memory.
pub(super) fn squares(layers: &[(LayerId, Arc<HostLayer>)]) -> Result<f64, TaskError> {
    let tensors = layers.iter().flat_map(|(_, layer)| layer.iter()).map(numbers);
    Ok(sum_of_squares(tensors.collect::<Result<Vec<_>, TaskError>>()?))
}
