//! Optimizer steps and their rollback.

use super::{Interpreter, near::cut, norm::squares, precision::unscaled};
use crate::{
    actions::{
        Outcome,
        store::{DeviceState, HostLayer, Instance, State, StepLog, Value, wrong},
        task::{Step, Task},
    },
    nn::{Matrix, Tensors, layers::joined},
    optimizer::{self, AdamW, DeviceParameter, Optimizer, TensorState, sums_of_squares},
    stored::{all_on, all_own, all_to_host, halves_mut, moved, numbers, store_all, to_dtype},
    task_error::{NotFinite, TaskError},
};
use burn::tensor::{DType, FloatDType, TensorData};
use spipe_base::{BufferId, Bytes, DeviceId, LayerId, LayerRange};
use spipe_schedule::{Content, Lifetime};
use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

/// Layers with their tensors.
type Layers = Vec<(LayerId, Arc<HostLayer>)>;

/// The parameters of layers in 16 bits.
type Written = BTreeMap<LayerId, HostLayer>;

impl Interpreter<'_> {
    pub(super) fn step(&self, iteration: u32, step: &Step) -> Result<Outcome, TaskError> {
        let gradients = step.gradients.ok_or("reads no gradients")?;
        let discrete_memory = self.store.look(self.at(step.state, iteration), |value| {
            value.state().map(|_| matches!(value, Value::DeviceState(_)))
        })?;
        match (&step.before[..], &step.after[..]) {
            ([parameters], _) if discrete_memory => self.step_on_device(iteration, step, (*parameters, gradients)),
            ([before], [after])
                if before == after && self.computed_on[*before].is_some() && !self.has_master(step.state)? =>
            {
                self.step_in_place(iteration, step, (*before, gradients))
            }
            _ => self.step_on_host(iteration, step, gradients),
        }
    }

    /// The device that keeps an optimizer's state in its own memory and runs the step there. It has
    /// discrete memory, parameters and gradients are there too, and no step is rolled back.
    pub(super) fn keeps_state(&self, state: BufferId) -> Option<DeviceId> {
        let is_undone = |task: &Task| matches!(task, Task::Rollback { step, .. } if step.state == state);
        if self.tasks.iter().any(is_undone) {
            return None;
        }
        let step = self.tasks.iter().find_map(|task| match task {
            Task::Step(step) if step.state == state => Some(step),
            _ => None,
        })?;
        let on_devices = self.training.optimizer.on_devices().is_some();
        let discrete_memory =
            on_devices && self.contexts.get(&step.device).is_some_and(|context| context.discrete_memory);
        let here =
            |buffer: &BufferId| self.program.buffers()[*buffer].memory == self.program.devices()[step.device].memory;
        let computed_here = |buffer: &BufferId| here(buffer) && self.computed_on[*buffer] == Some(step.device);
        let is_plain = step.before.len() == 1 && step.before == step.after && step.log.is_none();
        let all_here = here(&state) && step.before.iter().chain(&step.gradients).all(computed_here);
        (discrete_memory && is_plain && all_here).then_some(step.device)
    }

    /// Parameters, gradients and state are in the device's own memory.
    fn step_on_device(
        &self,
        iteration: u32,
        step: &Step,
        (buffer, gradients): (BufferId, BufferId),
    ) -> Result<Outcome, TaskError> {
        let (parameters, gradients) = (self.at(buffer, iteration), self.at(gradients, iteration));
        self.keep_first_gradients(iteration, gradients)?;
        let context = &self.contexts[&step.device];
        let (before, frozen) = self.split_trained(buffer, self.store.take_tensors(parameters)?)?;
        let before = all_own(before, &context.device)?;
        let sum = all_own(self.store.take_tensors(gradients)?, &context.device)?;
        let sum = self.with_injected_nan(iteration, self.layers_of(step.state)?, sum);
        let mut state = self.store.take_device_state(self.at(step.state, iteration))?;
        let factor = match self.verdict(iteration) {
            Some(verdict) => verdict.factor(),
            None => self.if_finite(step, context.compute(|| sums_of_squares(sum.iter().flatten()))??)?,
        };
        let scale = self.scale(iteration);
        let optimizer = self.optimizer_in(iteration).on_devices().ok_or("the optimizer runs on cores only")?;
        let after = match factor {
            Some(factor) => {
                context.compute(|| step_layers(&optimizer, before, (sum, scale.recip() * factor), &mut state))?
            }
            None => before,
        };
        let mut outcome = Outcome { held: vec![(gradients, Bytes::ZERO)], ..Outcome::default() };
        let dtype = if self.trains_adapters() { DType::F32 } else { self.dtype_of(buffer)? };
        let after = joined(store_all(after, dtype.into()), frozen);
        self.put(&mut outcome, parameters, Value::Tensors(after));
        self.put(&mut outcome, self.at(step.state, iteration), Value::DeviceState(Box::new(state)));
        Ok(outcome)
    }

    /// Parameters, gradients and state are in the memory of the cores that run the step; they are
    /// updated in place.
    fn step_in_place(
        &self,
        iteration: u32,
        step: &Step,
        (parameters, gradients): (BufferId, BufferId),
    ) -> Result<Outcome, TaskError> {
        let (buffer, parameters) = (parameters, self.at(parameters, iteration));
        let (gradients, state) = (self.at(gradients, iteration), self.at(step.state, iteration));
        self.keep_first_gradients(iteration, gradients)?;
        let context = &self.contexts[&step.device];
        let wide = |tensors| all_on(tensors, &context.device, FloatDType::F32);
        let (before, frozen) = self.split_trained(buffer, self.store.take_tensors(parameters)?)?;
        let (before, sum) = (wide(before)?, wide(self.store.take_tensors(gradients)?)?);
        let sum = self.with_injected_nan(iteration, self.layers_of(step.state)?, sum);
        let mut held = self.store.take_state(state)?;
        let factor = match self.verdict(iteration) {
            Some(verdict) => verdict.factor(),
            // Without a loss scale, gradients are finite if the loss is.
            None => Some(1.0),
        };
        let stepped = match factor {
            Some(factor) => {
                let factor = self.scale(iteration).recip() * factor;
                let optimizer = self.optimizer_in(iteration);
                context.compute(|| optimizer::step(&optimizer, before, (sum, factor), &mut held.tensors))?
            }
            None => before,
        };
        let mut outcome = Outcome { held: vec![(gradients, Bytes::ZERO)], ..Outcome::default() };
        self.put(&mut outcome, parameters, Value::Tensors(joined(store_all(stepped, FloatDType::F32), frozen)));
        self.put(&mut outcome, state, Value::State(Box::new(held)));
        Ok(outcome)
    }

    /// Parameters are in host memory: the buffers before the step, or the master copy in the state.
    fn step_on_host(&self, iteration: u32, step: &Step, gradients: BufferId) -> Result<Outcome, TaskError> {
        let state_at = self.at(step.state, iteration);
        let sum = self.gradients_of(iteration, gradients)?;
        let mut state = self.store.take_state(state_at)?;
        let mut parameters = self.start_of(iteration, step, &mut state)?;
        let mut outcome = Outcome::default();
        let mut written = Written::new();
        if let Some(log) = step.log {
            let log = (self.at(log, iteration), copy_of(&state, &parameters));
            self.put(&mut outcome, log.0, Value::Log(Box::new(log.1)));
        }
        if let Some(sum) = sum {
            let context = &self.contexts[&step.device];
            let factor = match self.verdict(iteration) {
                Some(verdict) => verdict.factor(),
                None => {
                    state.squares = context.compute(|| squares(&sum))??;
                    self.if_finite(step, state.squares)?
                }
            };
            if let Some(factor) = factor {
                let factor = self.scale_of(iteration, gradients).recip() * factor;
                let optimizer = self.optimizer_in(iteration);
                let gradients = sum.iter().map(|(_, layer)| layer);
                written = self.to_write(iteration, step, &parameters)?;
                context.compute(|| {
                    let mut layers = parameters.iter_mut().zip(gradients).zip(&mut state.tensors);
                    layers.try_for_each(|(((layer, parameters), gradients), states)| {
                        let halves = written.get_mut(layer).map(Vec::as_mut_slice).unwrap_or_default();
                        step_layer(&optimizer, Arc::make_mut(parameters), (gradients, factor), (states, halves))
                    })
                })??;
            }
        }
        self.end_of(&mut outcome, (iteration, step), (state, parameters), written)?;
        Ok(outcome)
    }

    /// The gradients of a step; none if no iteration has left any yet.
    pub(super) fn gradients_of(&self, iteration: u32, buffer: BufferId) -> Result<Option<Layers>, TaskError> {
        let at = self.at(buffer, iteration);
        let arrives = self.program.buffers()[buffer].lifetime == Lifetime::Arrives;
        match iteration.checked_sub(u32::from(arrives)) {
            Some(made_in) => self.keep_first_gradients(made_in, at)?,
            // No iteration has left any; only a checkpoint can have.
            None if self.store.look(at, |_| Some(())).is_err() => return Ok(None),
            None => {}
        }
        let with_injected_nan = |(layer, tensors): (LayerId, Arc<HostLayer>)| {
            let tensors =
                if (self.numerics.inject_nan)(iteration, layer) { Arc::new(with_nan(&tensors)) } else { tensors };
            (layer, tensors)
        };
        Ok(Some(self.host_layers(at)?.into_iter().map(with_injected_nan).collect()))
    }

    /// Gradients of `layers`, with NaN where tests inject it.
    pub(super) fn with_injected_nan(&self, iteration: u32, layers: LayerRange, sum: Tensors) -> Tensors {
        let with_nan = |(layer, tensors): (LayerId, Vec<Matrix>)| {
            let inject_nan = (self.numerics.inject_nan)(iteration, layer);
            if inject_nan { tensors.into_iter().map(|tensor| tensor.mul_scalar(f32::NAN)).collect() } else { tensors }
        };
        layers.iter().zip(sum).map(with_nan).collect()
    }

    /// The factor of gradients that no check has decided about, from the sum of their squares; none
    /// if they overflowed because of the loss scale.
    fn if_finite(&self, step: &Step, squares: f64) -> Result<Option<f32>, TaskError> {
        if !squares.is_finite() && !self.scales_losses() {
            let layers = self.layers_of(step.state)?.in_words().to_string();
            return Err(NotFinite::Gradients { layers }.into());
        }
        Ok(squares.is_finite().then_some(1.0))
    }

    /// The parameters before a step, taken out of the store so that they are updated in place.
    fn start_of(&self, iteration: u32, step: &Step, state: &mut State) -> Result<Layers, TaskError> {
        let masters = state.master.take();
        let mut all = Vec::new();
        for buffer in &step.before {
            let (instance, layers) = (self.at(*buffer, iteration), self.layers_of(*buffer)?);
            let parts = [step.state, *buffer].map(|buffer| self.program.buffers()[buffer].part);
            if let [Some(part), None] = parts {
                // Of whole parameters, a replica steps its part.
                let arena = self.arenas.of(self.memory_of(step.state));
                let own = |data: &TensorData| cut(data, part, arena);
                let whole = if masters.is_some() { Vec::new() } else { self.host_layers(instance)? };
                all.extend(whole.iter().map(|(layer, data)| (*layer, Arc::new(data.iter().map(own).collect()))));
                continue;
            }
            match self.store.take(instance) {
                Some(Value::Host(found)) => all.extend(layers.iter().zip(found)),
                Some(Value::Tensors(found)) if masters.is_some() => {
                    let frozen = layers.iter().zip(found).filter(|(layer, _)| self.is_frozen(*layer));
                    for (layer, tensors) in frozen {
                        all.push((layer, Arc::new(all_to_host(tensors.iter())?)));
                    }
                }
                _ => return Err(wrong(instance)),
            }
        }
        let Some(masters) = masters else { return Ok(all) };
        let mut frozen: BTreeMap<LayerId, Arc<HostLayer>> =
            all.into_iter().filter(|(layer, _)| self.is_frozen(*layer)).collect();
        let start = |(layer, master): (LayerId, HostLayer)| {
            let numbers = frozen.remove(&layer).unwrap_or_else(|| Arc::new(master));
            (layer, numbers)
        };
        Ok(self.layers_of(step.state)?.iter().zip(masters).map(start).collect())
    }

    /// Memory for the parameters that a step leaves in 16 bits, by layer and tensor: it writes them in the pass
    /// that updates the parameters.
    fn to_write(&self, iteration: u32, step: &Step, parameters: &Layers) -> Result<Written, TaskError> {
        let mut written = Written::new();
        for buffer in &step.after {
            let (dtype, arena) = (self.dtypes_of(*buffer)?, self.arenas.of(self.memory_of(*buffer)));
            // The parameters before the step make room for those after it.
            drop(self.store.take(self.at(*buffer, iteration)));
            for layer in self.layers_of(*buffer)?.iter().filter(|layer| !self.is_frozen(*layer)) {
                let (_, numbers) =
                    parameters.iter().find(|(other, _)| *other == layer).ok_or_else(|| wrong((*buffer, iteration)))?;
                let all: HostLayer = numbers
                    .iter()
                    .enumerate()
                    .map(|(place, now)| arena.tensor(now.shape().clone(), dtype(layer, place)))
                    .collect();
                let narrow =
                    |(now, then): (&TensorData, &TensorData)| now.dtype() == DType::F32 && then.dtype() != DType::F32;
                if numbers.iter().zip(&all).all(narrow) {
                    written.entry(layer).or_insert(all);
                }
            }
        }
        Ok(written)
    }

    /// Puts back state and parameters; parameters in their storage type, as far as `written` does not have them.
    fn end_of(
        &self,
        outcome: &mut Outcome,
        (iteration, step): (u32, &Step),
        (mut state, parameters): (State, Layers),
        written: Written,
    ) -> Result<(), TaskError> {
        for buffer in &step.after {
            let (instance, dtype) = (self.at(*buffer, iteration), self.dtypes_of(*buffer)?);
            let arena = self.arenas.of(self.memory_of(*buffer));
            let layer = |layer: LayerId| {
                let found = parameters.iter().find(|(other, _)| *other == layer);
                let (_, numbers) = found.ok_or_else(|| wrong(instance))?;
                let fits = |(index, tensor): (usize, &TensorData)| tensor.dtype() == dtype(layer, index);
                match written.get(&layer) {
                    Some(halves) if halves.iter().enumerate().all(fits) => {
                        return Ok((layer, Arc::new(halves.clone())));
                    }
                    _ if numbers.iter().enumerate().all(fits) => return Ok((layer, Arc::clone(numbers))),
                    _ => {}
                }
                let tensors = numbers.iter().enumerate();
                let stored = tensors.map(|(index, now)| moved(now, (now.shape().clone(), dtype(layer, index)), arena));
                Ok((layer, Arc::new(stored.collect::<Result<_, TaskError>>()?)))
            };
            let layers = self.layers_of(*buffer)?.iter().map(layer).collect::<Result<_, TaskError>>()?;
            self.put(outcome, instance, self.value_of(*buffer, layers));
        }
        if self.has_master(step.state)? {
            let own = |(layer, numbers): (LayerId, Arc<HostLayer>)| match self.is_frozen(layer) {
                true => HostLayer::new(),
                false => Arc::unwrap_or_clone(numbers),
            };
            state.master = Some(parameters.into_iter().map(own).collect());
        }
        self.put(outcome, self.at(step.state, iteration), Value::State(Box::new(state)));
        Ok(())
    }

    fn keep_first_gradients(&self, iteration: u32, gradients: Instance) -> Result<(), TaskError> {
        if let Some(kept) = self.first_gradients.as_ref().filter(|_| iteration == 0) {
            let part = self.program.buffers()[gradients.0].part.map_or(0, |part| part.index);
            let (layers, scale) = (self.host_layers(gradients)?, self.scale(iteration));
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            for (layer, tensors) in layers {
                let plain = |data: &TensorData| TensorData::new(unscaled(data, scale), data.shape().clone());
                kept.entry(layer).or_default().insert(part, tensors.iter().map(plain).collect());
            }
        }
        Ok(())
    }

    /// Undoes a step, from its log or from its gradients.
    pub(super) fn rollback(&self, iteration: u32, step: &Step, undo: BufferId) -> Result<Outcome, TaskError> {
        let mut outcome = Outcome::default();
        if matches!(self.program.buffers()[undo].content, Content::UndoLog(_)) {
            let log = self.store.take_as(self.at(undo, iteration), |value| match value {
                Value::Log(log) => Some(*log),
                _ => None,
            })?;
            let mut state = self.store.take_state(self.at(step.state, iteration))?;
            let mut parameters = self.start_of(iteration, step, &mut state)?;
            for ((_, now), before) in parameters.iter_mut().zip(log.parameters) {
                for (now, before) in Arc::make_mut(now).iter_mut().zip(before) {
                    *now = before;
                }
            }
            self.end_of(&mut outcome, (iteration, step), (log.state, parameters), Written::new())?;
            return Ok(outcome);
        }
        let gradients = self.host_layers(self.at(undo, iteration))?;
        let mut state = self.store.take_state(self.at(step.state, iteration))?;
        let mut parameters = self.start_of(iteration, step, &mut state)?;
        // A step whose own gradients were not finite has changed nothing.
        if state.squares.is_finite() {
            let (factor, optimizer) = (self.scale(iteration).recip(), self.optimizer_in(iteration));
            self.contexts[&step.device].compute(|| {
                let layers = parameters.iter_mut().zip(&gradients).zip(&mut state.tensors);
                for (((_, parameters), (_, gradients)), states) in layers {
                    let tensors = Arc::make_mut(parameters).iter_mut().zip(gradients.iter()).zip(states);
                    for ((parameter, gradient), state) in tensors {
                        let parameters = parameter.as_mut_slice::<f32>().map_err(TaskError::device)?;
                        if !optimizer.undo(parameters, (numbers(gradient)?, factor), state) {
                            return Err("the optimizer's steps have no inverse".into());
                        }
                    }
                }
                Ok::<(), TaskError>(())
            })??;
        }
        self.end_of(&mut outcome, (iteration, step), (state, parameters), Written::new())?;
        Ok(outcome)
    }
}

/// One step of layers in the memory of a device, with gradients times `factor`. Layers without
/// gradients stay as they are.
fn step_layers(
    optimizer: &AdamW,
    before: Tensors,
    (gradients, factor): (Tensors, f32),
    state: &mut DeviceState,
) -> Tensors {
    let masters = state.master.take();
    let (is_half, mut masters) = (masters.is_some(), masters.into_iter().flatten());
    let (mut after, mut kept) = (Vec::new(), Vec::new());
    for ((tensors, gradients), moments) in before.into_iter().zip(gradients).zip(&mut state.tensors) {
        let master = masters.next().unwrap_or_default();
        if gradients.is_empty() {
            after.push(tensors);
            kept.push(master);
            continue;
        }
        let mut master = master.into_iter();
        let (mut tensors_after, mut master_after) = (Vec::new(), Vec::new());
        for ((tensor, gradient), before) in tensors.into_iter().zip(gradients).zip(std::mem::take(moments)) {
            let held = DeviceParameter::new(tensor, master.next());
            let (held, now) = optimizer.step_on_device(held, (gradient, factor), before);
            let (tensor, master) = held.into_parts();
            tensors_after.push(tensor);
            master_after.extend(master);
            moments.push(now);
        }
        after.push(tensors_after);
        kept.push(master_after);
    }
    state.master = is_half.then_some(kept);
    after
}

/// One step of a layer in host memory, with gradients times `factor`. Parameters in 16 bits are written to the
/// tensors that are there for them.
fn step_layer(
    optimizer: &Optimizer,
    parameters: &mut HostLayer,
    (gradients, factor): (&HostLayer, f32),
    (states, halves): (&mut [TensorState], &mut [TensorData]),
) -> Result<(), TaskError> {
    let mut halves = halves.iter_mut();
    for ((parameter, gradient), state) in parameters.iter_mut().zip(gradients).zip(states) {
        let parameters = parameter.as_mut_slice::<f32>().map_err(TaskError::device)?;
        let to = (state, halves.next().and_then(halves_mut));
        optimizer.step_to(parameters, (numbers(gradient)?, factor), to);
    }
    Ok(())
}

/// The same tensors with a NaN as their first number.
fn with_nan(tensors: &HostLayer) -> HostLayer {
    let with_nan = |data: &TensorData| {
        let mut numbers: Vec<f32> = data.iter::<f32>().collect();
        numbers[0] = f32::NAN;
        to_dtype(TensorData::new(numbers, data.shape().clone()), data.dtype())
    };
    tensors.iter().map(with_nan).collect()
}

/// A copy of everything that a step changes.
fn copy_of(state: &State, parameters: &[(LayerId, Arc<HostLayer>)]) -> StepLog {
    let layer = |((_, layer), states): (&(LayerId, Arc<HostLayer>), &Vec<TensorState>)| {
        layer.iter().take(states.len()).cloned().collect()
    };
    let parameters = parameters.iter().zip(&state.tensors).map(layer).collect();
    StepLog { state: state.clone(), parameters }
}
