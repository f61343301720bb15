//! Copies between memories and exchanges among devices, no faster than the program's links.

use super::{Interpreter, part_of};
use crate::{
    account::Instance,
    state::Outcome,
    store::{HostLayer, Value, wrong},
    stored::{Stored, all_to_host, in_width},
    transfer::copy,
};
use burn::tensor::{DType, TensorData};
use spipe_base::{ActionId, BufferId, Bytes, LayerId};
use spipe_schedule::Content;
use std::{sync::Arc, time::Instant};

impl Interpreter<'_> {
    /// Moves what `work` moves. Where a device on the way plays an accelerator, that takes at least as long as the flows would on
    /// the program's links.
    pub(super) fn paced(
        &self,
        action: ActionId,
        stopped: &dyn Fn() -> bool,
        work: impl FnOnce() -> Result<Outcome, String>,
    ) -> Result<Outcome, String> {
        let flows = self.program.actions()[action].flows.iter().filter(|_| self.plays(action));
        let tickets: Vec<_> = flows.map(|flow| self.pacer.start(flow)).collect();
        let mut outcome = work()?;
        // The link is through when its last flow has ended or the data is there, whichever is later, however late this thread is
        // woken up on a core that computes.
        let mut end = (!tickets.is_empty()).then(Instant::now);
        for ticket in tickets {
            let ended = self.pacer.finish(ticket, stopped).ok_or("stopped")?;
            end = end.max(Some(ended));
        }
        outcome.end = end;
        Ok(outcome)
    }

    /// Whether an action touches the memory of a device that stands for an accelerator.
    fn plays(&self, action: ActionId) -> bool {
        let action = &self.program.actions()[action];
        let memories =
            action.reads.iter().chain(&action.writes).map(|access| self.program.buffers()[access.buffer].memory);
        let mut emulated = self.sites.iter().filter(|(_, site)| site.emulated);
        let memories: Vec<_> = memories.collect();
        emulated.any(|(device, _)| memories.contains(&self.program.devices()[*device].memory))
    }

    /// An activation, a checkpoint or a gradient to another device.
    pub(super) fn pass(&self, iteration: u32, from: BufferId, to: BufferId) -> Result<Outcome, String> {
        let receiver = self.computed_on[to].ok_or_else(|| format!("{to} is used by no device"))?;
        let device = &self.sites[&receiver].device;
        let data = self.store.matrix(self.at(from, iteration))?.to_host()?;
        let copy = Stored::from_data(in_width(data, self.held_on(receiver).into()), device);
        device.sync().map_err(|error| format!("{error:?}"))?;
        let mut outcome = Outcome::default();
        self.put(&mut outcome, self.at(to, iteration), Value::Matrix(Box::new(copy)));
        Ok(outcome)
    }

    /// What takes the place of a forward's graph, to host memory or back from it.
    pub(super) fn park(&self, iteration: u32, from: BufferId, to: BufferId) -> Result<Outcome, String> {
        let value = match (self.store.take(self.at(from, iteration)), self.computed_on[to]) {
            (Some(Value::Record(record)), None) => {
                let numbers = all_to_host(record.iter())?;
                Value::Parked(Box::new(record.of(numbers).ok_or_else(|| wrong(self.at(from, iteration)))?))
            }
            (Some(Value::Parked(record)), Some(device)) => {
                let device = &self.sites[&device].device;
                // Nobody else needs what lay in host memory: where the device computes there, it takes over the very bytes.
                let record = record.turned(|data| Stored::from_data(data, device));
                device.sync().map_err(|error| format!("{error:?}"))?;
                Value::Record(Box::new(record))
            }
            _ => return Err(wrong(self.at(from, iteration))),
        };
        let mut outcome = Outcome { held: vec![(self.at(from, iteration), Bytes::ZERO)], ..Outcome::default() };
        self.put(&mut outcome, self.at(to, iteration), value);
        Ok(outcome)
    }

    /// Layers from one or several places to others; `adds` adds them to what is there.
    pub(super) fn move_layers(
        &self,
        iteration: u32,
        from: &[BufferId],
        (to, adds): (&[BufferId], bool),
    ) -> Result<Outcome, String> {
        let mut found = Vec::new();
        for buffer in from {
            found.extend(self.host_layers(self.at(*buffer, iteration))?);
        }
        let mut outcome = Outcome::default();
        for buffer in to {
            let instance = self.at(*buffer, iteration);
            let width = self.width_of(*buffer)?;
            let before = if adds { Some(self.host_layers(instance)?) } else { None };
            let mut layers = Vec::new();
            for (index, layer) in self.layers_of(*buffer)?.iter().enumerate() {
                let source = found.iter().find(|(other, _)| *other == layer).ok_or_else(|| wrong(instance))?;
                let moved = source.1.iter().map(|tensor| in_width(copy(tensor), width)).collect();
                let moved = before.as_ref().map_or(moved, |before| sum(&before[index].1, &source.1));
                layers.push((layer, Arc::new(moved)));
            }
            let value = self.with_frozen(instance, self.value_of(*buffer, layers))?;
            self.put(&mut outcome, instance, value);
            self.finish(*buffer)?;
        }
        Ok(outcome)
    }

    /// `value` with the frozen layers that are there already, where it has none: who steps the others needs no copy of them.
    fn with_frozen(&self, instance: Instance, value: Value) -> Result<Value, String> {
        if !self.layers_of(instance.0)?.iter().any(|layer| self.is_frozen(layer)) {
            return Ok(value);
        }
        Ok(match value {
            Value::Tensors(layers) => {
                let there = |value: &Value| if let Value::Tensors(there) = value { Some(there.clone()) } else { None };
                Value::Tensors(filled(layers, self.store.look(instance, there).unwrap_or_default(), Vec::is_empty))
            }
            Value::Host(layers) => {
                let there = |value: &Value| if let Value::Host(there) = value { Some(there.clone()) } else { None };
                let is_empty = |layer: &Arc<HostLayer>| layer.is_empty();
                Value::Host(filled(layers, self.store.look(instance, there).unwrap_or_default(), is_empty))
            }
            value => value,
        })
    }

    /// Waits until the device that computes on a buffer has got it.
    pub(super) fn finish(&self, buffer: BufferId) -> Result<(), String> {
        let device = self.computed_on[buffer].map(|device| &self.sites[&device].device);
        device.map_or(Ok(()), |device| device.sync().map_err(|error| format!("{error:?}")))
    }

    /// Parameters in whole from the parts of all devices, which come in their order.
    pub(super) fn gather(&self, iteration: u32, from: &[BufferId], to: BufferId) -> Result<Outcome, String> {
        let parts: Vec<Vec<(LayerId, Arc<HostLayer>)>> =
            from.iter().map(|buffer| self.host_layers(self.at(*buffer, iteration))).collect::<Result<_, _>>()?;
        let mut layers = Vec::new();
        for layer in self.layers_of(to)?.iter() {
            let of = |part: &Vec<(LayerId, Arc<HostLayer>)>| {
                part.iter().find(|(other, _)| *other == layer).map(|(_, tensors)| Arc::clone(tensors))
            };
            let parts: Option<Vec<Arc<HostLayer>>> = parts.iter().map(of).collect();
            let parts = parts.ok_or_else(|| wrong(self.at(to, iteration)))?;
            // What is shared by two layers is the first of their tensors.
            let shared = matches!(self.program.buffers()[to].content, Content::Shared(_));
            let count = if shared { 1 } else { self.units[layer.index()].parameters().len() };
            let whole = |tensor: usize| join(parts.iter().map(|part| &part[tensor]));
            layers.push((layer, Arc::new((0..count).map(whole).collect())));
        }
        let mut outcome = Outcome::default();
        self.put(&mut outcome, self.at(to, iteration), self.value_of(to, layers));
        self.finish(to)?;
        Ok(outcome)
    }

    /// One part of the sum of several devices' gradients, added in the order of the devices.
    pub(super) fn reduce(
        &self,
        iteration: u32,
        from: &[BufferId],
        (to, adds): (BufferId, bool),
    ) -> Result<Outcome, String> {
        let instance = self.at(to, iteration);
        let part = self.program.buffers()[to].part.ok_or_else(|| wrong(instance))?;
        let mut total = if adds { Some(self.host_layers(instance)?) } else { None };
        for buffer in from {
            let mine = |(layer, tensors): (LayerId, Arc<HostLayer>)| {
                (layer, Arc::new(tensors.iter().map(|tensor| cut(tensor, part)).collect()))
            };
            let more: Vec<_> = self.host_layers(self.at(*buffer, iteration))?.into_iter().map(mine).collect();
            let add = |((layer, before), (_, more)): ((LayerId, Arc<HostLayer>), (LayerId, Arc<HostLayer>))| {
                (layer, Arc::new(sum(&before, &more)))
            };
            total = Some(match total {
                None => more,
                Some(before) => before.into_iter().zip(more).map(add).collect(),
            });
        }
        let mut outcome = Outcome::default();
        self.put(&mut outcome, instance, self.value_of(to, total.unwrap_or_default()));
        Ok(outcome)
    }
}

/// `layers` with those of `there` where they are empty.
fn filled<T>(mut layers: Vec<T>, there: Vec<T>, is_empty: impl Fn(&T) -> bool) -> Vec<T> {
    for (layer, there) in layers.iter_mut().zip(there).filter(|(layer, _)| is_empty(layer)) {
        *layer = there;
    }
    layers
}

fn sum(before: &HostLayer, more: &HostLayer) -> HostLayer {
    let add = |(before, more): (&TensorData, &TensorData)| {
        let numbers: Vec<f32> =
            before.iter::<f32>().zip(more.iter::<f32>()).map(|(before, more)| before + more).collect();
        in_width(TensorData::new(numbers, before.shape().clone()), before.dtype())
    };
    before.iter().zip(more).map(add).collect()
}

fn join<'a>(parts: impl Iterator<Item = &'a TensorData>) -> TensorData {
    let (mut bytes, mut width, mut count) = (Vec::new(), DType::F32, 0);
    for part in parts {
        bytes.extend_from_slice(part.as_bytes());
        (width, count) = (part.dtype(), count + part.shape().num_elements());
    }
    TensorData::from_bytes_vec(bytes, [1, count], width)
}

fn cut(whole: &TensorData, part: spipe_schedule::Part) -> TensorData {
    let range = part_of(whole.shape().num_elements(), part);
    let size = whole.dtype().size();
    let bytes = whole.as_bytes()[range.start * size..range.end * size].to_vec();
    TensorData::from_bytes_vec(bytes, [1, range.len()], whole.dtype())
}
