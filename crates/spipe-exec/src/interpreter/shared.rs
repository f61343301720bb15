//! Parameters that layers of two stages use: the table of an embedding, with which a head projects as well.

use super::Interpreter;
use crate::{
    account::Instance,
    layers::{Matrix, Parameter, Unit},
    state::Outcome,
    store::{Value, wrong},
    stored::{Stored, in_width},
    task::{Task, Work},
    transfer::{copy, copy_as},
};
use burn::tensor::{DType, FloatDType, TensorData};
use spipe_base::{BufferId, LayerId};
use spipe_schedule::Content;
use std::sync::Arc;

/// Which of its owner's parameters is shared.
const SHARED: usize = 0;

/// A tensor wherever it is.
enum Found {
    Device(Stored),
    Host(TensorData),
}

impl Interpreter<'_> {
    /// What one of a stage's layers shares with a layer of another stage, on the stage's device in the width in which it computes.
    pub(super) fn shared(&self, iteration: u32, work: Work) -> Result<Option<Matrix>, String> {
        let Some(buffer) = work.shared else { return Ok(None) };
        let stage = &self.program.stages()[work.stage];
        let user = stage.layers.iter().find(|layer| self.units[layer.index()].tied().is_some());
        let user = user.ok_or("reads shared parameters that none of its layers uses")?;
        match self.find_shared(self.at(buffer, iteration), user)? {
            Found::Device(table) => {
                Ok(Some(table.on(&self.sites[&stage.device].device, self.computed_by(work.stage))?))
            }
            Found::Host(_) => Err(wrong(self.at(buffer, iteration))),
        }
    }

    /// The layer that owns what `user` shares, and the parameter.
    pub(super) fn owner(&self, user: LayerId) -> Result<(LayerId, Parameter), String> {
        let tied = self.units.get(user.index()).and_then(Unit::tied).ok_or_else(|| format!("{user} shares nothing"))?;
        let parameter = self.units[tied.owner.index()].parameters().swap_remove(SHARED);
        Ok((tied.owner, parameter))
    }

    /// What `user` shares, among the owner's tensors or by itself.
    fn find_shared(&self, instance: Instance, user: LayerId) -> Result<Found, String> {
        let place = match self.program.buffers()[instance.0].content {
            Content::Shared(_) | Content::SharedGradients(_) => 0,
            _ => {
                let (owner, layers) = (self.owner(user)?.0, self.layers_of(instance.0)?);
                layers.iter().position(|layer| layer == owner).ok_or_else(|| wrong(instance))?
            }
        };
        self.store.look(instance, |value| match value {
            Value::Tensors(layers) => Some(Found::Device(layers.get(place)?.get(SHARED)?.clone())),
            Value::Host(layers) => Some(Found::Host(layers.get(place)?.get(SHARED)?.clone())),
            _ => None,
        })
    }

    /// Shared parameters to another memory.
    pub(super) fn share(&self, iteration: u32, from: BufferId, to: BufferId) -> Result<Outcome, String> {
        let (Content::Shared(user) | Content::SharedGradients(user)) = self.program.buffers()[to].content else {
            return Err(wrong(self.at(to, iteration)));
        };
        let data = match self.find_shared(self.at(from, iteration), user)? {
            Found::Device(table) => table.to_host()?,
            Found::Host(data) => copy(&data),
        };
        let data = in_width(data, self.width_of(to)?);
        let mut outcome = Outcome::default();
        self.put(&mut outcome, self.at(to, iteration), self.shared_value(to, data)?);
        self.finish(to)?;
        Ok(outcome)
    }

    /// The value of a buffer of what is shared.
    fn shared_value(&self, buffer: BufferId, data: TensorData) -> Result<Value, String> {
        let (Content::Shared(user) | Content::SharedGradients(user)) = self.program.buffers()[buffer].content else {
            return Err(wrong((buffer, 0)));
        };
        let shape = self.owner(user)?.1.shape;
        Ok(match self.computed_on[buffer] {
            Some(device) => {
                Value::Tensors(vec![vec![Stored::from_data(copy_as(shape, &data), &self.sites[&device].device)]])
            }
            None => Value::Host(vec![Arc::new(vec![data])]),
        })
    }

    /// What a copy of shared parameters holds before the first step: what would have come from their owner.
    pub(super) fn shared_at_first(&self, buffer: BufferId, user: LayerId) -> Result<Value, String> {
        let (owner, parameter) = self.owner(user)?;
        let numbers = TensorData::new(self.beginning.parameter(owner, &parameter)?, parameter.shape);
        let way = self.way_to(buffer);
        let data = way.into_iter().try_fold(numbers, |data, at| Ok::<_, String>(in_width(data, self.width_of(at)?)))?;
        self.shared_value(buffer, data)
    }

    /// The buffers through which shared parameters come to `buffer`, that of their owner first.
    fn way_to(&self, buffer: BufferId) -> Vec<BufferId> {
        let mut way = vec![buffer];
        let before = |at: BufferId| {
            self.tasks.iter().find_map(|task| match task {
                Task::Share { from, to } if *to == at => Some(*from),
                _ => None,
            })
        };
        while let Some(from) = way.last().and_then(|at| before(*at)).filter(|from| !way.contains(from)) {
            way.push(from);
        }
        way.reverse();
        way
    }

    /// Adds gradients from another stage's use of parameters to those of their owner.
    pub(super) fn accumulate(&self, iteration: u32, from: BufferId, to: BufferId) -> Result<Outcome, String> {
        let (from, to) = (self.at(from, iteration), self.at(to, iteration));
        let Content::SharedGradients(user) = self.program.buffers()[from.0].content else { return Err(wrong(from)) };
        let (owner, width) = (self.owner(user)?.0, self.width_of(to.0)?);
        let place = self.layers_of(to.0)?.iter().position(|layer| layer == owner).ok_or_else(|| wrong(to))?;
        let more = self.find_shared(from, user)?;
        let sum = match (self.store.take(to), more) {
            (Some(Value::Tensors(mut layers)), Found::Device(more)) => {
                let device = self.computed_on[to.0].ok_or_else(|| wrong(to))?;
                let site = &self.sites[&device];
                let own = layers.get_mut(place).and_then(|layer| layer.get_mut(SHARED)).ok_or_else(|| wrong(to))?;
                *own = site.compute(|| {
                    let here = |stored: &Stored| stored.clone().on(&site.device, FloatDType::F32);
                    Ok::<_, String>(Stored::of(here(&more)? + here(own)?, self.held_on(device)))
                })??;
                Value::Tensors(layers)
            }
            (Some(Value::Host(mut layers)), Found::Host(more)) => {
                let layer = layers.get_mut(place).ok_or_else(|| wrong(to))?;
                let own = Arc::make_mut(layer).get_mut(SHARED).ok_or_else(|| wrong(to))?;
                *own = sum(&more, own, width);
                Value::Host(layers)
            }
            _ => return Err(wrong(to)),
        };
        let mut outcome = Outcome::default();
        self.put(&mut outcome, to, sum);
        Ok(outcome)
    }
}

fn sum(first: &TensorData, second: &TensorData, width: DType) -> TensorData {
    let numbers: Vec<f32> =
        first.iter::<f32>().zip(second.iter::<f32>()).map(|(first, second)| first + second).collect();
    in_width(TensorData::new(numbers, second.shape().clone()), width)
}
