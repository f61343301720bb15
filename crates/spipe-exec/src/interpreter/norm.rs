//! The norm of all gradients, and what follows from it: whether they are used, and how much of them.

use super::{Interpreter, moves::numbers};
use crate::{
    optimizer::{sum_of_squares, sums_of_squares},
    state::Outcome,
    store::{HostLayer, Value},
};
use spipe_base::{ActionId, BufferId, LayerId};
use spipe_schedule::Lifetime;
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
                let tensors = self.spoilt(iteration, self.layers_of(gradients)?, tensors);
                site.compute(|| sums_of_squares(tensors.iter().flatten()))??
            }
            Err(_) => match self.gradients_of(iteration, gradients)? {
                Some(layers) => site.compute(|| squares(&layers))??,
                None => 0.0,
            },
        };
        let scale = f64::from(self.scale(self.made_in(iteration, gradients)));
        let mut outcome = Outcome::default();
        self.put(&mut outcome, self.at(to, iteration), Value::Norm(squares / (scale * scale)));
        Ok(outcome)
    }

    /// The iteration that has made the gradients that another one steps with.
    pub(super) fn made_in(&self, iteration: u32, gradients: BufferId) -> u32 {
        let arrives = self.program.buffers()[gradients].lifetime == Lifetime::Arrives;
        iteration.saturating_sub(u32::from(arrives))
    }

    /// Decides about all gradients: those that steps wait for, or those of steps that were taken on trust.
    pub(super) fn check(&self, iteration: u32, (norms, states): (&[BufferId], &[BufferId])) -> Result<Outcome, String> {
        let (mut squares, mut sound) = (0.0, true);
        for norm in norms {
            squares += self.store.look(self.at(*norm, iteration), |value| match value {
                Value::Norm(squares) => Some(*squares),
                _ => None,
            })?;
        }
        let scale = f64::from(self.scale(iteration));
        for state in states {
            let at = self.at(*state, iteration);
            let (is_sound, of_state) =
                self.store.look(at, |value| value.kept().map(|kept| (kept.is_sound(), kept.squares())))?;
            sound &= is_sound;
            squares += of_state / (scale * scale);
        }
        let norm = squares.sqrt();
        let verdict = match self.clip_norm {
            _ if !sound || !norm.is_finite() => Verdict::LeaveOut,
            Some(clip) => Verdict::Use(clip.factor(norm)),
            None => Verdict::Use(1.0),
        };
        let overflows = verdict == Verdict::LeaveOut;
        if overflows && !self.scales_losses() {
            return Err("the norm of all gradients is not finite".into());
        }
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.retain(|known, _| known + 3 > iteration);
        verdicts.insert(iteration, verdict);
        drop(verdicts);
        self.learn_scale(overflows);
        // Where steps are late, the first ones have no gradients.
        let known = self.clip_norm.is_some() && norm.is_finite() && norm > 0.0;
        Ok(Outcome { norm: known.then_some(norm), ..Outcome::default() })
    }
}

/// The sum of the squares of all numbers of layers in host memory.
pub(super) fn squares(layers: &[(LayerId, Arc<HostLayer>)]) -> Result<f64, String> {
    let tensors = layers.iter().flat_map(|(_, layer)| layer.iter()).map(numbers);
    Ok(sum_of_squares(tensors.collect::<Result<Vec<_>, String>>()?))
}
