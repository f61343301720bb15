//! The values of buffers.

use crate::{
    device::transfer::to_host,
    nn::{
        Matrix,
        passes::{PendingBackward, SavedActivations, Tracked},
    },
    optimizer::{DeviceMoments, Slot, TensorState},
    persist::drive::DrivePlace,
    stored::{Cache, Stored, StoredPair, StoredTensors, matrix_bytes},
    task_error::TaskError,
};
use burn::tensor::{DType, Shape, TensorData};
use spipe_base::{BufferId, Bytes};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// A buffer in one iteration; see [`Program::instance`](spipe_schedule::Program::instance).
pub(crate) type Instance = (BufferId, u32);

/// The tensors of one layer in host memory.
pub(crate) type HostLayer = Vec<TensorData>;

/// The value of a buffer.
#[derive(Debug)]
pub(crate) enum Value {
    /// Parameters or gradients on a device, layer by layer.
    Tensors(StoredTensors),
    /// The same in host memory.
    Host(Vec<Arc<HostLayer>>),
    /// Optimizer state: in host memory, or in the memory of a device that runs the step there.
    State(Box<State>),
    DeviceState(Box<DeviceState>),
    /// Parameters in the file of a drive: the type and shape of each tensor, and their place.
    HostOnDrive(Box<LayersOnDrive>),
    /// Optimizer state in the file of a drive.
    OnDrive(Box<OnDrive>),
    /// State and parameters before a step.
    Log(Box<StepLog>),
    /// An activation or the gradient of one.
    Matrix(Box<Stored>),
    /// Graphs that a forward or a recompute leaves for the backward.
    Graphs(Vec<Tracked>),
    /// The activations from which a graph is rebuilt: on the device, and in host memory.
    Saved(Box<SavedActivations<Stored>>),
    Offloaded(Box<SavedActivations<TensorData>>),
    /// The same in the file of a drive: the type and shape of each tensor, and their place.
    OffloadedToDrive(Box<(SavedActivations<(DType, Shape)>, DrivePlace)>),
    /// The part of a backward that is left for the weight gradients.
    Pending(Box<PendingBackward>),
    /// Keys and values of the tokens so far.
    Cache(Cache),
    /// The sum of the squares of some gradients, and the loss scale that the gradients carry.
    Norm(f64, f32),
}

/// Optimizer state of some layers in host memory; in the memory of a device it is a
/// [`DeviceState`].
#[derive(Clone, Debug)]
pub(crate) struct State<T = TensorData, M = TensorState> {
    /// The parameters in f32, if they are 16 bits wide elsewhere. A layer that is not trained has
    /// no entry.
    pub master: Option<Vec<Vec<T>>>,
    /// By layer and tensor; none of layers that are not trained.
    pub tensors: Vec<Vec<M>>,
    /// The sum of the squares of the last speculative step's gradients. If it is not finite, the
    /// step changed nothing.
    pub squares: f64,
}

/// Optimizer state in the memory of a device.
pub(crate) type DeviceState = State<Matrix, DeviceMoments>;

/// Parameters in the file of a drive.
#[derive(Clone, Debug)]
pub(crate) struct LayersOnDrive {
    pub place: DrivePlace,
    /// By layer and tensor.
    pub tensors: Vec<Vec<(DType, Shape)>>,
}

/// An optimizer state in the file of a drive.
#[derive(Clone, Debug)]
pub(crate) struct OnDrive {
    pub place: DrivePlace,
    /// The shapes of the parameters in f32, if the state has them.
    pub masters: Option<Vec<Vec<Shape>>>,
    /// By layer and tensor: the buffers, and the number of steps in them.
    pub tensors: Vec<Vec<(Vec<Slot>, u32)>>,
    pub squares: f64,
}

impl OnDrive {
    /// Bytes of its numbers.
    pub const fn bytes(&self) -> Bytes {
        Bytes::new(self.place.bytes() as u64)
    }
}

/// Optimizer state wherever it is. A tensor is named by the positions of its layer in the state and
/// of itself in the layer.
pub(crate) trait StateView {
    /// The parameters in f32; none if they are f32 elsewhere.
    fn master(&self, place: (usize, usize)) -> Result<Option<Vec<f32>>, TaskError>;

    /// The state of a tensor; none if it is not trained.
    fn tensor(&self, place: (usize, usize)) -> Result<Option<TensorState>, TaskError>;

    /// Whether the tensor is trained.
    fn trains(&self, place: (usize, usize)) -> bool;

    /// Number of steps in the state of a layer; none if it is not trained.
    fn steps(&self, layer: usize) -> Option<u32>;

    /// The sum of the squares of the last speculative step's gradients.
    fn squares(&self) -> f64;
}

/// A copy in host memory of something there or on a device.
trait ToHost<H> {
    fn to_host(&self) -> Result<H, TaskError>;
}

impl ToHost<Vec<f32>> for TensorData {
    fn to_host(&self) -> Result<Vec<f32>, TaskError> {
        Ok(self.iter::<f32>().collect())
    }
}

impl ToHost<Vec<f32>> for Matrix {
    fn to_host(&self) -> Result<Vec<f32>, TaskError> {
        to_host(self)?.to_host()
    }
}

impl ToHost<TensorState> for TensorState {
    fn to_host(&self) -> Result<TensorState, TaskError> {
        Ok(self.clone())
    }
}

impl ToHost<TensorState> for DeviceMoments {
    fn to_host(&self) -> Result<TensorState, TaskError> {
        Self::to_host(self)
    }
}

/// The number of steps in the state of a tensor.
trait Steps {
    fn steps(&self) -> u32;
}

impl Steps for TensorState {
    fn steps(&self) -> u32 {
        Self::steps(self)
    }
}

impl Steps for DeviceMoments {
    fn steps(&self) -> u32 {
        Self::steps(self)
    }
}

impl<T: ToHost<Vec<f32>>, M: ToHost<TensorState> + Steps> StateView for State<T, M> {
    fn master(&self, (layer, tensor): (usize, usize)) -> Result<Option<Vec<f32>>, TaskError> {
        let found = self.master.as_ref().and_then(|layers| layers.get(layer)?.get(tensor));
        found.map(ToHost::to_host).transpose()
    }

    fn tensor(&self, (layer, tensor): (usize, usize)) -> Result<Option<TensorState>, TaskError> {
        self.tensors.get(layer).and_then(|layer| layer.get(tensor)).map(ToHost::to_host).transpose()
    }

    fn trains(&self, (layer, tensor): (usize, usize)) -> bool {
        self.tensors.get(layer).is_some_and(|layer| layer.len() > tensor)
    }

    fn steps(&self, layer: usize) -> Option<u32> {
        self.tensors.get(layer).and_then(|layer| layer.first()).map(Steps::steps)
    }

    fn squares(&self) -> f64 {
        self.squares
    }
}

/// State and parameters before a step.
#[derive(Debug)]
pub(crate) struct StepLog {
    pub state: State,
    /// The trained parameters of each layer.
    pub parameters: Vec<HostLayer>,
}

impl Value {
    /// The optimizer state, if the value is one.
    pub fn state(&self) -> Option<&dyn StateView> {
        match self {
            Self::State(state) => Some(state.as_ref()),
            Self::DeviceState(state) => Some(state.as_ref()),
            _ => None,
        }
    }

    /// Bytes of its tensors; none for graphs, which do not report them.
    pub fn bytes(&self) -> Option<Bytes> {
        match self {
            Self::Tensors(tensors) => Some(tensors.iter().flatten().map(Stored::bytes).sum()),
            Self::Host(layers) => Some(host_bytes(layers.iter().map(AsRef::as_ref))),
            Self::State(state) => Some(state.bytes()),
            Self::DeviceState(state) => Some(state.bytes()),
            Self::OnDrive(kept) => Some(kept.bytes()),
            Self::Log(log) => Some(log.state.bytes() + host_bytes(log.parameters.iter())),
            Self::Matrix(matrix) => Some(matrix.bytes()),
            Self::Saved(saved) => Some(saved.iter().map(Stored::bytes).sum()),
            Self::Offloaded(saved) => Some(Bytes::new(saved.iter().map(|data| data.as_bytes().len() as u64).sum())),
            Self::HostOnDrive(kept) => Some(Bytes::new(kept.place.bytes() as u64)),
            Self::OffloadedToDrive(kept) => Some(Bytes::new(kept.1.bytes() as u64)),
            Self::Cache(cache) => Some(cache.values().flatten().flatten().map(Stored::bytes).sum()),
            Self::Norm(..) => Some(Bytes::ZERO),
            Self::Graphs(_) | Self::Pending(_) => None,
        }
    }
}

impl State {
    /// Bytes of its numbers.
    pub fn bytes(&self) -> Bytes {
        let tensors = Bytes::new(self.tensors.iter().flatten().map(TensorState::bytes).sum());
        tensors + host_bytes(self.master.iter().flatten())
    }
}

impl DeviceState {
    fn bytes(&self) -> Bytes {
        let moments = self.tensors.iter().flatten().flat_map(DeviceMoments::tensors);
        moments.chain(self.master.iter().flatten().flatten()).map(matrix_bytes).sum()
    }
}

fn host_bytes<'a>(layers: impl Iterator<Item = &'a HostLayer>) -> Bytes {
    Bytes::new(layers.flatten().map(|tensor| tensor.as_bytes().len() as u64).sum())
}

/// All values by instance.
#[derive(Debug, Default)]
pub(crate) struct Store(Mutex<BTreeMap<Instance, Value>>);

/// The error of a value that is missing or not of the kind that its buffer's content promises.
pub(crate) const fn wrong((buffer, iteration): Instance) -> TaskError {
    TaskError::WrongContent { buffer, iteration }
}

impl Store {
    fn with<T>(&self, look: impl FnOnce(&mut BTreeMap<Instance, Value>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn put(&self, instance: Instance, value: Value) {
        let before = self.with(|values| values.insert(instance, value));
        drop(before);
    }

    /// Takes a value out. The caller drops it, so that memory is freed outside the lock.
    pub fn take(&self, instance: Instance) -> Option<Value> {
        self.with(|values| values.remove(&instance))
    }

    /// Reads a value without copying its numbers; `look` returns none if the value is of another
    /// kind.
    pub fn look<T>(&self, instance: Instance, look: impl FnOnce(&Value) -> Option<T>) -> Result<T, TaskError> {
        self.with(|values| values.get(&instance).and_then(look)).ok_or_else(|| wrong(instance))
    }

    /// The instance of `buffer` in the last iteration that has one.
    pub fn latest(&self, buffer: BufferId) -> Option<Instance> {
        self.with(|values| values.range((buffer, 0)..=(buffer, u32::MAX)).next_back().map(|(at, _)| *at))
    }

    /// Handles to parameters or gradients on a device.
    pub fn tensors(&self, instance: Instance) -> Result<StoredTensors, TaskError> {
        self.look(instance, |value| match value {
            Value::Tensors(tensors) => Some(tensors.clone()),
            _ => None,
        })
    }

    /// A handle to an activation or a gradient.
    pub fn matrix(&self, instance: Instance) -> Result<Stored, TaskError> {
        self.look(instance, |value| match value {
            Value::Matrix(matrix) => Some(Stored::clone(matrix)),
            _ => None,
        })
    }

    /// Takes a value out as `part` of it; `part` returns none if the value is of another kind.
    pub fn take_as<T>(&self, instance: Instance, part: impl FnOnce(Value) -> Option<T>) -> Result<T, TaskError> {
        self.take(instance).and_then(part).ok_or_else(|| wrong(instance))
    }

    /// Takes out keys and values of the tokens of a microbatch so far.
    pub fn take_cache(&self, instance: Instance, microbatch: usize) -> Result<Vec<StoredPair>, TaskError> {
        let found = self.with(|values| match values.get_mut(&instance) {
            Some(Value::Cache(cache)) => Some(cache.remove(&microbatch).unwrap_or_default()),
            _ => None,
        });
        found.ok_or_else(|| wrong(instance))
    }

    /// Stores keys and values of a microbatch; returns the bytes of the whole cache.
    pub fn put_cache(&self, instance: Instance, microbatch: usize, kept: Vec<StoredPair>) -> Result<Bytes, TaskError> {
        let held = self.with(|values| {
            let value = values.get_mut(&instance)?;
            if let Value::Cache(cache) = value {
                cache.insert(microbatch, kept);
            }
            value.bytes()
        });
        held.ok_or_else(|| wrong(instance))
    }

    pub fn take_tensors(&self, instance: Instance) -> Result<StoredTensors, TaskError> {
        self.take_as(instance, |value| match value {
            Value::Tensors(tensors) => Some(tensors),
            _ => None,
        })
    }

    pub fn take_device_state(&self, instance: Instance) -> Result<DeviceState, TaskError> {
        self.take_as(instance, |value| match value {
            Value::DeviceState(state) => Some(*state),
            _ => None,
        })
    }

    pub fn take_state(&self, instance: Instance) -> Result<State, TaskError> {
        self.take_as(instance, |value| match value {
            Value::State(state) => Some(*state),
            _ => None,
        })
    }
}
