//! Tasks carried out: takes values, computes on a device or moves them, puts values.

mod between;
mod compute;
mod infer;
mod moves;
mod norm;
mod shared;
mod start;
mod steps;
mod widths;

pub(crate) use norm::Verdict;
pub(crate) use widths::Scales;

use crate::{
    AdamW, Data, Schedule,
    account::Instance,
    checkpoint::Beginning,
    inference::Inference,
    layers::{Reading, Unit},
    pacer::Pacer,
    rules::instance,
    site::Site,
    state::Outcome,
    store::{HostLayer, Store, Value},
    stored::{Stored, StoredTensors, all_to_host},
    task::Task,
    transfer::copy_as,
};
use burn::tensor::DType;
use spipe_base::{ActionId, BufferId, Bytes, DeviceId, IdVec, LayerId, LayerRange};
use spipe_cost::ClipNorm;
use spipe_schedule::{Content, Program};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex},
};

/// Everything that tasks work with.
pub(crate) struct Interpreter<'a> {
    pub program: &'a Program,
    pub tasks: IdVec<ActionId, Task>,
    /// By buffer, the device that computes on it; what none computes on is held as bytes.
    pub computed_on: IdVec<BufferId, Option<DeviceId>>,
    pub units: Vec<Unit>,
    /// By device of the program; only those that compute or step.
    pub sites: BTreeMap<DeviceId, Site>,
    pub data: &'a Data,
    pub reading: Reading,
    /// Sequences of a microbatch, and tokens of each.
    pub batch: (usize, usize),
    pub seed: u64,
    pub beginning: Beginning,
    /// What forwards read and find, if nothing is trained.
    pub inference: Option<Inference<'a>>,
    pub optimizer: AdamW,
    pub schedule: Schedule,
    /// Steps in all, those before this run among them.
    pub steps: u32,
    pub store: Store,
    pub pacer: Pacer,
    /// The 16-bit numbers of the run, and the devices that hold them.
    pub narrow: DType,
    pub narrow_devices: BTreeSet<DeviceId>,
    pub scales: Mutex<Scales>,
    /// Whether the gradient of a layer is spoilt in an iteration: for tests.
    pub spoils: fn(u32, LayerId) -> bool,
    /// What the norm of all gradients is clipped to.
    pub clip_norm: Option<ClipNorm>,
    /// How the check of each iteration has ended, as far as it is remembered.
    pub verdicts: Mutex<BTreeMap<u32, Verdict>>,
    /// The gradients of the first step by layer and part, if they are asked for.
    pub first_gradients: Option<Mutex<FirstGradients>>,
}

/// By layer and part, what every tensor's gradient was.
pub(crate) type FirstGradients = BTreeMap<LayerId, BTreeMap<u32, HostLayer>>;

impl Interpreter<'_> {
    /// Carries out one action. `stopped` says whether the run has failed elsewhere.
    pub fn perform(&self, iteration: u32, action: ActionId, stopped: &dyn Fn() -> bool) -> Result<Outcome, String> {
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
            Task::Pass { from, to } => self.paced(action, stopped, || self.pass(iteration, *from, *to)),
            Task::Park { from, to } => self.paced(action, stopped, || self.park(iteration, *from, *to)),
            Task::Move { from, to, adds } => {
                self.paced(action, stopped, || self.move_layers(iteration, from, (to, *adds)))
            }
            Task::Share { from, to } => self.paced(action, stopped, || self.share(iteration, *from, *to)),
            Task::Accumulate { from, to } => self.accumulate(iteration, *from, *to),
            Task::Gather { from, to } => self.paced(action, stopped, || self.gather(iteration, from, *to)),
            Task::Reduce { from, to, adds } => {
                self.paced(action, stopped, || self.reduce(iteration, from, (*to, *adds)))
            }
            Task::Step(step) => self.step(iteration, step),
            Task::Norm { gradients, to } => self.sum_squares(iteration, (action, *gradients), *to),
            Task::Check { norms, states } => self.check(iteration, (norms, states)),
            Task::Rollback { step, undo } => self.rollback(iteration, step, *undo),
            Task::Barrier => Ok(Outcome::default()),
        }
    }

    /// The optimizer with the learning rate of an iteration.
    fn optimizer_in(&self, iteration: u32) -> AdamW {
        self.optimizer.in_step(self.schedule, (self.beginning.step() + iteration, self.steps))
    }

    fn at(&self, buffer: BufferId, iteration: u32) -> Instance {
        instance(self.program, buffer, iteration)
    }

    /// The layers that a buffer of parameters, gradients or optimizer state is about.
    fn layers_of(&self, buffer: BufferId) -> Result<LayerRange, String> {
        match self.program.buffers()[buffer].content {
            Content::Parameters(layers)
            | Content::Gradients(layers)
            | Content::OptimizerState(layers)
            | Content::Norm(layers)
            | Content::UndoLog(layers) => Ok(layers),
            Content::Shared(user) | Content::SharedGradients(user) => {
                let owner = self.owner(user)?.0;
                LayerRange::new(owner, owner).ok_or_else(|| format!("{owner} is no range"))
            }
            content => Err(format!("{content} where something of layers belongs")),
        }
    }

    /// Whether a layer is never stepped.
    fn is_frozen(&self, layer: LayerId) -> bool {
        !self.units[layer.index()].trains()
    }

    /// The numbers of a tensor of `count` numbers that belong to a buffer: all, or those of its part.
    fn numbers_in(&self, buffer: BufferId, count: usize) -> Range<usize> {
        self.program.buffers()[buffer].part.map_or(0..count, |part| part_of(count, part))
    }

    /// The layers of a buffer in host memory, wherever they are now.
    fn host_layers(&self, instance: Instance) -> Result<Vec<(LayerId, Arc<HostLayer>)>, String> {
        let layers = self.layers_of(instance.0)?;
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

    /// The value of a buffer that holds `layers`: tensors where a device computes on it, bytes elsewhere.
    fn value_of(&self, buffer: BufferId, layers: Vec<(LayerId, Arc<HostLayer>)>) -> Value {
        let Some(device) = self.computed_on[buffer] else {
            return Value::Host(layers.into_iter().map(|(_, layer)| layer).collect());
        };
        let device = &self.sites[&device].device;
        let tensors = |(layer, data): (LayerId, Arc<HostLayer>)| {
            let shapes = self.units[layer.index()].parameters().into_iter().map(|parameter| parameter.shape);
            data.iter().zip(shapes).map(|(data, shape)| Stored::from_data(copy_as(shape, data), device)).collect()
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

/// What part of `count` numbers belongs to one of several devices.
fn part_of(count: usize, part: spipe_schedule::Part) -> Range<usize> {
    let size = count.div_ceil(part.of as usize);
    let start = |index: u32| (size * index as usize).min(count);
    start(part.index)..start(part.index + 1)
}
