//! Optimizer steps, the check of steps that were taken on trust, and what undoes them.

use super::{Interpreter, moves::floats};
use crate::{
    account::Instance,
    optimizer::Moments,
    passes,
    state::Outcome,
    store::{HostLayer, Log, State, Value, wrong},
    task::Step,
};
use burn::tensor::TensorData;
use rayon::prelude::*;
use spipe_base::{ActionId, BufferId, Bytes, LayerId};
use std::sync::{Arc, PoisonError};

impl Interpreter<'_> {
    pub(super) fn step(&self, iteration: u32, step: &Step) -> Result<Outcome, String> {
        let gradients = step.gradients.ok_or("reads no gradients")?;
        match (&step.before[..], &step.after[..]) {
            ([before], [after]) if before == after && self.computed_on[*before].is_some() => {
                self.step_on_device(iteration, step, (*before, gradients))
            }
            _ => self.step_on_host(iteration, step, gradients),
        }
    }

    /// Parameters and gradients are on the device, where they are updated in place.
    fn step_on_device(
        &self,
        iteration: u32,
        step: &Step,
        (parameters, gradients): (BufferId, BufferId),
    ) -> Result<Outcome, String> {
        let (parameters, gradients) = (self.at(parameters, iteration), self.at(gradients, iteration));
        let state = self.at(step.state, iteration);
        self.keep_first_gradients(iteration, gradients)?;
        let before = self.store.take_tensors(parameters)?;
        let sum = self.store.take_tensors(gradients)?;
        let mut moments = self.store.take_state(state)?;
        let site = &self.sites[&step.device];
        let stepped = site.compute(|| passes::step(&self.optimizer, before, sum, &mut moments.moments))?;
        let mut outcome = Outcome { held: vec![(gradients, Bytes::ZERO)], loss: None };
        self.put(&mut outcome, parameters, Value::Tensors(stepped));
        self.put(&mut outcome, state, Value::State(Box::new(moments)));
        Ok(outcome)
    }

    /// Parameters are in host memory: those that the step starts from, or the master copy in its state.
    fn step_on_host(&self, iteration: u32, step: &Step, gradients: BufferId) -> Result<Outcome, String> {
        let state_at = self.at(step.state, iteration);
        let sum = self.gradients_of(iteration, gradients)?;
        let mut state = self.store.take_state(state_at)?;
        let mut parameters = self.take_host(iteration, &step.before)?;
        let mut outcome = Outcome::default();
        if let Some(log) = step.log {
            let log = (self.at(log, iteration), copy_of(&state, &parameters));
            self.put(&mut outcome, log.0, Value::Log(Box::new(log.1)));
        }
        if let Some(sum) = sum {
            let site = &self.sites[&step.device];
            state.sound = site.compute(|| sum.par_iter().all(|(_, layer)| layer.iter().all(is_finite)))?;
            if state.sound {
                site.compute(|| {
                    let layers = parameters.iter_mut().zip(&sum).zip(&mut state.moments);
                    layers.into_iter().try_for_each(|(((_, parameters), (_, gradients)), moments)| {
                        self.step_layer(Arc::make_mut(parameters), gradients, moments)
                    })
                })??;
            }
        }
        self.put_parameters(&mut outcome, (iteration, &step.after), &parameters)?;
        self.put(&mut outcome, state_at, Value::State(Box::new(state)));
        Ok(outcome)
    }

    /// The gradients of a step; none if no iteration has left any yet.
    #[expect(clippy::type_complexity, reason = "layers with their numbers are nothing else than that")]
    fn gradients_of(&self, iteration: u32, buffer: BufferId) -> Result<Option<Vec<(LayerId, Arc<HostLayer>)>>, String> {
        let at = self.at(buffer, iteration);
        let arrives = self.program.buffers()[buffer].lifetime == spipe_schedule::Lifetime::Arrives;
        if arrives && iteration == 0 {
            return Ok(None);
        }
        self.keep_first_gradients(iteration - u32::from(arrives), at)?;
        self.host_layers(at).map(Some)
    }

    fn step_layer(
        &self,
        parameters: &mut HostLayer,
        gradients: &HostLayer,
        moments: &mut [Moments],
    ) -> Result<(), String> {
        for ((parameter, gradient), moments) in parameters.iter_mut().zip(gradients).zip(moments) {
            let numbers = parameter.as_mut_slice::<f32>().map_err(|error| format!("{error:?}"))?;
            self.optimizer.step(numbers, floats(gradient)?, moments);
        }
        Ok(())
    }

    /// Takes parameters out of host memory, so that nobody else holds what is updated in place.
    fn take_host(&self, iteration: u32, buffers: &[BufferId]) -> Result<Vec<(LayerId, Arc<HostLayer>)>, String> {
        let mut all = Vec::new();
        for buffer in buffers {
            let layers = self.store.take_as(self.at(*buffer, iteration), |value| match value {
                Value::Host(layers) => Some(layers),
                _ => None,
            })?;
            all.extend(self.layers_of(*buffer)?.iter().zip(layers));
        }
        Ok(all)
    }

    fn put_parameters(
        &self,
        outcome: &mut Outcome,
        (iteration, buffers): (u32, &[BufferId]),
        parameters: &[(LayerId, Arc<HostLayer>)],
    ) -> Result<(), String> {
        for buffer in buffers {
            let instance = self.at(*buffer, iteration);
            let layer = |layer: LayerId| {
                let found = parameters.iter().find(|(other, _)| *other == layer);
                found.map(|(_, numbers)| Arc::clone(numbers)).ok_or_else(|| wrong(instance))
            };
            let layers = self.layers_of(*buffer)?.iter().map(layer).collect::<Result<_, _>>()?;
            self.put(outcome, instance, Value::Host(layers));
        }
        Ok(())
    }

    fn keep_first_gradients(&self, iteration: u32, gradients: Instance) -> Result<(), String> {
        if let Some(kept) = self.first_gradients.as_ref().filter(|_| iteration == 0) {
            let part = self.program.buffers()[gradients.0].part.map_or(0, |part| part.index);
            let layers = self.host_layers(gradients)?;
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            for (layer, tensors) in layers {
                kept.entry(layer).or_default().insert(part, tensors.to_vec());
            }
        }
        Ok(())
    }

    /// Whether every step that was taken on trust had finite gradients.
    pub(super) fn check(&self, iteration: u32, action: ActionId, states: &[BufferId]) -> Result<Outcome, String> {
        let mut outcome = spipe_schedule::Outcome::Pass;
        for state in states {
            let sound = self.store.look(self.at(*state, iteration), |value| match value {
                Value::State(state) => Some(state.sound),
                _ => None,
            })?;
            if !sound {
                outcome = spipe_schedule::Outcome::Fail;
            }
        }
        self.checks().insert((iteration, action), outcome);
        Ok(Outcome::default())
    }

    /// Puts back what a step has changed.
    pub(super) fn rollback(&self, iteration: u32, step: &Step, undo: BufferId) -> Result<Outcome, String> {
        let log = self.store.take_as(self.at(undo, iteration), |value| match value {
            Value::Log(log) => Some(*log),
            _ => None,
        })?;
        let layers = self.layers_of(step.state)?;
        let parameters: Vec<_> = layers.iter().zip(log.parameters).collect();
        let mut outcome = Outcome::default();
        self.put_parameters(&mut outcome, (iteration, &step.after), &parameters)?;
        self.put(&mut outcome, self.at(step.state, iteration), Value::State(Box::new(log.state)));
        Ok(outcome)
    }
}

fn is_finite(data: &TensorData) -> bool {
    data.as_slice::<f32>().is_ok_and(|numbers| numbers.iter().all(|number| number.is_finite()))
}

/// State and parameters in memory of their own.
fn copy_of(state: &State, parameters: &[(LayerId, Arc<HostLayer>)]) -> Log {
    let layer = |(_, layer): &(LayerId, Arc<HostLayer>)| Arc::new(layer.iter().map(super::moves::deep).collect());
    Log { state: State { sound: true, ..state.clone() }, parameters: parameters.iter().map(layer).collect() }
}
