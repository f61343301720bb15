//! The trained parameters of buffers: all of a layer that is trained, the adapters of an adapted one,
//! none of a frozen one.
//!
//! Trained parameters are the first of their layer. Gradients and moments exist for them alone. On the
//! host, a buffer of parameters beside a step may hold only them: the base does not come there.

use super::{
    Interpreter,
    store::{HostLayer, Instance, Value},
};
use crate::{
    nn::layers::{Unit, split_trained},
    task_error::TaskError,
};
use burn::tensor::{DType, FloatDType};
use spipe_base::{BufferId, LayerId, StageId};
use spipe_schedule::Content;
use std::sync::Arc;

/// The tensors of layers, those that are trained and the others.
type Split<T> = (Vec<Vec<T>>, Vec<Vec<T>>);

impl Interpreter<'_> {
    fn units_of(&self, buffer: BufferId) -> Result<&[Unit], TaskError> {
        let layers = self.layers_of(buffer)?;
        Ok(&self.units[layers.first().index()..=layers.last().index()])
    }

    /// The tensors of a buffer's layers, those that are trained and the others.
    pub(super) fn split_trained<T>(&self, buffer: BufferId, tensors: Vec<Vec<T>>) -> Result<Split<T>, TaskError> {
        Ok(split_trained(self.units_of(buffer)?, tensors))
    }

    /// Whether adapters are trained, in f32, and nothing else.
    pub(super) fn trains_adapters(&self) -> bool {
        self.units.iter().any(|unit| unit.adapters() > 0)
    }

    /// Whether a buffer of parameters holds adapters without their bases.
    pub(super) fn holds_adapters_alone(&self, buffer: BufferId) -> bool {
        matches!(self.program.buffers()[buffer].content, Content::Updated(_)) && self.trains_adapters()
    }

    /// The types of a layer's tensors in a buffer, by index: adapters have f32, and what is quantised has bytes.
    pub(super) fn dtypes_of(&self, buffer: BufferId) -> Result<impl Fn(LayerId, usize) -> DType + use<'_>, TaskError> {
        let own = self.dtype_of(buffer)?;
        Ok(move |layer: LayerId, index| match self.frozen_storage(layer, index) {
            _ if index < self.units[layer.index()].adapters() => DType::F32,
            Some(storage) => storage.dtype(),
            None => own,
        })
    }

    /// The type in which a stage's device holds gradients of parameters.
    pub(super) fn gradient_dtype(&self, stage: StageId) -> FloatDType {
        let is_wide = self.numerics.wide_gradients || self.trains_adapters();
        if is_wide { FloatDType::F32 } else { self.storage_dtype(stage) }
    }

    /// `value` of parameters, whose missing frozen tensors are filled in from the value already there:
    /// an optimizer has no copy of them.
    pub(super) fn with_frozen(&self, instance: Instance, value: Value) -> Result<Value, TaskError> {
        let content = &self.program.buffers()[instance.0].content;
        let is_whole = !matches!(content, Content::Parameters(_) | Content::Updated(_))
            || self.units_of(instance.0)?.iter().all(|unit| unit.adapters() == 0 && unit.trains());
        if is_whole || self.holds_adapters_alone(instance.0) {
            return Ok(value);
        }
        Ok(match value {
            Value::Tensors(mut layers) => {
                let there = |value: &Value| if let Value::Tensors(there) = value { Some(there.clone()) } else { None };
                let there = self.store.look(instance, there).unwrap_or_default();
                for (layer, there) in layers.iter_mut().zip(there) {
                    layer.extend(there.into_iter().skip(layer.len()));
                }
                Value::Tensors(layers)
            }
            Value::Host(mut layers) => {
                let there = |value: &Value| if let Value::Host(there) = value { Some(there.clone()) } else { None };
                let there = self.store.look(instance, there).unwrap_or_default();
                for (layer, there) in layers.iter_mut().zip(there) {
                    fill(layer, there);
                }
                Value::Host(layers)
            }
            value => value,
        })
    }
}

/// Appends the tensors of `there` that `layer` lacks.
fn fill(layer: &mut Arc<HostLayer>, there: Arc<HostLayer>) {
    if layer.is_empty() {
        *layer = there;
    } else if layer.len() < there.len() {
        let missing = there[layer.len()..].iter().cloned();
        Arc::make_mut(layer).extend(missing);
    }
}
