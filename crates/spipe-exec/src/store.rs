//! The values of buffers.

use crate::{
    account::Instance,
    layers::Matrix,
    optimizer::{DeviceMoments, Moments},
    passes::{Later, Record, Tracked},
    stored::{Stored, StoredTensors, matrix_bytes},
    transfer::to_host,
};
use burn::tensor::TensorData;
use spipe_base::{BufferId, Bytes};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The tensors of one layer in host memory.
pub(crate) type HostLayer = Vec<TensorData>;

/// What a buffer holds.
#[derive(Debug)]
pub(crate) enum Value {
    /// Parameters or gradients on a device, layer by layer.
    Tensors(StoredTensors),
    /// The same in host memory.
    Host(Vec<Arc<HostLayer>>),
    /// What an optimizer keeps: in host memory, or in that of a device which steps with it there.
    State(Box<State>),
    DeviceState(Box<DeviceState>),
    /// What a step has changed, as it was.
    Log(Box<Log>),
    /// An activation or the gradient of one.
    Matrix(Box<Stored>),
    /// What a forward, or its repetition, left for the backward.
    Graphs(Vec<Tracked>),
    /// What takes the place of a graph that leaves the device: there, and in host memory.
    Record(Box<Record<Stored>>),
    Parked(Box<Record<TensorData>>),
    /// What the first part of a backward left for the second.
    Later(Box<Later>),
    /// Keys and values of the tokens so far.
    Cache(Cache),
    /// The sum of the squares of gradients, and what the losses were multiplied with that they come from.
    Norm(f64, f32),
}

/// By microbatch, keys and values of each layer.
pub(crate) type Cache = BTreeMap<usize, Vec<StoredPair>>;

/// Keys and values of one layer.
pub(crate) type StoredPair = [Stored; 2];

/// What an optimizer keeps of some layers: tensors and moments in host memory, or as [`DeviceState`].
#[derive(Clone, Debug)]
pub(crate) struct State<T = TensorData, M = Moments> {
    /// The parameters in f32, where they are narrower elsewhere; nothing of layers that are not stepped.
    pub master: Option<Vec<Vec<T>>>,
    pub moments: Vec<Vec<M>>,
    /// The sum of the squares of the last step's gradients, where it was taken on trust; not finite where they were not, and nothing was
    /// stepped.
    pub squares: f64,
}

/// The same in the memory of a device.
pub(crate) type DeviceState = State<Matrix, DeviceMoments>;

/// What of an optimizer's state belongs to a tensor, by the place of its layer and of it in that.
pub(crate) trait Kept {
    /// The parameters in f32; none where they are not narrower elsewhere.
    fn master(&self, place: (usize, usize)) -> Result<Option<Vec<f32>>, String>;

    /// The moments; none of what is not stepped.
    fn moments(&self, place: (usize, usize)) -> Result<Option<Moments>, String>;

    /// Whether a layer is stepped.
    fn trains(&self, layer: usize) -> bool;

    /// The sum of the squares of the last step's gradients, where it was taken on trust.
    fn squares(&self) -> f64;
}

/// What is there or in the memory of a device, in host memory.
trait ToHost<H> {
    fn to_host(&self) -> Result<H, String>;
}

impl ToHost<Vec<f32>> for TensorData {
    fn to_host(&self) -> Result<Vec<f32>, String> {
        Ok(self.iter::<f32>().collect())
    }
}

impl ToHost<Vec<f32>> for Matrix {
    fn to_host(&self) -> Result<Vec<f32>, String> {
        to_host(self)?.to_host()
    }
}

impl ToHost<Moments> for Moments {
    fn to_host(&self) -> Result<Moments, String> {
        Ok(self.clone())
    }
}

impl ToHost<Moments> for DeviceMoments {
    fn to_host(&self) -> Result<Moments, String> {
        Self::to_host(self)
    }
}

impl<T: ToHost<Vec<f32>>, M: ToHost<Moments>> Kept for State<T, M> {
    fn master(&self, (layer, tensor): (usize, usize)) -> Result<Option<Vec<f32>>, String> {
        let found = self.master.as_ref().and_then(|layers| layers.get(layer)?.get(tensor));
        found.map(ToHost::to_host).transpose()
    }

    fn moments(&self, (layer, tensor): (usize, usize)) -> Result<Option<Moments>, String> {
        self.moments.get(layer).and_then(|layer| layer.get(tensor)).map(ToHost::to_host).transpose()
    }

    fn trains(&self, layer: usize) -> bool {
        self.moments.get(layer).is_some_and(|layer| !layer.is_empty())
    }

    fn squares(&self) -> f64 {
        self.squares
    }
}

/// State and parameters before a step.
#[derive(Debug)]
pub(crate) struct Log {
    pub state: State,
    /// None of layers that are not stepped.
    pub parameters: Vec<Option<Arc<HostLayer>>>,
}

impl Value {
    /// What an optimizer keeps, if it is that.
    pub fn kept(&self) -> Option<&dyn Kept> {
        match self {
            Self::State(state) => Some(state.as_ref()),
            Self::DeviceState(state) => Some(state.as_ref()),
            _ => None,
        }
    }

    /// Bytes of its tensors; none for graphs, which do not tell.
    pub fn bytes(&self) -> Option<Bytes> {
        match self {
            Self::Tensors(tensors) => Some(tensors.iter().flatten().map(Stored::bytes).sum()),
            Self::Host(layers) => Some(host_bytes(layers.iter().map(AsRef::as_ref))),
            Self::State(state) => Some(state.bytes()),
            Self::DeviceState(state) => Some(state.bytes()),
            Self::Log(log) => Some(log.state.bytes() + host_bytes(log.parameters.iter().flatten().map(AsRef::as_ref))),
            Self::Matrix(matrix) => Some(matrix.bytes()),
            Self::Record(record) => Some(record.iter().map(Stored::bytes).sum()),
            Self::Parked(record) => Some(Bytes::new(record.iter().map(|data| data.as_bytes().len() as u64).sum())),
            Self::Cache(cache) => Some(cache.values().flatten().flatten().map(Stored::bytes).sum()),
            Self::Norm(..) => Some(Bytes::ZERO),
            Self::Graphs(_) | Self::Later(_) => None,
        }
    }
}

impl State {
    fn bytes(&self) -> Bytes {
        let moments = Bytes::new(self.moments.iter().flatten().map(Moments::bytes).sum());
        moments + host_bytes(self.master.iter().flatten())
    }
}

impl DeviceState {
    fn bytes(&self) -> Bytes {
        let moments = self.moments.iter().flatten().flat_map(DeviceMoments::tensors);
        moments.chain(self.master.iter().flatten().flatten()).map(matrix_bytes).sum()
    }
}

fn host_bytes<'a>(layers: impl Iterator<Item = &'a HostLayer>) -> Bytes {
    Bytes::new(layers.flatten().map(|tensor| tensor.as_bytes().len() as u64).sum())
}

/// All values by buffer and iteration; resident ones are under iteration 0.
#[derive(Debug, Default)]
pub(crate) struct Store(Mutex<BTreeMap<Instance, Value>>);

/// A value that is not what its buffer's content promises.
pub(crate) fn wrong(instance: Instance) -> String {
    format!("{} of iteration {} does not hold what it should", instance.0, instance.1)
}

impl Store {
    fn with<T>(&self, look: impl FnOnce(&mut BTreeMap<Instance, Value>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn put(&self, instance: Instance, value: Value) {
        let before = self.with(|values| values.insert(instance, value));
        drop(before);
    }

    /// Takes a value out; the memory of what is dropped later is freed outside the lock.
    pub fn take(&self, instance: Instance) -> Option<Value> {
        self.with(|values| values.remove(&instance))
    }

    /// Looks at a value without copying its numbers; `look` returns none if it is not what it should be.
    pub fn look<T>(&self, instance: Instance, look: impl FnOnce(&Value) -> Option<T>) -> Result<T, String> {
        self.with(|values| values.get(&instance).and_then(look)).ok_or_else(|| wrong(instance))
    }

    /// Where a buffer is, in the last iteration in which it is anywhere.
    pub fn latest(&self, buffer: BufferId) -> Option<Instance> {
        self.with(|values| values.range((buffer, 0)..=(buffer, u32::MAX)).next_back().map(|(at, _)| *at))
    }

    /// Handles to parameters or gradients on a device.
    pub fn tensors(&self, instance: Instance) -> Result<StoredTensors, String> {
        self.look(instance, |value| match value {
            Value::Tensors(tensors) => Some(tensors.clone()),
            _ => None,
        })
    }

    /// A handle to an activation or a gradient.
    pub fn matrix(&self, instance: Instance) -> Result<Stored, String> {
        self.look(instance, |value| match value {
            Value::Matrix(matrix) => Some(Stored::clone(matrix)),
            _ => None,
        })
    }

    /// What of a value is taken out; `part` returns none if it is not what it should be.
    pub fn take_as<T>(&self, instance: Instance, part: impl FnOnce(Value) -> Option<T>) -> Result<T, String> {
        self.take(instance).and_then(part).ok_or_else(|| wrong(instance))
    }

    /// Keys and values of the tokens of a microbatch so far, which are there no longer.
    pub fn recall(&self, instance: Instance, microbatch: usize) -> Result<Vec<StoredPair>, String> {
        let found = self.with(|values| match values.get_mut(&instance) {
            Some(Value::Cache(cache)) => Some(cache.remove(&microbatch).unwrap_or_default()),
            _ => None,
        });
        found.ok_or_else(|| wrong(instance))
    }

    /// Keeps them; returns what all of the cache comes to.
    pub fn remember(&self, instance: Instance, microbatch: usize, kept: Vec<StoredPair>) -> Result<Bytes, String> {
        let held = self.with(|values| {
            let value = values.get_mut(&instance)?;
            if let Value::Cache(cache) = value {
                cache.insert(microbatch, kept);
            }
            value.bytes()
        });
        held.ok_or_else(|| wrong(instance))
    }

    pub fn take_tensors(&self, instance: Instance) -> Result<StoredTensors, String> {
        self.take_as(instance, |value| match value {
            Value::Tensors(tensors) => Some(tensors),
            _ => None,
        })
    }

    pub fn take_device_state(&self, instance: Instance) -> Result<DeviceState, String> {
        self.take_as(instance, |value| match value {
            Value::DeviceState(state) => Some(*state),
            _ => None,
        })
    }

    pub fn take_state(&self, instance: Instance) -> Result<State, String> {
        self.take_as(instance, |value| match value {
            Value::State(state) => Some(*state),
            _ => None,
        })
    }
}
