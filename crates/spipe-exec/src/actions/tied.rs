//! Tied weights: parameters that layers of two stages use. A head projects with the table of the
//! embedding.

use super::{Interpreter, transfers::add_to};
use crate::{
    actions::{
        Outcome,
        store::{Instance, Value, wrong},
        task::{Task, Work},
    },
    device::transfer::reshaped,
    nn::{
        Matrix, float,
        layers::{Parameter, Unit},
    },
    stored::{Stored, all_moved, moved, to_dtype},
    task_error::TaskError,
};
use burn::tensor::{FloatDType, TensorData};
use spipe_base::{BufferId, LayerId};
use spipe_schedule::Content;
use std::sync::Arc;

/// The index of the shared parameter among its owner's.
const SHARED: usize = 0;

/// A tensor wherever it is.
enum Found {
    Device(Stored),
    Host(TensorData),
}

impl Interpreter<'_> {
    /// The tied weight of a stage that another stage owns, on the stage's device in its compute
    /// type.
    pub(super) fn shared(&self, iteration: u32, work: Work) -> Result<Option<Matrix>, TaskError> {
        let Some(buffer) = work.shared else { return Ok(None) };
        let stage = &self.program.stages()[work.stage];
        let user = stage.layers.iter().find(|layer| self.units[layer.index()].tied().is_some());
        let user = user.ok_or("reads shared parameters that none of its layers uses")?;
        match self.find_shared(self.at(buffer, iteration), user)? {
            Found::Device(table) => {
                Ok(Some(table.on(&self.contexts[&stage.device].device, self.compute_dtype(work.stage))?))
            }
            Found::Host(_) => Err(wrong(self.at(buffer, iteration))),
        }
    }

    /// The layer that owns the tied weight of `user`, and the parameter.
    pub(super) fn owner(&self, user: LayerId) -> Result<(LayerId, Parameter), TaskError> {
        let tied = self
            .units
            .get(user.index())
            .and_then(Unit::tied)
            .ok_or_else(|| TaskError::inconsistent(format!("{user} shares nothing")))?;
        let parameter = self.units[tied.owner.index()].parameters().swap_remove(SHARED);
        Ok((tied.owner, parameter))
    }

    /// The tied weight of `user`, among the owner's tensors or by itself.
    fn find_shared(&self, instance: Instance, user: LayerId) -> Result<Found, TaskError> {
        let place = match self.program.buffers()[instance.0].content {
            Content::Shared(_) | Content::SharedGradients(_) => 0,
            _ => {
                let (owner, layers) = (self.owner(user)?.0, self.layers_of(instance.0)?);
                layers.iter().position(|layer| layer == owner).ok_or_else(|| wrong(instance))?
            }
        };
        if let Some(layers) = self.layers_on_drive(instance)? {
            let found = layers.get(place).and_then(|layer| layer.get(SHARED)).cloned();
            return found.map(Found::Host).ok_or_else(|| wrong(instance));
        }
        self.store.look(instance, |value| match value {
            Value::Tensors(layers) => Some(Found::Device(layers.get(place)?.get(SHARED)?.clone())),
            Value::Host(layers) => Some(Found::Host(layers.get(place)?.get(SHARED)?.clone())),
            _ => None,
        })
    }

    /// Copies a tied weight to another memory.
    pub(super) fn copy_tied(&self, iteration: u32, from: BufferId, to: BufferId) -> Result<Outcome, TaskError> {
        let (Content::Shared(user) | Content::SharedGradients(user)) = self.program.buffers()[to].content else {
            return Err(wrong(self.at(to, iteration)));
        };
        let (dtype, arena) = (self.dtype_of(to)?, self.arenas.of(self.memory_of(to)));
        let data = match self.find_shared(self.at(from, iteration), user)? {
            Found::Device(table) => {
                all_moved(&[(&table, dtype)], arena)?.pop().ok_or("the device has left out a copy")?
            }
            Found::Host(data) => moved(&data, (data.shape().clone(), dtype), arena)?,
        };
        let mut outcome = Outcome::default();
        self.put(&mut outcome, self.at(to, iteration), self.shared_value(to, data)?);
        self.finish(to)?;
        Ok(outcome)
    }

    /// The value of a buffer of a tied weight.
    fn shared_value(&self, buffer: BufferId, data: TensorData) -> Result<Value, TaskError> {
        let (Content::Shared(user) | Content::SharedGradients(user)) = self.program.buffers()[buffer].content else {
            return Err(wrong((buffer, 0)));
        };
        let shape = self.owner(user)?.1.shape;
        Ok(match self.computed_on[buffer] {
            Some(device) => {
                Value::Tensors(vec![vec![Stored::from_data(reshaped(data, shape), &self.contexts[&device].device)]])
            }
            None => Value::Host(vec![Arc::new(vec![data])]),
        })
    }

    /// The first value of a copy of a tied weight: the owner's, as the copies on the way would have
    /// converted it.
    pub(super) fn shared_at_first(&self, buffer: BufferId, user: LayerId) -> Result<Value, TaskError> {
        let (owner, parameter) = self.owner(user)?;
        let numbers = TensorData::new(self.initial_state.parameter(owner, &parameter)?, parameter.shape);
        let on_the_way = |data, at| {
            let dtype = match self.program.buffers()[at].content {
                Content::Parameters(_) | Content::Updated(_) => self.dtypes_of(at)?(owner, SHARED),
                _ => self.dtype_of(at)?,
            };
            Ok::<_, TaskError>(to_dtype(data, dtype))
        };
        let data = self.way_to(buffer).into_iter().try_fold(numbers, on_the_way)?;
        self.shared_value(buffer, self.arenas.of(self.memory_of(buffer)).copied(&data))
    }

    /// The buffers through which a tied weight reaches `buffer`, the owner's first.
    fn way_to(&self, buffer: BufferId) -> Vec<BufferId> {
        let mut way = vec![buffer];
        let before = |at: BufferId| {
            self.tasks.iter().find_map(|task| match task {
                Task::CopyTied { from, to } if *to == at => Some(*from),
                _ => None,
            })
        };
        while let Some(from) = way.last().and_then(|at| before(*at)).filter(|from| !way.contains(from)) {
            way.push(from);
        }
        way.reverse();
        way
    }

    /// Adds the gradients of a tied weight from another stage's use to those of its owner.
    pub(super) fn accumulate(&self, iteration: u32, from: BufferId, to: BufferId) -> Result<Outcome, TaskError> {
        let (from, to) = (self.at(from, iteration), self.at(to, iteration));
        let Content::SharedGradients(user) = self.program.buffers()[from.0].content else { return Err(wrong(from)) };
        let owner = self.owner(user)?.0;
        let place = self.layers_of(to.0)?.iter().position(|layer| layer == owner).ok_or_else(|| wrong(to))?;
        let more = self.find_shared(from, user)?;
        let sum = match (self.store.take(to), more) {
            (Some(Value::Tensors(mut layers)), Found::Device(more)) => {
                let device = self.computed_on[to.0].ok_or_else(|| wrong(to))?;
                let context = &self.contexts[&device];
                let own = layers.get_mut(place).and_then(|layer| layer.get_mut(SHARED)).ok_or_else(|| wrong(to))?;
                *own = context.compute(|| {
                    let here = |stored: &Stored| stored.clone().on(&context.device, FloatDType::F32);
                    Ok::<_, TaskError>(Stored::of(here(&more)? + here(own)?, float(own.dtype())))
                })??;
                Value::Tensors(layers)
            }
            (Some(Value::Host(mut layers)), Found::Host(more)) => {
                let layer = layers.get_mut(place).ok_or_else(|| wrong(to))?;
                let own = Arc::make_mut(layer).get_mut(SHARED).ok_or_else(|| wrong(to))?;
                self.on_host_cores(to.0, || add_to(own, &more))?;
                Value::Host(layers)
            }
            _ => return Err(wrong(to)),
        };
        let mut outcome = Outcome::default();
        self.put(&mut outcome, to, sum);
        Ok(outcome)
    }
}
