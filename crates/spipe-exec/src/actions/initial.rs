//! Values that exist before the first action: parameters, their copies, optimizer state.

use super::{Interpreter, near::cut};
use crate::{
    actions::store::{DeviceState, HostLayer, Instance, State, Value},
    device::transfer::to_device,
    nn::layers::Parameter,
    optimizer::{DeviceMoments, Extent, TensorState},
    stored::to_dtype,
    task_error::TaskError,
};
use burn::tensor::{DType, TensorData};
use spipe_base::{BufferId, Bytes, LayerId, LayerRange};
use spipe_schedule::{Content, Lifetime};
use std::sync::Arc;

impl Interpreter<'_> {
    /// Creates all initial values; returns their sizes.
    pub fn fill(&self) -> Result<Vec<(Instance, Bytes)>, TaskError> {
        let mut held = Vec::new();
        for (id, buffer) in self.program.buffers().enumerate() {
            if let (Content::Gradients(layers), Lifetime::Arrives) = (buffer.content, buffer.lifetime) {
                held.extend(self.fill_gradients(id, layers)?);
                continue;
            }
            if buffer.lifetime != Lifetime::Resident {
                continue;
            }
            let value = match buffer.content {
                Content::Parameters(layers) | Content::Updated(layers) => {
                    let (dtype, alone) = (self.dtypes_of(id)?, self.holds_adapters_alone(id));
                    let host = |layer: LayerId| {
                        let count = if alone { self.units[layer.index()].adapters() } else { usize::MAX };
                        Ok((layer, Arc::new(self.initial(id, (layer, count), |index| dtype(layer, index))?)))
                    };
                    self.placed(id, self.value_of(id, layers.iter().map(host).collect::<Result<_, TaskError>>()?))?
                }
                Content::OptimizerState(layers) => self.placed(id, self.optimizer_state(id, layers)?)?,
                Content::Shared(user) => self.shared_at_first(id, user)?,
                Content::Cache(_) => {
                    let here = (buffer.content, buffer.memory);
                    Value::Cache(
                        self.inputs.inference.as_ref().map(|inference| inference.cache(here)).unwrap_or_default(),
                    )
                }
                _ => continue,
            };
            held.extend(value.bytes().map(|bytes| ((id, 0), bytes)));
            self.store.put((id, 0), value);
        }
        Ok(held)
    }

    /// Optimizer state before the first step.
    fn optimizer_state(&self, buffer: BufferId, layers: LayerRange) -> Result<Value, TaskError> {
        let mut masters = Vec::new();
        if self.has_master(buffer)? {
            let master = |layer: LayerId| match self.is_frozen(layer) {
                true => Ok(HostLayer::new()),
                false => self.initial(buffer, (layer, usize::MAX), |_| DType::F32),
            };
            masters = layers.iter().map(master).collect::<Result<Vec<_>, TaskError>>()?;
        }
        let tensors =
            layers.iter().map(|layer| self.states_of(buffer, layer)).collect::<Result<Vec<_>, TaskError>>()?;
        let master = (!masters.is_empty()).then_some(masters);
        let Some(device) = self.keeps_state(buffer) else {
            return Ok(Value::State(Box::new(State { master, tensors, squares: 0.0 })));
        };
        let device = &self.contexts[&device].device;
        let masters = |layer: HostLayer| layer.into_iter().map(|data| to_device(data, device)).collect();
        let moved = |(layer, states): (LayerId, Vec<TensorState>)| {
            let shapes = self.units[layer.index()].parameters().into_iter().map(|parameter| parameter.shape);
            states.iter().zip(shapes).map(|(state, shape)| DeviceMoments::new(state, shape, device)).collect()
        };
        Ok(Value::DeviceState(Box::new(DeviceState {
            master: master.map(|layers| layers.into_iter().map(masters).collect()),
            tensors: layers.iter().zip(tensors).map(moved).collect(),
            squares: 0.0,
        })))
    }

    /// Gradients that the checkpoint holds for the first step.
    fn fill_gradients(&self, buffer: BufferId, layers: LayerRange) -> Result<Option<(Instance, Bytes)>, TaskError> {
        let (dtype, arena) = (self.dtype_of(buffer)?, self.arenas.of(self.memory_of(buffer)));
        let layer = |layer: LayerId| {
            let parameters = self.trained_parameters(layer);
            let tensor = |parameter: &Parameter| {
                let numbers = self.initial_state.gradient(layer, parameter)?;
                let data = numbers.map(|numbers| to_dtype(TensorData::new(numbers, parameter.shape), dtype));
                Ok(data.map(|data| arena.copied(&data)))
            };
            let tensors: Option<HostLayer> = parameters.iter().map(tensor).collect::<Result<_, TaskError>>()?;
            Ok(tensors.map(|tensors| (layer, Arc::new(tensors))))
        };
        let layers: Option<Vec<_>> = layers.iter().map(layer).collect::<Result<_, TaskError>>()?;
        // Where nothing trains, there are no gradients.
        let Some(layers) = layers.filter(|layers| layers.iter().any(|(_, tensors)| !tensors.is_empty())) else {
            return Ok(None);
        };
        let value = self.value_of(buffer, layers);
        let held = value.bytes().map(|bytes| ((buffer, 0), bytes));
        self.store.put((buffer, 0), value);
        Ok(held)
    }

    pub(super) fn trained_parameters(&self, layer: LayerId) -> Vec<Parameter> {
        let unit = &self.units[layer.index()];
        unit.parameters().into_iter().take(unit.trained()).collect()
    }

    /// The first `count` tensors of a layer, as `buffer` holds them.
    fn initial(
        &self,
        buffer: BufferId,
        (layer, count): (LayerId, usize),
        dtype: impl Fn(usize) -> DType,
    ) -> Result<HostLayer, TaskError> {
        let arena = self.arenas.of(self.memory_of(buffer));
        let tensor = |(index, parameter): (usize, &Parameter)| {
            let numbers = self.initial_state.parameter(layer, parameter)?;
            let data = match self.frozen_storage(layer, index).filter(|storage| storage.dtype() == dtype(index)) {
                Some(storage) => storage.store(numbers, parameter.shape),
                None => to_dtype(TensorData::new(numbers, parameter.shape), dtype(index)),
            };
            Ok(match self.program.buffers()[buffer].part {
                Some(part) => cut(&data, part, arena),
                None => arena.copied(&data),
            })
        };
        self.units[layer.index()].parameters().iter().enumerate().take(count).map(tensor).collect()
    }

    /// The states of a layer's trained parameters.
    fn states_of(&self, buffer: BufferId, layer: LayerId) -> Result<Vec<TensorState>, TaskError> {
        let (parameters, arena) = (self.trained_parameters(layer), self.arenas.of(self.memory_of(buffer)));
        let of = |parameter: &Parameter| {
            let part = self.numbers_in(buffer, parameter.count());
            let extent = Extent { shape: parameter.shape, part };
            let state = self.initial_state.state(layer, parameter, (&self.training.optimizer, &extent))?;
            Ok(state.moved_to(arena))
        };
        parameters.iter().map(of).collect()
    }
}
