//! Numbers in the width in which they are held, and in that in which they are computed with.
//!
//! A device with a memory of its own computes in the width in which it holds numbers, but for denoising networks; CPU cores compute
//! in f32, also where they stand for an accelerator that holds and sends 16 bits.

use super::Interpreter;
use crate::checkpoint::LossScale;
use crate::layers::{Parameter, float};
use crate::passes::Tensors;
use crate::stored::{StoredTensors, all_on};
use burn::tensor::{DType, FloatDType, TensorData};
use spipe_base::{BufferId, DeviceId, LayerId, StageId};
use spipe_model::Precision;
use spipe_schedule::{Content, Lifetime};
use std::sync::PoisonError;

/// What losses in f16 are multiplied with at first, so that small gradients do not vanish: PyTorch's `GradScaler` starts here too.
const FIRST_SCALE: f32 = 65536.0;
/// Gradients that overflow at this scale are not finite for another reason.
const LEAST_SCALE: f32 = 1.0;
/// After so many steps without an overflow the scale is doubled, as PyTorch's `GradScaler` does.
const PATIENCE: u32 = 2000;

/// What losses are multiplied with before a backward, by iteration.
#[derive(Debug)]
pub(crate) struct Scales {
    /// None where nothing is scaled.
    next: Option<f32>,
    good: u32,
    /// That of the last iteration of the run before this one.
    before: f32,
    used: std::collections::BTreeMap<u32, f32>,
}

impl Scales {
    /// Those of a run that stores `precision`, from where another one has left off, if it is known.
    pub fn new(precision: Precision, before: Option<LossScale>) -> Self {
        let first = before.unwrap_or(LossScale { scale: FIRST_SCALE, good_steps: 0, last: None });
        Self {
            next: (precision == Precision::Fp16).then_some(first.scale),
            good: first.good_steps,
            before: before.map_or(1.0, |before| before.last.unwrap_or(before.scale)),
            used: std::collections::BTreeMap::new(),
        }
    }

    /// Where another run can go on.
    pub fn left(&self) -> Option<LossScale> {
        let last = self.used.last_key_value().map_or(self.before, |(_, scale)| *scale);
        self.next.map(|scale| LossScale { scale, good_steps: self.good, last: Some(last) })
    }

    /// That of an iteration; it stays the same once somebody has asked.
    fn of(&mut self, iteration: u32) -> f32 {
        self.used.retain(|known, _| known + 3 > iteration);
        *self.used.entry(iteration).or_insert(self.next.unwrap_or(1.0))
    }

    /// Half of what losses were `scaled` with after an overflow, twice of it after a long time without one; the iteration that checks keeps
    /// the one it has, also where its own losses come later, since it steps with gradients of the iteration before.
    fn learn(&mut self, iteration: u32, scaled: f32, overflows: bool) {
        self.of(iteration);
        self.good = if overflows { 0 } else { self.good + 1 };
        if overflows {
            self.next = self.next.map(|next| next.min(scaled / 2.0));
        } else if self.good == PATIENCE {
            self.good = 0;
            self.next = self.next.map(|next| next * 2.0);
        }
    }
}

impl Interpreter<'_> {
    /// What the loss of an iteration is multiplied with.
    pub(super) fn scale(&self, iteration: u32) -> f32 {
        self.scales.lock().unwrap_or_else(PoisonError::into_inner).of(iteration)
    }

    /// What the losses were multiplied with that the gradients come from which an iteration steps with.
    pub(super) fn scale_of(&self, iteration: u32, gradients: BufferId) -> f32 {
        let late = self.program.buffers()[gradients].lifetime == Lifetime::Arrives;
        let mut scales = self.scales.lock().unwrap_or_else(PoisonError::into_inner);
        iteration.checked_sub(u32::from(late)).map_or(scales.before, |made_in| scales.of(made_in))
    }

    /// Whether losses are multiplied with anything.
    pub(super) fn scales_losses(&self) -> bool {
        self.scales.lock().unwrap_or_else(PoisonError::into_inner).next.is_some()
    }

    /// Takes note of how an iteration's check of gradients ended whose losses were `scaled` so much.
    ///
    /// # Errors
    /// No scale explains why they are not finite.
    pub(super) fn learn_scale(&self, iteration: u32, scaled: f32, overflows: bool) -> Result<(), String> {
        if overflows && !(self.scales_losses() && scaled > LEAST_SCALE) {
            return Err("the norm of all gradients is not finite".into());
        }
        self.scales.lock().unwrap_or_else(PoisonError::into_inner).learn(iteration, scaled, overflows);
        Ok(())
    }

    /// How wide the numbers of a buffer of layers are: what its bytes leave to each.
    pub(super) fn width_of(&self, buffer: BufferId) -> Result<DType, String> {
        let held = &self.program.buffers()[buffer];
        let frozen_too = matches!(held.content, Content::Parameters(_));
        let numbers: usize = match held.content {
            Content::Shared(user) | Content::SharedGradients(user) => self.owner(user)?.1.count(),
            _ => self.layers_of(buffer)?.iter().map(|layer| self.numbers(layer, frozen_too)).sum(),
        };
        let parts = held.part.map_or(1, |part| part.of as u64);
        let narrow = held.bytes.get() * parts < 3 * numbers as u64;
        Ok(if narrow { self.narrow } else { DType::F32 })
    }

    /// Whether an optimizer's state holds parameters in f32 beside the moments, which take 8 bytes for each.
    pub(super) fn has_master(&self, state: BufferId) -> Result<bool, String> {
        let held = &self.program.buffers()[state];
        let numbers: usize = self.layers_of(state)?.iter().map(|layer| self.numbers(layer, false)).sum();
        Ok(numbers > 0 && held.bytes.get() * held.part.map_or(1, |part| u64::from(part.of)) >= 10 * numbers as u64)
    }

    /// How many numbers a layer has that are stepped, or that are there at all.
    fn numbers(&self, layer: LayerId, frozen_too: bool) -> usize {
        let unit = &self.units[layer.index()];
        let parameters = if frozen_too || unit.trains() { unit.parameters() } else { Vec::new() };
        parameters.iter().map(Parameter::count).sum()
    }

    /// How the device of a stage holds its numbers.
    pub(super) fn held_by(&self, stage: StageId) -> FloatDType {
        self.held_on(self.program.stages()[stage].device)
    }

    /// What the device of a stage computes in.
    pub(super) fn computed_by(&self, stage: StageId) -> FloatDType {
        let device = self.program.stages()[stage].device;
        let (site, held) = (&self.sites[&device], self.held_on(device));
        let narrow = site.apart && self.reading.may_be_narrow() && site.device.supports_dtype(held);
        if narrow { held } else { FloatDType::F32 }
    }

    /// Parameters on the device of a stage, in the width in which it computes.
    pub(super) fn computed(&self, stage: StageId, parameters: StoredTensors) -> Result<Tensors, String> {
        let device = &self.sites[&self.program.stages()[stage].device].device;
        all_on(parameters, device, self.computed_by(stage))
    }

    /// How a device holds its numbers.
    pub(super) fn held_on(&self, device: DeviceId) -> FloatDType {
        if self.narrow_devices.contains(&device) { float(self.narrow) } else { FloatDType::F32 }
    }
}

/// Numbers in f32, divided by what their loss was multiplied with.
pub(super) fn unscaled(data: &TensorData, scale: f32) -> Vec<f32> {
    let factor = scale.recip();
    data.iter::<f32>().map(|number| number * factor).collect()
}
