//! Parameters and optimizer state between two steps, layer by layer, wherever they are: the content
//! of checkpoints.

use super::Interpreter;
use crate::{
    actions::store::{Instance, Value},
    optimizer::TensorState,
    persist::checkpoint::{LossScale, TrainingState},
    task_error::TaskError,
};
use spipe_base::{LayerId, LayerRange};
use spipe_schedule::{Content, Lifetime};
use std::sync::PoisonError;

/// A value, and the position of a layer in it.
type Place = (Instance, usize);

impl Interpreter<'_> {
    /// Resident buffers that hold `layer`. Parts of a sharded layer come in their order.
    fn resident(&self, layer: LayerId, range: fn(&Content) -> Option<LayerRange>) -> Vec<Place> {
        let all = self.program.buffers().enumerate().filter(|(_, buffer)| buffer.lifetime == Lifetime::Resident);
        let mut found: Vec<(u32, Place)> = all
            .filter_map(|(id, buffer)| {
                let place = range(&buffer.content)?.iter().position(|of| of == layer)?;
                Some((buffer.part.map_or(0, |part| part.index), ((id, 0), place)))
            })
            .collect();
        found.sort_by_key(|(part, _)| *part);
        found.into_iter().map(|(_, place)| place).collect()
    }

    fn states(&self, layer: LayerId) -> Vec<Place> {
        self.resident(layer, |content| match content {
            Content::OptimizerState(layers) => Some(*layers),
            _ => None,
        })
    }

    /// Copies of a parameter: part, whether it is in host memory, and numbers.
    fn copies(&self, layer: LayerId, index: usize) -> Result<Vec<(u32, bool, Vec<f32>)>, TaskError> {
        let places = self.resident(layer, |content| match content {
            Content::Parameters(layers) | Content::Updated(layers) => Some(*layers),
            _ => None,
        });
        let is_base = index >= self.units[layer.index()].adapters();
        let numbers = |(at, place): Place| {
            // Beside a step, a host may hold adapters without their bases.
            if is_base && self.holds_adapters_alone(at.0) {
                return Ok(None);
            }
            let part = self.program.buffers()[at.0].part.map_or(0, |part| part.index);
            if let Some(layers) = self.layers_on_drive(at)? {
                let data = layers.get(place).and_then(|layer| layer.get(index));
                return Ok(data.map(|data| (part, true, data.iter::<f32>().collect())));
            }
            let (on_host, data) = self.store.look(at, |value| match value {
                Value::Host(layers) => Some((true, Ok(layers.get(place)?.get(index)?.clone()))),
                Value::Tensors(layers) => Some((false, layers.get(place)?.get(index)?.to_host())),
                _ => None,
            })?;
            Ok(Some((part, on_host, data?.iter::<f32>().collect())))
        };
        places.into_iter().map(numbers).filter_map(Result::transpose).collect()
    }
}

impl Interpreter<'_> {
    /// The gradient of a parameter that is left for the next step, if there is one.
    fn waiting(&self, layer: LayerId, index: usize) -> Result<Option<Vec<f32>>, TaskError> {
        for (id, buffer) in self.program.buffers().enumerate() {
            let Content::Gradients(layers) = buffer.content else { continue };
            let Some(place) = layers.iter().position(|of| of == layer) else { continue };
            if buffer.lifetime != Lifetime::Arrives {
                continue;
            }
            if let Some(at) = self.store.latest(id) {
                let layers = self.host_layers(at)?;
                return Ok(layers[place].1.get(index).map(|numbers| numbers.iter::<f32>().collect()));
            }
        }
        Ok(None)
    }
}

impl TrainingState for Interpreter<'_> {
    /// The f32 master copy if there is one; otherwise the copy in host memory; otherwise that on a
    /// device. All copies agree between steps. A base with a format of its own is what it was made from.
    fn parameter(&self, layer: LayerId, index: usize) -> Result<Vec<f32>, TaskError> {
        if self.frozen_storage(layer, index).is_some() {
            return self.initial_state.parameter(layer, &self.units[layer.index()].parameters()[index]);
        }
        let mut masters = Vec::new();
        for (at, place) in self.states(layer) {
            masters.extend(self.look_at_state(at, |kept| kept.master((place, index)))?);
        }
        if !masters.is_empty() {
            return Ok(masters.concat());
        }
        let mut copies = self.copies(layer, index)?;
        let on_host = copies.iter().any(|(_, on_host, _)| *on_host);
        copies.retain(|(_, host, _)| *host == on_host);
        // Several devices can hold the same part; different parts are different numbers.
        copies.dedup_by_key(|(part, ..)| *part);
        if copies.is_empty() {
            return Err(TaskError::inconsistent(format!("nothing holds layer {layer} between steps")));
        }
        Ok(copies.into_iter().flat_map(|(_, _, numbers)| numbers).collect())
    }

    fn state(&self, layer: LayerId, index: usize) -> Result<Option<TensorState>, TaskError> {
        let mut parts = Vec::new();
        for (at, place) in self.states(layer) {
            parts.extend(self.look_at_state(at, |kept| kept.tensor((place, index)))?);
        }
        Ok(TensorState::joined(parts))
    }

    fn steps(&self, layer: LayerId) -> Result<Option<u32>, TaskError> {
        for (at, place) in self.states(layer) {
            if let Some(steps) = self.look_at_state(at, |kept| Ok(kept.steps(place)))? {
                return Ok(Some(steps));
            }
        }
        Ok(None)
    }

    fn waiting_gradient(&self, layer: LayerId, index: usize) -> Result<Option<Vec<f32>>, TaskError> {
        self.waiting(layer, index)
    }

    fn loss_scale(&self) -> Option<LossScale> {
        self.numerics.scales.lock().unwrap_or_else(PoisonError::into_inner).left()
    }

    fn trains(&self, layer: LayerId, index: usize) -> Result<bool, TaskError> {
        for (at, place) in self.states(layer) {
            if self.look_at_state(at, |kept| Ok(kept.trains((place, index))))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
