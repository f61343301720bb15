//! What is held before the first action: parameters, their copies, optimizer state.

use super::{Interpreter, part_of};
use crate::{
    account::Instance,
    layers::Parameter,
    optimizer::Moments,
    store::{HostLayer, State, Value},
};
use burn::tensor::TensorData;
use spipe_base::{BufferId, Bytes, LayerId};
use spipe_schedule::{Content, Lifetime};
use std::sync::Arc;

impl Interpreter<'_> {
    /// Creates what the program holds from the start; returns what it comes to.
    pub fn fill(&self) -> Result<Vec<(Instance, Bytes)>, String> {
        let mut held = Vec::new();
        for (id, buffer) in self.program.buffers().enumerate() {
            if buffer.lifetime != Lifetime::Resident {
                continue;
            }
            let value = match buffer.content {
                Content::Parameters(layers) => {
                    let host = |layer: LayerId| Ok((layer, Arc::new(self.initial(id, layer)?)));
                    self.value_of(id, layers.iter().map(host).collect::<Result<_, String>>()?)
                }
                Content::OptimizerState(layers) => Value::State(Box::new(State {
                    master: None,
                    moments: layers.iter().map(|layer| self.moments(id, layer)).collect::<Result<_, _>>()?,
                    sound: true,
                })),
                _ => continue,
            };
            held.extend(value.bytes().map(|bytes| ((id, 0), bytes)));
            self.store.put((id, 0), value);
        }
        Ok(held)
    }

    fn initial(&self, buffer: BufferId, layer: LayerId) -> Result<HostLayer, String> {
        let tensor = |parameter: &Parameter| {
            let numbers = self.beginning.parameter(layer, parameter)?;
            Ok(match self.program.buffers()[buffer].part {
                Some(part) => {
                    let numbers = numbers[part_of(numbers.len(), part)].to_vec();
                    let shape = [1, numbers.len()];
                    TensorData::new(numbers, shape)
                }
                None => TensorData::new(numbers, parameter.shape),
            })
        };
        self.units[layer.index()].parameters().iter().map(tensor).collect()
    }

    fn moments(&self, buffer: BufferId, layer: LayerId) -> Result<Vec<Moments>, String> {
        let parameters = self.units[layer.index()].parameters();
        let of = |parameter: &Parameter| {
            let part = self.numbers_in(buffer, parameter.count());
            self.beginning.moments(layer, parameter, part)
        };
        parameters.iter().map(of).collect()
    }
}
