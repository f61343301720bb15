//! Optimizers. Each is one file: the buffers of its state, its step, and the inverse of its step if it has
//! one.
//!
//! ```text
//! spipe_cost::Optimizer ─► Optimizer ─► Rule: AdamW, AdamW8bit, Adafactor, Lion, Sgd
//!                              │          ├─ slots: the buffers of a tensor's state ─► TensorState
//!                          learning rate  ├─ step: parameters, gradients, state
//!                                         └─ inverse: the same, backwards
//! ```

mod adafactor;
mod adamw;
mod adamw_8bit;
mod convert;
mod device;
mod device_state;
mod dynamic_map;
mod floats;
#[cfg(feature = "cube")]
mod fused;
mod half;
mod host;
mod kernel;
mod lion;
mod norm;
mod pieces;
mod schedule;
mod sgd;
mod state;
mod undo;

pub use adamw::{AdamW, Exchange};
pub(crate) use convert::{NumbersMut, add, convert};
pub(crate) use device::sums_of_squares;
pub(crate) use device_state::{DeviceMoments, DeviceParameter};
pub(crate) use dynamic_map::{Coded, Map};
pub(crate) use half::narrowed;
pub use half::{HalfMut, Numbers};
pub(crate) use host::step;
pub(crate) use norm::sum_of_squares;
pub use schedule::{Decay, Schedule};
pub(crate) use state::{Array, Slot};
pub use state::{Extent, TensorState};
pub use undo::UndoLog;

use adafactor::Adafactor;
use adamw_8bit::AdamW8bit;
use lion::Lion;
use sgd::Sgd;
use spipe_cost::Optimizer as Kind;
use std::{fmt::Debug, sync::Arc};

/// The inverse of a step: learning rate, parameters, gradients and their factor, state.
type Inverse<'r> = Box<dyn Fn(f64, &mut [f32], (Numbers<'_>, f32), &mut TensorState) + 'r>;

/// The state that a step updates, and the destination of the new parameters in 16 bits.
type To<'a> = (&'a mut TensorState, Option<HalfMut<'a>>);

/// The arithmetic of an optimizer.
trait Rule: Debug + Send + Sync {
    /// The buffers of the state of a tensor.
    fn slots(&self, tensor: &Extent) -> Vec<Slot>;

    /// Updates `parameters` and their state in place from gradients times a factor, and writes the new
    /// parameters in 16 bits if they are asked for, on the threads of the current pool. Their number changes no
    /// bit. Weight decay is decoupled from the gradients.
    fn step(&self, lr: f64, parameters: &mut [f32], gradients: (Numbers<'_>, f32), to: To<'_>);

    /// The inverse of the last step, up to rounding; none if a step cannot be inverted.
    fn inverse(&self) -> Option<Inverse<'_>> {
        None
    }

    /// Whether a step needs all numbers of a tensor in one place.
    fn needs_whole_tensors(&self) -> bool {
        false
    }

    /// The same optimizer on state in a device's own memory; none if it runs on cores only.
    fn on_devices(&self, _lr: f64) -> Option<AdamW> {
        None
    }
}

/// The settings that all optimizers have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSettings {
    /// Learning rate.
    pub lr: f64,
    /// Decay of a parameter per step, as a multiple of the learning rate.
    pub weight_decay: f64,
}

impl Default for StepSettings {
    /// The defaults of `torch.optim.AdamW`.
    fn default() -> Self {
        let AdamW { lr, weight_decay, .. } = AdamW::default();
        Self { lr, weight_decay }
    }
}

/// An optimizer that can be executed.
#[derive(Clone, Debug)]
pub struct Optimizer {
    kind: Kind,
    rule: Arc<dyn Rule>,
    settings: StepSettings,
}

impl Optimizer {
    /// The kinds that can be executed.
    pub const EXECUTED: [Kind; 5] = [Kind::Adamw, Kind::Adamw8bit, Kind::Adafactor, Kind::Lion, Kind::Sgd];

    /// The optimizer `kind`; none if it is planned and simulated only.
    pub fn new(kind: Kind, settings: StepSettings) -> Option<Self> {
        let StepSettings { weight_decay, .. } = settings;
        let rule: Arc<dyn Rule> = match kind {
            Kind::Adamw => return Some(Self::adamw(settings)),
            Kind::Adamw8bit => Arc::new(AdamW8bit(AdamW { weight_decay, ..AdamW::default() })),
            Kind::Adafactor => Arc::new(Adafactor { weight_decay }),
            Kind::Lion => Arc::new(Lion { weight_decay }),
            Kind::Sgd => Arc::new(Sgd { weight_decay }),
            Kind::PagedAdamw | Kind::PagedAdamw8bit | Kind::Muon => return None,
        };
        Some(Self { kind, rule, settings })
    }

    /// AdamW.
    pub(crate) fn adamw(settings: StepSettings) -> Self {
        let StepSettings { lr, weight_decay } = settings;
        Self { kind: Kind::Adamw, rule: Arc::new(AdamW { lr, weight_decay, ..AdamW::default() }), settings }
    }

    /// Its kind.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The optimizer of step `step`, from 0, of a run of `steps`.
    pub(crate) fn in_step(&self, schedule: Schedule, (step, steps): (u32, u32)) -> Self {
        let lr = self.settings.lr * schedule.factor(step, steps);
        Self { settings: StepSettings { lr, ..self.settings }, ..self.clone() }
    }

    /// The buffers of the state of a tensor.
    pub(crate) fn slots(&self, tensor: &Extent) -> Vec<Slot> {
        self.rule.slots(tensor)
    }

    /// The state of a tensor before its first step.
    pub fn state(&self, tensor: &Extent) -> TensorState {
        TensorState::new(&self.rule.slots(tensor))
    }

    /// Bytes of the state of a tensor.
    pub(crate) fn state_bytes(&self, tensor: &Extent) -> u64 {
        self.rule.slots(tensor).iter().map(Slot::bytes).sum()
    }

    /// Updates `parameters` and their `state` in place from gradients times a factor, on the threads
    /// of the current pool.
    ///
    /// # Panics
    /// If the lengths differ, or the state is another optimizer's.
    pub fn step(&self, parameters: &mut [f32], gradients: (Numbers<'_>, f32), state: &mut TensorState) {
        self.step_to(parameters, gradients, (state, None));
    }

    /// The same in a single pass that also writes the new parameters in 16 bits, if they are asked for.
    pub(crate) fn step_to(&self, parameters: &mut [f32], gradients: (Numbers<'_>, f32), to: To<'_>) {
        self.rule.step(self.settings.lr, parameters, gradients, to);
    }

    /// Whether its steps can be inverted.
    pub(crate) fn has_inverse(&self) -> bool {
        self.rule.inverse().is_some()
    }

    /// Inverts the last step, which was made with the same gradients; false if it has no inverse.
    pub(crate) fn undo(&self, parameters: &mut [f32], gradients: (Numbers<'_>, f32), state: &mut TensorState) -> bool {
        self.rule.inverse().map(|inverse| inverse(self.settings.lr, parameters, gradients, state)).is_some()
    }

    /// Whether a step needs all numbers of a tensor in one place.
    pub(crate) fn needs_whole_tensors(&self) -> bool {
        self.rule.needs_whole_tensors()
    }

    /// The same optimizer on state in a device's own memory; none if it runs on cores only.
    pub(crate) fn on_devices(&self) -> Option<AdamW> {
        self.rule.on_devices(self.settings.lr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::bf16;

    /// They are the rounded parameters after the step, and change nothing else.
    #[test]
    fn every_optimizer_writes_halves_in_its_step() {
        // Enough numbers for states in 8 bits, and for several pieces.
        let extent = Extent::whole([192, 512]);
        let numbers = |factor: f32| (0..extent.part.len()).map(|index| (index as f32 * factor).sin()).collect();
        let (start, gradients): (Vec<f32>, Vec<f32>) = (numbers(0.7), numbers(1.3));
        for kind in Optimizer::EXECUTED {
            let optimizer = Optimizer::new(kind, StepSettings::default()).unwrap();
            let gradients = (Numbers::F32(&gradients), 0.5);
            let (mut plain, mut state) = (start.clone(), optimizer.state(&extent));
            optimizer.step(&mut plain, gradients, &mut state);
            let (mut wide, mut same) = (start.clone(), optimizer.state(&extent));
            let mut halves = vec![bf16::ZERO; start.len()];
            optimizer.step_to(&mut wide, gradients, (&mut same, Some(HalfMut::Bf16(&mut halves))));
            assert!(wide == plain && same == state, "{kind}");
            assert!(halves.iter().zip(&wide).all(|(half, wide)| *half == bf16::from_f32(*wide)), "{kind}");
        }
    }
}
