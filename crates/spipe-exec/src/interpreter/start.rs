//! What is held before the first action: parameters, their copies, optimizer state.

use super::{Interpreter, part_of};
use crate::{
    account::Instance,
    layers::Parameter,
    optimizer::{DeviceMoments, Moments},
    store::{DeviceState, HostLayer, State, Value},
    stored::in_width,
    transfer::to_device,
};
use burn::tensor::{DType, TensorData};
use spipe_base::{BufferId, Bytes, LayerId, LayerRange};
use spipe_schedule::{Content, Lifetime};
use std::sync::Arc;

impl Interpreter<'_> {
    /// Creates what the program holds from the start; returns what it comes to.
    pub fn fill(&self) -> Result<Vec<(Instance, Bytes)>, String> {
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
                Content::Parameters(layers) => {
                    let width = self.width_of(id)?;
                    let host = |layer: LayerId| Ok((layer, Arc::new(self.initial(id, layer, width)?)));
                    self.value_of(id, layers.iter().map(host).collect::<Result<_, String>>()?)
                }
                Content::OptimizerState(layers) => self.initial_state(id, layers)?,
                Content::Shared(user) => self.shared_at_first(id, user)?,
                Content::Cache(_) => {
                    let here = (buffer.content, buffer.memory);
                    Value::Cache(self.inference.as_ref().map(|inference| inference.cache(here)).unwrap_or_default())
                }
                _ => continue,
            };
            held.extend(value.bytes().map(|bytes| ((id, 0), bytes)));
            self.store.put((id, 0), value);
        }
        Ok(held)
    }

    /// What an optimizer starts from.
    fn initial_state(&self, buffer: BufferId, layers: LayerRange) -> Result<Value, String> {
        let mut masters = Vec::new();
        if self.has_master(buffer)? {
            let master = |layer: LayerId| match self.is_frozen(layer) {
                true => Ok(HostLayer::new()),
                false => self.initial(buffer, layer, DType::F32),
            };
            masters = layers.iter().map(master).collect::<Result<Vec<_>, String>>()?;
        }
        let moments = layers.iter().map(|layer| self.moments(buffer, layer)).collect::<Result<Vec<_>, String>>()?;
        let master = (!masters.is_empty()).then_some(masters);
        let Some(device) = self.keeps_state(buffer) else {
            return Ok(Value::State(Box::new(State { master, moments, squares: 0.0 })));
        };
        let device = &self.sites[&device].device;
        let tensors = |layer: HostLayer| layer.into_iter().map(|data| to_device(data, device)).collect();
        let moved = |(layer, moments): (LayerId, Vec<Moments>)| {
            let shapes = self.units[layer.index()].parameters().into_iter().map(|parameter| parameter.shape);
            moments.into_iter().zip(shapes).map(|(moments, shape)| DeviceMoments::new(moments, shape, device)).collect()
        };
        Ok(Value::DeviceState(Box::new(DeviceState {
            master: master.map(|layers| layers.into_iter().map(tensors).collect()),
            moments: layers.iter().zip(moments).map(moved).collect(),
            squares: 0.0,
        })))
    }

    /// Gradients that another run has left to the first step.
    fn fill_gradients(&self, buffer: BufferId, layers: LayerRange) -> Result<Option<(Instance, Bytes)>, String> {
        let width = self.width_of(buffer)?;
        let layer = |layer: LayerId| {
            let unit = &self.units[layer.index()];
            let parameters = if unit.trains() { unit.parameters() } else { Vec::new() };
            let tensor = |parameter: &Parameter| {
                let numbers = self.beginning.gradient(layer, parameter)?;
                Ok(numbers.map(|numbers| in_width(TensorData::new(numbers, parameter.shape), width)))
            };
            let tensors: Option<HostLayer> = parameters.iter().map(tensor).collect::<Result<_, String>>()?;
            Ok(tensors.map(|tensors| (layer, Arc::new(tensors))))
        };
        let layers: Option<Vec<_>> = layers.iter().map(layer).collect::<Result<_, String>>()?;
        // Where nothing trains there is nothing either way.
        let Some(layers) = layers.filter(|layers| layers.iter().any(|(_, tensors)| !tensors.is_empty())) else {
            return Ok(None);
        };
        let value = self.value_of(buffer, layers);
        let held = value.bytes().map(|bytes| ((buffer, 0), bytes));
        self.store.put((buffer, 0), value);
        Ok(held)
    }

    fn initial(&self, buffer: BufferId, layer: LayerId, width: DType) -> Result<HostLayer, String> {
        let tensor = |parameter: &Parameter| {
            let numbers = self.beginning.parameter(layer, parameter)?;
            let data = match self.program.buffers()[buffer].part {
                Some(part) => {
                    let numbers = numbers[part_of(numbers.len(), part)].to_vec();
                    let shape = [1, numbers.len()];
                    TensorData::new(numbers, shape)
                }
                None => TensorData::new(numbers, parameter.shape),
            };
            Ok(in_width(data, width))
        };
        self.units[layer.index()].parameters().iter().map(tensor).collect()
    }

    /// The moments of a layer; none of a frozen one.
    fn moments(&self, buffer: BufferId, layer: LayerId) -> Result<Vec<Moments>, String> {
        let unit = &self.units[layer.index()];
        let parameters = if unit.trains() { unit.parameters() } else { Vec::new() };
        let of = |parameter: &Parameter| {
            let part = self.numbers_in(buffer, parameter.count());
            self.beginning.moments(layer, parameter, part)
        };
        parameters.iter().map(of).collect()
    }
}
