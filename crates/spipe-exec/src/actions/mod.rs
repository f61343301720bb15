//! The interpreter of actions: each takes values from the store, computes on a device or copies,
//! and puts values back.

pub(crate) mod arenas;
mod compute;
pub(crate) mod drives;
mod inference;
mod initial;
mod near;
mod norm;
mod optimizer_step;
mod outcome;
pub(crate) mod pacer;
mod precision;
pub(crate) mod store;
pub(crate) mod task;
mod tied;
mod trained;
mod training_state;
mod transfers;

pub(crate) use norm::Verdict;
pub(crate) use outcome::Outcome;
pub(crate) use precision::LossScales;

use crate::{
    actions::{
        arenas::Arenas,
        drives::Drives,
        pacer::Pacer,
        store::{HostLayer, Instance, Store, Value},
        task::Task,
    },
    data::Data,
    device::{DeviceContext, transfer::reshaped},
    inference::Inference,
    nn::layers::{Parameter, Reading, Unit},
    optimizer::{Optimizer, Schedule},
    persist::checkpoint::InitialState,
    stored::{FrozenStorage, Storage, Stored, StoredTensors, all_to_host},
    task_error::TaskError,
};
use burn::tensor::{DType, TensorData};
use spipe_base::{ActionId, BufferId, Bytes, DeviceId, IdVec, LayerId, LayerRange, MemoryId};
use spipe_cost::ClipNorm;
use spipe_schedule::{Content, Program};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex},
};

/// State and configuration of a run that actions share.
pub(crate) struct Interpreter<'a> {
    pub program: &'a Program,
    pub tasks: IdVec<ActionId, Task>,
    /// The device that computes on each buffer. The value of a buffer on which none computes is
    /// held as bytes.
    pub computed_on: IdVec<BufferId, Option<DeviceId>>,
    pub units: Vec<Unit>,
    /// By device of the program, for those that compute or run an optimizer step.
    pub contexts: BTreeMap<DeviceId, DeviceContext>,
    pub inputs: Inputs<'a>,
    pub training: Training,
    pub numerics: Numerics,
    pub initial_state: InitialState,
    pub store: Store,
    /// The memory of tensors in host memory.
    pub arenas: Arenas,
    /// The files that stand for drives.
    pub drives: Drives,
    pub pacer: Pacer,
    /// The gradients of the first step by layer and part, if the options ask for them.
    pub first_gradients: Option<Mutex<FirstGradients>>,
}

/// The data of forward passes.
pub(crate) struct Inputs<'a> {
    pub data: &'a Data,
    pub reading: Reading,
    /// Sequences of a microbatch, and tokens of each.
    pub batch: (usize, usize),
    pub seed: u64,
    /// Inputs and results of forward passes, in inference only.
    pub inference: Option<Inference<'a>>,
}

/// Settings of optimizer steps.
#[derive(Clone, Debug)]
pub(crate) struct Training {
    pub optimizer: Optimizer,
    pub schedule: Schedule,
    /// Number of steps, including those before the checkpoint that the run resumes from.
    pub steps: u32,
    /// The threshold of gradient clipping.
    pub clip_norm: Option<ClipNorm>,
}

/// Types of numbers, loss scaling, and checks for numbers that are not finite.
pub(crate) struct Numerics {
    /// The 16-bit type of the run, and the devices that store it.
    pub half: DType,
    pub half_devices: BTreeSet<DeviceId>,
    /// Whether gradients of parameters have 32 bits everywhere; otherwise they have the width of the parameters.
    pub wide_gradients: bool,
    /// The storage of frozen tensors.
    pub frozen: FrozenStorage,
    pub scales: Mutex<LossScales>,
    /// The result of the gradient check of the last iterations.
    pub verdicts: Mutex<BTreeMap<u32, Verdict>>,
    /// Whether a gradient of a layer becomes NaN in an iteration; never outside tests.
    pub inject_nan: fn(u32, LayerId) -> bool,
}

/// The gradients of all tensors by layer and part.
pub(crate) type FirstGradients = BTreeMap<LayerId, BTreeMap<u32, HostLayer>>;

impl Interpreter<'_> {
    /// Executes one action. `stopped` says whether the run has failed elsewhere.
    pub fn perform(&self, iteration: u32, action: ActionId, stopped: &dyn Fn() -> bool) -> Result<Outcome, TaskError> {
        let guard = self.program.actions()[action].guard;
        let outcome = || self.verdict(iteration).map(Verdict::outcome).unwrap_or_default();
        if guard.is_some_and(|guard| outcome() != guard.outcome) {
            return Ok(Outcome::default());
        }
        match &self.tasks[action] {
            Task::Forward { work, outputs, keeps } => self.forward(iteration, *work, (outputs, *keeps)),
            Task::Recompute { work, layers, split, into } => self.recompute(iteration, *work, (*layers, *split, *into)),
            Task::Backward { work, graphs, gradients, crossing } => {
                self.backward(iteration, *work, graphs, (*gradients, *crossing))
            }
            Task::BackwardInput { work, graphs, crossing } => self.backward_input(iteration, *work, graphs, *crossing),
            Task::BackwardWeight { later, gradients, stage } => {
                self.backward_weight(iteration, *stage, (*later, *gradients))
            }
            Task::Send { from, to } => self.paced(action, stopped, || self.send(iteration, *from, *to)),
            Task::Offload { from, to } => self.paced(action, stopped, || self.offload(iteration, *from, *to)),
            Task::Move { from, to, adds } => {
                self.paced(action, stopped, || self.move_layers(iteration, from, (to, *adds)))
            }
            Task::CopyTied { from, to } => self.paced(action, stopped, || self.copy_tied(iteration, *from, *to)),
            Task::Accumulate { from, to } => self.accumulate(iteration, *from, *to),
            Task::Gather { from, to } => self.paced(action, stopped, || self.gather(iteration, from, *to)),
            Task::Reduce { from, to, adds } => {
                self.paced(action, stopped, || self.reduce(iteration, from, (*to, *adds)))
            }
            Task::ReadState { from, to } => self.paced(action, stopped, || self.read_state(iteration, *from, *to)),
            Task::WriteState { from, to } => self.paced(action, stopped, || self.write_state(iteration, *from, *to)),
            Task::Step(step) => self.step(iteration, step),
            Task::Norm { gradients, to } => self.sum_squares(iteration, (action, *gradients), *to),
            Task::Check { norms, states } => self.check(iteration, (norms, states)),
            Task::Rollback { step, undo } => self.rollback(iteration, step, *undo),
            Task::Barrier => Ok(Outcome::default()),
        }
    }

    /// The optimizer with the learning rate of an iteration.
    fn optimizer_in(&self, iteration: u32) -> Optimizer {
        self.training
            .optimizer
            .in_step(self.training.schedule, (self.initial_state.step() + iteration, self.training.steps))
    }

    fn at(&self, buffer: BufferId, iteration: u32) -> Instance {
        self.program.instance(buffer, iteration)
    }

    fn memory_of(&self, buffer: BufferId) -> MemoryId {
        self.program.buffers()[buffer].memory
    }

    /// Runs `work` on the cores of the socket that has the memory of `buffer`, if it has work in the plan;
    /// otherwise on this thread.
    fn on_host_cores<T: Send>(&self, buffer: BufferId, work: impl FnOnce() -> T + Send) -> T {
        let memory = self.memory_of(buffer);
        let mut contexts = self.contexts.iter().filter(|(_, context)| !context.emulated);
        match contexts.find(|(device, _)| self.program.devices()[**device].memory == memory) {
            Some((_, context)) => context.on_cores(work),
            None => work(),
        }
    }

    /// The layers of a buffer of parameters, gradients or optimizer state.
    fn layers_of(&self, buffer: BufferId) -> Result<LayerRange, TaskError> {
        match self.program.buffers()[buffer].content {
            Content::Parameters(layers)
            | Content::Updated(layers)
            | Content::Gradients(layers)
            | Content::OptimizerState(layers)
            | Content::Norm(layers)
            | Content::UndoLog(layers) => Ok(layers),
            Content::Shared(user) | Content::SharedGradients(user) => {
                let owner = self.owner(user)?.0;
                LayerRange::new(owner, owner).ok_or_else(|| TaskError::inconsistent(format!("{owner} is no range")))
            }
            content => Err(TaskError::inconsistent(format!("{content} where something of layers belongs"))),
        }
    }

    /// Whether a layer has no optimizer step.
    fn is_frozen(&self, layer: LayerId) -> bool {
        !self.units[layer.index()].trains()
    }

    /// The storage of a tensor of a base with a format of its own.
    fn frozen_storage(&self, layer: LayerId, index: usize) -> Option<Storage> {
        self.numerics.frozen.of(&self.units[layer.index()], index)
    }

    /// The numbers that a buffer holds of a tensor of `count` numbers: all, or those of its part.
    fn numbers_in(&self, buffer: BufferId, count: usize) -> Range<usize> {
        self.program.buffers()[buffer].part.map_or(0..count, |part| part_of(count, part))
    }

    /// The layers of a buffer in host memory; they are copied if they are in a device's own.
    fn host_layers(&self, instance: Instance) -> Result<Vec<(LayerId, Arc<HostLayer>)>, TaskError> {
        let layers = self.layers_of(instance.0)?;
        if let Some(found) = self.layers_on_drive(instance)? {
            return Ok(layers.iter().zip(found).collect());
        }
        enum Found {
            Device(StoredTensors),
            Host(Vec<Arc<HostLayer>>),
        }
        let found = self.store.look(instance, |value| match value {
            Value::Tensors(tensors) => Some(Found::Device(tensors.clone())),
            Value::Host(layers) => Some(Found::Host(layers.clone())),
            _ => None,
        })?;
        Ok(match found {
            Found::Host(found) => layers.iter().zip(found).collect(),
            Found::Device(tensors) => {
                let mut numbers = all_to_host(tensors.iter().flatten())?.into_iter();
                let layer = |layer: &Vec<Stored>| Arc::new(numbers.by_ref().take(layer.len()).collect());
                layers.iter().zip(tensors.iter().map(layer)).collect()
            }
        })
    }

    /// The value of a buffer that holds `layers`: tensors if a device computes on it, otherwise
    /// bytes. Memory in which the device's library does not compute is taken over.
    fn value_of(&self, buffer: BufferId, layers: Vec<(LayerId, Arc<HostLayer>)>) -> Value {
        let Some(device) = self.computed_on[buffer] else {
            return Value::Host(layers.into_iter().map(|(_, layer)| layer).collect());
        };
        let device = &self.contexts[&device].device;
        let tensors = |(layer, data): (LayerId, Arc<HostLayer>)| {
            let parameters = self.units[layer.index()].parameters();
            let tensor = |(index, (data, parameter)): (usize, (TensorData, &Parameter))| match self
                .frozen_storage(layer, index)
            {
                Some(Storage::Quantised(format)) if data.dtype() == DType::U8 => {
                    Stored::Quantised(format, parameter.shape, Arc::new(data))
                }
                _ => Stored::from_data(reshaped(data, parameter.shape), device),
            };
            Arc::unwrap_or_clone(data).into_iter().zip(&parameters).enumerate().map(tensor).collect()
        };
        Value::Tensors(layers.into_iter().map(tensors).collect())
    }

    fn put(&self, outcome: &mut Outcome, instance: Instance, value: Value) {
        outcome.held.extend(value.bytes().map(|bytes| (instance, bytes)));
        self.store.put(instance, value);
    }

    fn put_held(&self, outcome: &mut Outcome, (instance, bytes): (Instance, Bytes), value: Value) {
        outcome.held.push((instance, bytes));
        self.store.put(instance, value);
    }
}

/// The numbers of a tensor of `count` numbers that belong to one of several devices.
fn part_of(count: usize, part: spipe_schedule::Part) -> Range<usize> {
    let size = count.div_ceil(part.of as usize);
    let start = |index: u32| (size * index as usize).min(count);
    start(part.index)..start(part.index + 1)
}
