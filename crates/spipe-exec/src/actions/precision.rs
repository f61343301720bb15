//! Storage types and compute types of numbers, and loss scaling.
//!
//! A device with discrete memory computes in its storage type, except for denoising networks. CPU
//! cores compute in f32, also when they emulate an accelerator that stores and sends 16 bits.

use super::Interpreter;
use crate::{
    nn::{
        Tensors, float,
        layers::{Parameter, Unit},
    },
    optimizer::Extent,
    persist::checkpoint::LossScale,
    stored::{StoredTensors, all_on},
    task_error::{NotFinite, TaskError},
};
use burn::tensor::{DType, FloatDType, TensorData};
use spipe_base::{BufferId, DeviceId, LayerId, StageId};
use spipe_model::Precision;
use spipe_schedule::{Content, Lifetime};
use std::{ops::Range, sync::PoisonError};

/// Initial loss scale in f16, which keeps small gradients from vanishing; that of PyTorch's
/// `GradScaler`.
const FIRST_SCALE: f32 = 65536.0;
/// Smallest loss scale: gradients that overflow at it are not finite for another reason.
const LEAST_SCALE: f32 = 1.0;
/// Number of steps without an overflow after which the scale doubles, as in PyTorch's `GradScaler`.
const PATIENCE: u32 = 2000;

/// The loss scale of each iteration.
#[derive(Debug)]
pub(crate) struct LossScales {
    /// None if losses are not scaled.
    next: Option<f32>,
    good: u32,
    /// The scale of the last iteration of the run before this one.
    before: f32,
    used: std::collections::BTreeMap<u32, f32>,
}

impl LossScales {
    /// The scales of a run that stores `precision`, continued from `before` if a checkpoint has it.
    pub fn new(precision: Precision, before: Option<LossScale>) -> Self {
        let first = before.unwrap_or(LossScale { scale: FIRST_SCALE, good_steps: 0, last: None });
        Self {
            next: (precision == Precision::Fp16).then_some(first.scale),
            good: first.good_steps,
            before: before.map_or(1.0, |before| before.last.unwrap_or(before.scale)),
            used: std::collections::BTreeMap::new(),
        }
    }

    /// The state from which another run can continue.
    pub fn left(&self) -> Option<LossScale> {
        let last = self.used.last_key_value().map_or(self.before, |(_, scale)| *scale);
        self.next.map(|scale| LossScale { scale, good_steps: self.good, last: Some(last) })
    }

    /// The scale of an iteration. Once it has been asked for it stays the same.
    fn of(&mut self, iteration: u32) -> f32 {
        self.used.retain(|known, _| known + 3 > iteration);
        *self.used.entry(iteration).or_insert(self.next.unwrap_or(1.0))
    }

    /// Halves the scale `scaled` after an overflow, and doubles it after [`PATIENCE`] steps without
    /// one. The checking iteration keeps its scale even if its own losses come later: with delayed
    /// steps it checks gradients of the iteration before.
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
    /// The loss scale of an iteration.
    pub(super) fn scale(&self, iteration: u32) -> f32 {
        self.numerics.scales.lock().unwrap_or_else(PoisonError::into_inner).of(iteration)
    }

    /// The loss scale that the gradients of an iteration's steps carry.
    pub(super) fn scale_of(&self, iteration: u32, gradients: BufferId) -> f32 {
        let late = self.program.buffers()[gradients].lifetime == Lifetime::Arrives;
        let mut scales = self.numerics.scales.lock().unwrap_or_else(PoisonError::into_inner);
        iteration.checked_sub(u32::from(late)).map_or(scales.before, |made_in| scales.of(made_in))
    }

    /// Whether losses are scaled.
    pub(super) fn scales_losses(&self) -> bool {
        self.numerics.scales.lock().unwrap_or_else(PoisonError::into_inner).next.is_some()
    }

    /// Adapts the loss scale to the check of an iteration, whose gradients carry the scale
    /// `scaled`.
    ///
    /// # Errors
    /// Gradients that are not finite although no scale explains it.
    pub(super) fn learn_scale(&self, iteration: u32, scaled: f32, overflows: bool) -> Result<(), TaskError> {
        if overflows && !(self.scales_losses() && scaled > LEAST_SCALE) {
            return Err(NotFinite::Norm.into());
        }
        self.numerics.scales.lock().unwrap_or_else(PoisonError::into_inner).learn(iteration, scaled, overflows);
        Ok(())
    }

    /// The type of the numbers of a buffer of layers, derived from its bytes per number; adapters beside
    /// their bases are left out, and so are bases with a format of their own.
    pub(super) fn dtype_of(&self, buffer: BufferId) -> Result<DType, TaskError> {
        let held = &self.program.buffers()[buffer];
        let numbers = |of: fn(&Unit) -> Range<usize>| -> Result<usize, TaskError> {
            Ok(self.layers_of(buffer)?.iter().map(|layer| self.numbers(layer, of)).sum())
        };
        let (numbers, apart) = match held.content {
            Content::Shared(user) | Content::SharedGradients(user) => (self.owner(user)?.1.count(), 0),
            Content::Parameters(_) | Content::Updated(_) => {
                let own = numbers(|unit| unit.adapters()..usize::MAX)?;
                let (frozen, bytes) = self.frozen_in(buffer)?;
                (own.saturating_sub(frozen), 4 * numbers(|unit| 0..unit.adapters())? + bytes)
            }
            _ => (numbers(|unit| 0..unit.trained())?, 0),
        };
        let parts = held.part.map_or(1, |part| part.of as u64);
        let narrow = (held.bytes.get() * parts).saturating_sub(apart as u64) < 3 * numbers as u64;
        Ok(if narrow { self.numerics.half } else { DType::F32 })
    }

    /// Numbers of a buffer's layers that have a storage of their own, and its bytes.
    fn frozen_in(&self, buffer: BufferId) -> Result<(usize, usize), TaskError> {
        let mut sum = (0, 0);
        for layer in self.layers_of(buffer)?.iter() {
            for (index, parameter) in self.units[layer.index()].parameters().iter().enumerate() {
                if let Some(storage) = self.frozen_storage(layer, index) {
                    sum = (sum.0 + parameter.count(), sum.1 + storage.bytes(parameter.shape));
                }
            }
        }
        Ok(sum)
    }

    /// Whether an optimizer's state holds f32 parameters, of 4 bytes each, beside its own buffers.
    pub(super) fn has_master(&self, state: BufferId) -> Result<bool, TaskError> {
        let held = &self.program.buffers()[state];
        let (layers, trained) = (self.layers_of(state)?, |unit: &Unit| 0..unit.trained());
        let numbers: usize = layers.iter().map(|layer| self.numbers(layer, trained)).sum();
        let own = |parameter: Parameter| self.training.optimizer.state_bytes(&Extent::whole(parameter.shape));
        let own: u64 = layers.iter().flat_map(|layer| self.trained_parameters(layer)).map(own).sum();
        let bytes = held.bytes.get() * held.part.map_or(1, |part| u64::from(part.of));
        // Adapters are f32 everywhere; plans count a 16-bit cast of them with the state.
        Ok(numbers > 0 && !self.trains_adapters() && bytes >= own + 2 * numbers as u64)
    }

    /// Number of parameters of a layer, in those of its tensors that `of` selects.
    fn numbers(&self, layer: LayerId, of: impl Fn(&Unit) -> Range<usize>) -> usize {
        let unit = &self.units[layer.index()];
        let (Range { start, end }, parameters) = (of(unit), unit.parameters());
        parameters[start..end.min(parameters.len())].iter().map(Parameter::count).sum()
    }

    /// The storage type of a stage's device.
    pub(super) fn storage_dtype(&self, stage: StageId) -> FloatDType {
        self.storage_dtype_on(self.program.stages()[stage].device)
    }

    /// The compute type of a stage's device.
    pub(super) fn compute_dtype(&self, stage: StageId) -> FloatDType {
        let device = self.program.stages()[stage].device;
        let (context, held) = (&self.contexts[&device], self.storage_dtype_on(device));
        let narrow =
            context.discrete_memory && self.inputs.reading.supports_half() && context.device.supports_dtype(held);
        if narrow { held } else { FloatDType::F32 }
    }

    /// Parameters on the device of a stage, in the width in which it computes.
    pub(super) fn computed(&self, stage: StageId, parameters: StoredTensors) -> Result<Tensors, TaskError> {
        let device = &self.contexts[&self.program.stages()[stage].device].device;
        all_on(parameters, device, self.compute_dtype(stage))
    }

    /// The storage type of a device.
    pub(super) fn storage_dtype_on(&self, device: DeviceId) -> FloatDType {
        if self.numerics.half_devices.contains(&device) { float(self.numerics.half) } else { FloatDType::F32 }
    }
}

/// Numbers in f32, divided by the loss scale.
pub(super) fn unscaled(data: &TensorData, scale: f32) -> Vec<f32> {
    let factor = scale.recip();
    data.iter::<f32>().map(|number| number * factor).collect()
}
