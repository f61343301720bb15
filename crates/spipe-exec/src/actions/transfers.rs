//! Copies between memories and collectives among devices, no faster than the program's links.

use super::{Interpreter, part_of};
use crate::{
    actions::{
        Outcome,
        store::{HostLayer, Value, wrong},
    },
    device::transfer::copy,
    stored::{Stored, all_to_host, to_dtype},
    task_error::TaskError,
};
use burn::tensor::{DType, TensorData};
use spipe_base::{ActionId, BufferId, Bytes, LayerId};
use spipe_schedule::Content;
use std::{sync::Arc, time::Instant};

impl Interpreter<'_> {
    /// Runs `work`. If an emulated accelerator is involved, it takes at least as long as the flows
    /// on the program's links.
    pub(super) fn paced(
        &self,
        action: ActionId,
        stopped: &dyn Fn() -> bool,
        work: impl FnOnce() -> Result<Outcome, TaskError>,
    ) -> Result<Outcome, TaskError> {
        let flows = self.program.flows(&self.program.actions()[action]).iter().filter(|_| self.plays(action));
        let tickets: Vec<_> = flows.map(|flow| self.pacer.start(flow)).collect();
        let mut outcome = work()?;
        // The link is free when its last flow has ended or the data has arrived, whichever is
        // later, however late this thread wakes up on a busy core.
        let mut end = (!tickets.is_empty()).then(Instant::now);
        for ticket in tickets {
            let ended = self.pacer.finish(ticket, stopped).ok_or(TaskError::Stopped)?;
            end = end.max(Some(ended));
        }
        outcome.end = end;
        Ok(outcome)
    }

    /// Whether an action touches the memory of an emulated accelerator.
    fn plays(&self, action: ActionId) -> bool {
        let action = &self.program.actions()[action];
        let memories = self.program.accesses(action).iter().map(|access| self.program.buffers()[access.buffer].memory);
        let mut emulated = self.contexts.iter().filter(|(_, context)| context.emulated);
        let memories: Vec<_> = memories.collect();
        emulated.any(|(device, _)| memories.contains(&self.program.devices()[*device].memory))
    }

    /// Copies an activation, a checkpoint or a gradient to another device.
    pub(super) fn send(&self, iteration: u32, from: BufferId, to: BufferId) -> Result<Outcome, TaskError> {
        let receiver =
            self.computed_on[to].ok_or_else(|| TaskError::inconsistent(format!("{to} is used by no device")))?;
        let device = &self.contexts[&receiver].device;
        let data = self.store.matrix(self.at(from, iteration))?.to_host()?;
        let copy = Stored::from_data(to_dtype(data, self.storage_dtype_on(receiver).into()), device);
        device.sync().map_err(TaskError::device)?;
        let mut outcome = Outcome::default();
        self.put(&mut outcome, self.at(to, iteration), Value::Matrix(Box::new(copy)));
        Ok(outcome)
    }

    /// Moves saved activations from a device to host memory and on to a drive, or back.
    pub(super) fn offload(&self, iteration: u32, from: BufferId, to: BufferId) -> Result<Outcome, TaskError> {
        let value = match (self.store.take(self.at(from, iteration)), self.computed_on[to]) {
            (Some(Value::Offloaded(saved)), None) => self.write_activations(to, *saved)?,
            (Some(Value::OffloadedToDrive(kept)), None) => self.read_activations(from, *kept)?,
            (Some(Value::Saved(saved)), None) => {
                let numbers = all_to_host(saved.iter())?;
                Value::Offloaded(Box::new(saved.of(numbers).ok_or_else(|| wrong(self.at(from, iteration)))?))
            }
            (Some(Value::Offloaded(saved)), Some(device)) => {
                let device = &self.contexts[&device].device;
                // Nobody else needs the copy in host memory: a CPU device takes over its bytes.
                let saved = saved.turned(|data| Stored::from_data(data, device));
                device.sync().map_err(TaskError::device)?;
                Value::Saved(Box::new(saved))
            }
            _ => return Err(wrong(self.at(from, iteration))),
        };
        let mut outcome = Outcome { held: vec![(self.at(from, iteration), Bytes::ZERO)], ..Outcome::default() };
        self.put(&mut outcome, self.at(to, iteration), value);
        Ok(outcome)
    }

    /// Copies layers; `adds` adds them to the layers in the destination.
    pub(super) fn move_layers(
        &self,
        iteration: u32,
        from: &[BufferId],
        (to, adds): (&[BufferId], bool),
    ) -> Result<Outcome, TaskError> {
        let mut found = Vec::new();
        for buffer in from {
            found.extend(self.host_layers(self.at(*buffer, iteration))?);
        }
        let mut outcome = Outcome::default();
        for buffer in to {
            let instance = self.at(*buffer, iteration);
            let dtype = self.dtypes_of(*buffer)?;
            let before = if adds { Some(self.host_layers(instance)?) } else { None };
            let mut layers = Vec::new();
            for (index, layer) in self.layers_of(*buffer)?.iter().enumerate() {
                let source = found.iter().find(|(other, _)| *other == layer).ok_or_else(|| wrong(instance))?;
                let tensors = source.1.iter().enumerate();
                let moved = tensors.map(|(place, tensor)| to_dtype(copy(tensor), dtype(layer, place))).collect();
                let moved = before.as_ref().map_or(moved, |before| sum(&before[index].1, &source.1));
                layers.push((layer, Arc::new(moved)));
            }
            let value = self.with_frozen(instance, self.value_of(*buffer, layers))?;
            self.put(&mut outcome, instance, self.shelved(instance, value)?);
            self.finish(*buffer)?;
        }
        Ok(outcome)
    }

    /// Waits until the device that computes on a buffer has received it.
    pub(super) fn finish(&self, buffer: BufferId) -> Result<(), TaskError> {
        let device = self.computed_on[buffer].map(|device| &self.contexts[&device].device);
        device.map_or(Ok(()), |device| device.sync().map_err(TaskError::device))
    }

    /// Joins parameters from the parts of all devices, which come in their order.
    pub(super) fn gather(&self, iteration: u32, from: &[BufferId], to: BufferId) -> Result<Outcome, TaskError> {
        let parts: Vec<Vec<(LayerId, Arc<HostLayer>)>> =
            from.iter().map(|buffer| self.host_layers(self.at(*buffer, iteration))).collect::<Result<_, _>>()?;
        let mut layers = Vec::new();
        for layer in self.layers_of(to)?.iter() {
            let of = |part: &Vec<(LayerId, Arc<HostLayer>)>| {
                part.iter().find(|(other, _)| *other == layer).map(|(_, tensors)| Arc::clone(tensors))
            };
            let parts: Option<Vec<Arc<HostLayer>>> = parts.iter().map(of).collect();
            let parts = parts.ok_or_else(|| wrong(self.at(to, iteration)))?;
            // A tied weight is the first tensor of its owner.
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
    ) -> Result<Outcome, TaskError> {
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

fn sum(before: &HostLayer, more: &HostLayer) -> HostLayer {
    let add = |(before, more): (&TensorData, &TensorData)| {
        let numbers: Vec<f32> =
            before.iter::<f32>().zip(more.iter::<f32>()).map(|(before, more)| before + more).collect();
        to_dtype(TensorData::new(numbers, before.shape().clone()), before.dtype())
    };
    before.iter().zip(more).map(add).collect()
}

fn join<'a>(parts: impl Iterator<Item = &'a TensorData>) -> TensorData {
    let (mut bytes, mut dtype, mut count) = (Vec::new(), DType::F32, 0);
    for part in parts {
        bytes.extend_from_slice(part.as_bytes());
        (dtype, count) = (part.dtype(), count + part.shape().num_elements());
    }
    TensorData::from_bytes_vec(bytes, [1, count], dtype)
}

/// The part of a tensor that belongs to one of several devices.
pub(super) fn cut(whole: &TensorData, part: spipe_schedule::Part) -> TensorData {
    let range = part_of(whole.shape().num_elements(), part);
    let size = whole.dtype().size();
    let bytes = whole.as_bytes()[range.start * size..range.end * size].to_vec();
    TensorData::from_bytes_vec(bytes, [1, range.len()], whole.dtype())
}
