//! Copies between memories and collectives among devices, no faster than the program's links.

use super::{
    Interpreter,
    near::{Held, Near},
};
use crate::{
    actions::{
        Outcome,
        store::{HostLayer, Instance, Value, wrong},
    },
    device::{arena::Arena, transfer},
    host::count_moved,
    optimizer::add,
    stored::{Storage, Stored, all_moved, moved, numbers, numbers_mut},
    task_error::TaskError,
};
use burn::tensor::{DType, TensorData};
use spipe_base::{ActionId, BufferId, Bytes, LayerId, LayerRange};
use spipe_schedule::Content;
use std::{sync::Arc, time::Instant};

/// Layers with their tensors.
type HeldLayers = Vec<(LayerId, Vec<Held>)>;

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
        let matrix = self.store.matrix(self.at(from, iteration))?;
        let dtype = self.storage_dtype_on(receiver).into();
        let data = all_moved(&[(&matrix, dtype)], self.arenas.of(self.memory_of(from)))?;
        let data = data.into_iter().next().ok_or("the device has left out a copy")?;
        let copy = Stored::from_data(data, device);
        device.sync().map_err(TaskError::device)?;
        let mut outcome = Outcome::default();
        self.put(&mut outcome, self.at(to, iteration), Value::Matrix(Box::new(copy)));
        Ok(outcome)
    }

    /// Moves saved activations from a device to host memory and on to a drive, or back.
    pub(super) fn offload(&self, iteration: u32, from: BufferId, to: BufferId) -> Result<Outcome, TaskError> {
        let arena = self.arenas.of(self.memory_of(to));
        let value = match (self.store.take(self.at(from, iteration)), self.computed_on[to]) {
            (Some(Value::Offloaded(saved)), None) => self.write_activations(to, *saved)?,
            (Some(Value::OffloadedToDrive(kept)), None) => self.read_activations(from, *kept, arena)?,
            (Some(Value::Saved(saved)), None) => {
                let all: Vec<_> = saved.iter().map(|stored| (stored, stored.dtype())).collect();
                let numbers = all_moved(&all, arena)?;
                Value::Offloaded(Box::new(saved.of(numbers).ok_or_else(|| wrong(self.at(from, iteration)))?))
            }
            (Some(Value::Offloaded(saved)), Some(device)) => {
                let device = &self.contexts[&device].device;
                let land = |data: TensorData| {
                    let shape = data.shape().dims();
                    Stored::landed(&data, (shape, data.dtype()), (device, arena))
                };
                let saved = saved.tried(land)?;
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
            found.extend(self.held_layers(self.at(*buffer, iteration))?);
        }
        let mut outcome = Outcome::default();
        for buffer in to {
            let instance = self.at(*buffer, iteration);
            let layers = self.layers_of(*buffer)?;
            let found = in_order(&found, layers).ok_or_else(|| wrong(instance))?;
            let value = match adds {
                true => self.sum_of(instance, &found)?,
                false => self.with_frozen(instance, self.copy_of(*buffer, &found)?)?,
            };
            self.put(&mut outcome, instance, self.shelved(instance, value)?);
            self.finish(*buffer)?;
        }
        Ok(outcome)
    }

    /// The layers of a buffer without a copy, unless they are on a drive.
    fn held_layers(&self, instance: Instance) -> Result<HeldLayers, TaskError> {
        let layers = self.layers_of(instance.0)?;
        let held = |tensors: &HostLayer| tensors.iter().cloned().map(Held::Host).collect();
        if let Some(found) = self.layers_on_drive(instance)? {
            return Ok(layers.iter().zip(found.iter().map(|layer| held(layer))).collect());
        }
        let found: Vec<Vec<Held>> = self.store.look(instance, |value| match value {
            Value::Tensors(found) => {
                Some(found.iter().map(|layer| layer.iter().cloned().map(Held::Device).collect()).collect())
            }
            Value::Host(found) => Some(found.iter().map(|layer| held(layer)).collect()),
            _ => None,
        })?;
        Ok(layers.iter().zip(found).collect())
    }

    /// The value of a buffer into which layers have been copied, in the buffer's types. Each byte is moved once.
    fn copy_of(&self, buffer: BufferId, found: &[(LayerId, &[Held])]) -> Result<Value, TaskError> {
        let (dtype, arena) = (self.dtypes_of(buffer)?, self.arenas.of(self.memory_of(buffer)));
        let Some(device) = self.computed_on[buffer] else {
            let mut wanted = Vec::new();
            for (layer, tensors) in found {
                wanted.extend(tensors.iter().enumerate().map(|(place, held)| (held, dtype(*layer, place))));
            }
            // Conversions take all cores; plain copies do not wait until the cores have nothing else to do.
            let converts = |(held, dtype): &(&Held, DType)| matches!(held, Held::Host(data) if data.dtype() != *dtype);
            let mut all = match wanted.iter().any(converts) {
                true => self.on_host_cores(buffer, || host_copies(&wanted, arena)),
                false => host_copies(&wanted, arena),
            }?
            .into_iter();
            let layers = found.iter().map(|(_, tensors)| Arc::new(all.by_ref().take(tensors.len()).collect()));
            return Ok(Value::Host(layers.collect()));
        };
        let device = &self.contexts[&device].device;
        let tensor = |layer: LayerId, place: usize, held: &Held, shape: [usize; 2]| {
            let data = match held {
                Held::Host(data) => data.clone(),
                Held::Device(stored) => stored.to_host()?,
            };
            match self.frozen_storage(layer, place) {
                Some(Storage::Quantised(format)) if data.dtype() == DType::U8 => {
                    let data = moved(&data, (data.shape().clone(), DType::U8), arena)?;
                    Ok(Stored::Quantised(format, shape, Arc::new(data)))
                }
                _ => Stored::landed(&data, (shape, dtype(layer, place)), (device, arena)),
            }
        };
        let mut layers = Vec::new();
        for (layer, tensors) in found {
            let parameters = self.units[layer.index()].parameters();
            let landed = tensors.iter().zip(parameters.iter().map(|parameter| parameter.shape)).enumerate();
            let landed = landed.map(|(place, (held, shape))| tensor(*layer, place, held, shape));
            layers.push(landed.collect::<Result<_, TaskError>>()?);
        }
        Ok(Value::Tensors(layers))
    }

    /// The layers of a buffer to which others have been added, in place if they are in host memory.
    fn sum_of(&self, instance: Instance, found: &[(LayerId, &[Held])]) -> Result<Value, TaskError> {
        let arena = self.arenas.of(self.memory_of(instance.0));
        let read = |layer: &Vec<Stored>| {
            let all: Vec<_> = layer.iter().map(|stored| (stored, stored.dtype())).collect();
            all_moved(&all, arena).map(Arc::new)
        };
        let mut sums = match self.store.take(instance) {
            Some(Value::Host(sums)) => sums,
            Some(Value::Tensors(layers)) => layers.iter().map(read).collect::<Result<_, TaskError>>()?,
            _ => return Err(wrong(instance)),
        };
        let more = Near::all(found.iter().flat_map(|(_, tensors)| tensors.iter()))?;
        count_moved(more.iter().map(Near::bytes).sum());
        self.on_host_cores(instance.0, || {
            let mut sums = sums.iter_mut().flat_map(|sums| Arc::make_mut(sums).iter_mut());
            more.iter().try_for_each(|more| more.add_to(sums.next().ok_or_else(|| wrong(instance))?, None))
        })?;
        Ok(self.value_of(instance.0, found.iter().map(|(layer, _)| *layer).zip(sums).collect()))
    }

    /// Waits until the device that computes on a buffer has received it.
    pub(super) fn finish(&self, buffer: BufferId) -> Result<(), TaskError> {
        let device = self.computed_on[buffer].map(|device| &self.contexts[&device].device);
        device.map_or(Ok(()), |device| device.sync().map_err(TaskError::device))
    }

    /// Joins parameters or gradients from the parts of all devices, which come in their order.
    pub(super) fn gather(&self, iteration: u32, from: &[BufferId], to: BufferId) -> Result<Outcome, TaskError> {
        let parts: Vec<Vec<(LayerId, Arc<HostLayer>)>> =
            from.iter().map(|buffer| self.host_layers(self.at(*buffer, iteration))).collect::<Result<_, _>>()?;
        // The library of a GPU copies from host memory, and takes a whole tensor at once.
        let (arena, elsewhere) = match self.arenas.of(self.memory_of(to)) {
            none if Arc::ptr_eq(none, self.arenas.none()) => (self.arenas.staging(), true),
            arena => (arena, false),
        };
        let mut layers = Vec::new();
        for layer in self.layers_of(to)?.iter() {
            let of = |part: &Vec<(LayerId, Arc<HostLayer>)>| {
                part.iter().find(|(other, _)| *other == layer).map(|(_, tensors)| Arc::clone(tensors))
            };
            let parts: Option<Vec<Arc<HostLayer>>> = parts.iter().map(of).collect();
            let parts = parts.ok_or_else(|| wrong(self.at(to, iteration)))?;
            // A tied weight is the first tensor of its owner.
            let shared = matches!(self.program.buffers()[to].content, Content::Shared(_));
            let count = if shared { 1 } else { parts.first().map_or(0, |part| part.len()) };
            let whole = |tensor: usize| {
                let parts: Vec<&TensorData> = parts.iter().map(|part| &part[tensor]).collect();
                parts.iter().for_each(|part| transfer::count_source(part));
                match *parts {
                    [whole] if elsewhere => {
                        count_moved(whole.as_bytes().len());
                        whole.clone()
                    }
                    _ => join(&parts, arena),
                }
            };
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
        let arena = self.arenas.of(self.memory_of(to));
        let mut total = if adds { Some(self.host_layers(instance)?) } else { None };
        drop(self.store.take(instance));
        for buffer in from {
            let found = self.held_layers(self.at(*buffer, iteration))?;
            let near = Near::all(found.iter().flat_map(|(_, tensors)| tensors.iter()))?;
            count_moved(near.iter().map(Near::bytes).sum::<usize>() / part.of as usize);
            let mut near = near.iter();
            total = Some(match total {
                None => {
                    let layer = |(layer, tensors): &(LayerId, Vec<Held>)| {
                        let mine = near.by_ref().take(tensors.len()).map(|tensor| tensor.cut(part, arena));
                        Ok((*layer, Arc::new(mine.collect::<Result<HostLayer, TaskError>>()?)))
                    };
                    found.iter().map(layer).collect::<Result<_, TaskError>>()?
                }
                Some(mut sums) => {
                    self.on_host_cores(to, || {
                        let mut sums = sums.iter_mut().flat_map(|(_, sums)| Arc::make_mut(sums).iter_mut());
                        near.try_for_each(|more| more.add_to(sums.next().ok_or_else(|| wrong(instance))?, Some(part)))
                    })?;
                    sums
                }
            });
        }
        let mut outcome = Outcome::default();
        self.put(&mut outcome, instance, self.value_of(to, total.unwrap_or_default()));
        Ok(outcome)
    }
}

/// The layers of a range in their order; none if one is missing.
fn in_order(found: &HeldLayers, layers: LayerRange) -> Option<Vec<(LayerId, &[Held])>> {
    let one = |layer| found.iter().find(|(other, _)| *other == layer).map(|(_, tensors)| (layer, tensors.as_slice()));
    layers.iter().map(one).collect()
}

/// Copies of tensors in host memory, each in a type of its own.
fn host_copies(wanted: &[(&Held, DType)], arena: &Arc<Arena>) -> Result<Vec<TensorData>, TaskError> {
    let there: Vec<(&Stored, DType)> = wanted
        .iter()
        .filter_map(|(held, dtype)| if let Held::Device(stored) = held { Some((stored, *dtype)) } else { None })
        .collect();
    let mut read = all_moved(&there, arena)?.into_iter();
    let copy = |(held, dtype): &(&Held, DType)| match held {
        Held::Host(data) => moved(data, (data.shape().clone(), *dtype), arena),
        Held::Device(_) => read.next().ok_or_else(|| "the device has left out a copy".into()),
    };
    wanted.iter().map(copy).collect()
}

/// Adds the numbers of a tensor to those of another, whose type the sum has.
pub(super) fn add_to(sum: &mut TensorData, more: &TensorData) -> Result<(), TaskError> {
    add(numbers_mut(sum).ok_or("a sum of bytes")?, numbers(more)?);
    Ok(())
}

fn join(parts: &[&TensorData], arena: &Arc<Arena>) -> TensorData {
    let count = parts.iter().map(|part| part.shape().num_elements()).sum();
    let dtype = parts.first().map_or(DType::F32, |part| part.dtype());
    arena.filled([1, count], dtype, |mut to| {
        for part in parts {
            count_moved(part.as_bytes().len());
            let (here, rest) = std::mem::take(&mut to).split_at_mut(part.as_bytes().len());
            here.copy_from_slice(part.as_bytes());
            to = rest;
        }
    })
}
