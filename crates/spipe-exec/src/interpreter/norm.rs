//! The norm of all gradients, and what follows from it: whether they are used, and how much of them.

use super::Interpreter;
use crate::{
    optimizer::{sum_of_squares, sums_of_squares},
    state::Outcome,
    store::{HostLayer, Value},
    stored::{all_own, numbers},
};
use spipe_base::{ActionId, BufferId, LayerId};
use std::sync::{Arc, PoisonError};

/// What is done with all gradients of an iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// They are multiplied with this and used.
    Use(f32),
    /// Some are not finite: nothing is stepped.
    LeaveOut,
}

impl Verdict {
    /// What they are multiplied with, if they are used.
    pub fn factor(self) -> Option<f32> {
        match self {
            Self::Use(factor) => Some(factor),
            Self::LeaveOut => None,
        }
    }

    /// Whether steps that were taken on trust stay.
    pub fn outcome(self) -> spipe_schedule::Outcome {
        match self {
            Self::Use(factor) if factor.to_bits() == 1.0f32.to_bits() => spipe_schedule::Outcome::Pass,
            _ => spipe_schedule::Outcome::Fail,
        }
    }
}

impl Interpreter<'_> {
    /// What has been decided about the gradients that an iteration steps with; none where nobody has decided, or not yet.
    pub(super) fn verdict(&self, iteration: u32) -> Option<Verdict> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner).get(&iteration).copied()
    }

    /// The sum of the squares of some gradients.
    pub(super) fn sum_squares(
        &self,
        iteration: u32,
        (action, gradients): (ActionId, BufferId),
        to: BufferId,
    ) -> Result<Outcome, String> {
        let device = self.program.lanes()[self.program.actions()[action].lane].device;
        let site = &self.sites[&device];
        let at = self.at(gradients, iteration);
        let on_device = self.store.look(at, |value| match value {
            Value::Tensors(tensors) if site.apart => Some(tensors.clone()),
            _ => None,
        });
        let squares = match on_device {
            Ok(tensors) => {
                let tensors = all_own(tensors, &site.device)?;
                let tensors = self.spoilt(iteration, self.layers_of(gradients)?, tensors);
                site.compute(|| sums_of_squares(tensors.iter().flatten()))??
            }
            Err(_) => match self.gradients_of(iteration, gradients)? {
                Some(layers) => site.compute(|| squares(&layers))??,
                None => 0.0,
            },
        };
        let mut outcome = Outcome::default();
        self.put(&mut outcome, self.at(to, iteration), Value::Norm(squares, self.scale_of(iteration, gradients)));
        Ok(outcome)
    }

    /// Decides about all gradients: those that steps wait for, or those of steps that were taken on trust.
    pub(super) fn check(&self, iteration: u32, (norms, states): (&[BufferId], &[BufferId])) -> Result<Outcome, String> {
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
            squares += self.store.look(self.at(*state, iteration), |value| value.kept().map(|kept| kept.squares()))?;
        }
        let norm = squares.sqrt() / f64::from(scaled);
        let verdict = match self.clip_norm {
            _ if !norm.is_finite() => Verdict::LeaveOut,
            Some(clip) => Verdict::Use(clip.factor(norm)),
            None => Verdict::Use(1.0),
        };
        let left_out = verdict == Verdict::LeaveOut;
        self.learn_scale(iteration, scaled, left_out)?;
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.retain(|known, _| known + 3 > iteration);
        verdicts.insert(iteration, verdict);
        drop(verdicts);
        // Where steps are late, the first ones have no gradients.
        let known = norm.is_finite() && norm > 0.0;
        Ok(Outcome { norm: known.then_some(norm), left_out, ..Outcome::default() })
    }
}

/// The sum of the squares of all numbers of layers in host memory.
pub(super) fn squares(layers: &[(LayerId, Arc<HostLayer>)]) -> Result<f64, String> {
    let tensors = layers.iter().flat_map(|(_, layer)| layer.iter()).map(numbers);
    Ok(sum_of_squares(tensors.collect::<Result<Vec<_>, String>>()?))
}
