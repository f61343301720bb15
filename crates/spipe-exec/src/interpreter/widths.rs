//! Numbers in the width in which they are held, and in that in which they are computed with.
//!
//! A device with a memory of its own computes in the width in which it holds numbers, but for denoising networks; CPU cores compute
//! in f32, also where they stand for an accelerator that holds and sends 16 bits.

use super::Interpreter;
use crate::checkpoint::LossScale;
use crate::layers::{Parameter, float};
use crate::passes::{Tensors, cast_all};
use burn::tensor::{DType, FloatDType, TensorData};
use spipe_base::{BufferId, DeviceId, LayerId, StageId};
use spipe_model::Precision;
use spipe_schedule::Content;
use std::sync::PoisonError;

/// What losses in f16 are multiplied with at first, so that small gradients do not vanish: PyTorch's `GradScaler` starts here too.
const FIRST_SCALE: f32 = 65536.0;
/// What they are multiplied with where nothing finds out whether all gradients are finite: far from overflow.
const FIXED_SCALE: f32 = 1024.0;
/// After so many steps without an overflow the scale is doubled, as PyTorch's `GradScaler` does.
const PATIENCE: u32 = 2000;

/// What losses are multiplied with before a backward, by iteration.
#[derive(Debug)]
pub(crate) struct Scales {
    /// None where nothing is scaled.
    next: Option<f32>,
    /// Whether overflows change it.
    adapts: bool,
    good: u32,
    used: std::collections::BTreeMap<u32, f32>,
}

impl Scales {
    /// Those of a run that stores `precision`; without a check of all gradients, the scale stays as it is.
    pub fn new(precision: Precision, checks: bool) -> Self {
        let first = if checks { FIRST_SCALE } else { FIXED_SCALE };
        let next = (precision == Precision::Fp16).then_some(first);
        Self { next, adapts: checks, good: 0, used: std::collections::BTreeMap::new() }
    }

    /// Where another run has left off, if it is known and this one can learn from it.
    pub fn resumed(self, before: Option<LossScale>) -> Self {
        match (self.next, before) {
            (Some(_), Some(LossScale { scale, good_steps })) if self.adapts => {
                Self { next: Some(scale), good: good_steps, ..self }
            }
            _ => self,
        }
    }

    /// Where another run can go on.
    pub fn left(&self) -> Option<LossScale> {
        self.next.map(|scale| LossScale { scale, good_steps: self.good })
    }

    /// That of an iteration; it stays the same once somebody has asked.
    fn of(&mut self, iteration: u32) -> f32 {
        let Some(next) = self.next else { return 1.0 };
        self.used.retain(|known, _| known + 3 > iteration);
        *self.used.entry(iteration).or_insert(next)
    }

    /// Half of it after an overflow, twice of it after a long time without one.
    fn learn(&mut self, overflowed: bool) {
        if !self.adapts {
            return;
        }
        self.good = if overflowed { 0 } else { self.good + 1 };
        let doubles = self.good == PATIENCE;
        if doubles {
            self.good = 0;
        }
        let factor = if overflowed {
            0.5
        } else if doubles {
            2.0
        } else {
            1.0
        };
        self.next = self.next.map(|scale| scale * factor);
    }
}

impl Interpreter<'_> {
    /// What the loss of an iteration is multiplied with.
    pub(super) fn scale(&self, iteration: u32) -> f32 {
        self.scales.lock().unwrap_or_else(PoisonError::into_inner).of(iteration)
    }

    /// Whether losses are multiplied with anything.
    pub(super) fn scales_losses(&self) -> bool {
        self.scales.lock().unwrap_or_else(PoisonError::into_inner).next.is_some()
    }

    /// Takes note of how a check of all gradients ended.
    pub(super) fn learn_scale(&self, overflowed: bool) {
        self.scales.lock().unwrap_or_else(PoisonError::into_inner).learn(overflowed);
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
        let narrow = self.sites[&device].apart && self.reading.may_be_narrow();
        if narrow { self.held_on(device) } else { FloatDType::F32 }
    }

    /// Parameters in the width in which a stage computes.
    pub(super) fn computed(&self, stage: StageId, parameters: Tensors) -> Tensors {
        cast_all(parameters, self.computed_by(stage))
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
