//! One function per kind of task: takes values, computes on a device, puts values.

use crate::{
    AdamW, Data,
    account::Instance,
    data::Draw,
    layers::{Feed, Matrix, Reading, Signal, Unit, initial},
    optimizer::Moments,
    pacer::Pacer,
    passes::{self, Seed, Tensors},
    site::Site,
    state::Outcome,
    store::{Store, Value},
    task::{Crossing, Sum, Task, Work},
};
use burn::tensor::{Device, Tensor, TensorData};
use spipe_base::{ActionId, BufferId, Bytes, DeviceId, IdVec, LayerId, StageId};
use spipe_schedule::{Content, Lifetime, Program};
use std::{collections::BTreeMap, sync::Mutex};

/// Everything that tasks work with.
pub(crate) struct Interpreter<'a> {
    pub program: &'a Program,
    pub tasks: IdVec<ActionId, Task>,
    pub units: Vec<Unit>,
    /// By device of the program; only those with stages.
    pub sites: BTreeMap<DeviceId, Site>,
    pub data: &'a Data,
    pub reading: Reading,
    /// Sequences of a microbatch, and tokens of each.
    pub batch: (usize, usize),
    pub seed: u64,
    pub optimizer: AdamW,
    pub store: Store,
    pub pacer: Pacer,
    /// The gradients of the first step by layer, if they are asked for.
    pub first_gradients: Option<Mutex<BTreeMap<LayerId, Vec<Matrix>>>>,
}

impl Interpreter<'_> {
    /// Carries out one action. `stopped` says whether the run has failed elsewhere.
    pub fn perform(&self, iteration: u32, action: ActionId, stopped: &dyn Fn() -> bool) -> Result<Outcome, String> {
        match &self.tasks[action] {
            Task::Forward { work, input, output, saved } => self.forward(iteration, *work, (*input, *output, *saved)),
            Task::Recompute { work, saved, recomputed } => self.recompute(iteration, *work, (*saved, *recomputed)),
            Task::Backward { work, saved, recomputed, gradients, crossing } => {
                self.backward(iteration, *work, (*saved, *recomputed), (*gradients, *crossing))
            }
            Task::Copy { from, to, sender, receiver } => {
                self.copy((iteration, action), (*from, *to), (*sender, *receiver), stopped)
            }
            Task::Step { stage, parameters, gradients, state } => {
                self.step(iteration, *stage, (*parameters, *gradients, *state))
            }
        }
    }

    /// Creates parameters and moments in every stage's device; returns what they come to.
    pub fn fill(&self) -> Result<Vec<(Instance, Bytes)>, String> {
        let mut held = Vec::new();
        for (id, buffer) in self.program.buffers().enumerate() {
            if buffer.lifetime != Lifetime::Resident {
                continue;
            }
            let value = match buffer.content {
                Content::Parameters(layers) => {
                    let stage = self.program.stages().iter().find(|stage| stage.layers == layers);
                    let device = stage.map(|stage| &self.sites[&stage.device].device);
                    let device = device.ok_or_else(|| format!("{} belong to no stage", buffer.content))?;
                    Value::Parameters(layers.iter().map(|layer| self.initial(layer, device)).collect())
                }
                Content::OptimizerState(layers) => {
                    Value::Moments(layers.iter().map(|layer| self.moments(layer)).collect())
                }
                _ => continue,
            };
            held.extend(value.bytes().map(|bytes| ((id, 0), bytes)));
            self.store.put((id, 0), value);
        }
        Ok(held)
    }

    fn initial(&self, layer: LayerId, device: &Device) -> Vec<Matrix> {
        let parameters = self.units[layer.index()].parameters();
        let tensor = |parameter: &crate::layers::Parameter| {
            Tensor::from_data(TensorData::new(initial(self.seed, layer, parameter), parameter.shape), device)
        };
        parameters.iter().map(tensor).collect()
    }

    fn moments(&self, layer: LayerId) -> Vec<Moments> {
        self.units[layer.index()].parameters().iter().map(|parameter| Moments::new(parameter.count())).collect()
    }

    fn site(&self, stage: StageId) -> &Site {
        &self.sites[&self.program.stages()[stage].device]
    }

    /// The layers of a stage, and how many of them are computed again.
    fn layers(&self, stage: StageId) -> (&[Unit], usize) {
        let stage = &self.program.stages()[stage];
        let units = &self.units[stage.layers.first().index()..=stage.layers.last().index()];
        (units, stage.recomputed.map_or(0, spipe_base::LayerRange::count))
    }

    fn feed(&self, iteration: u32, microbatch: usize, device: &Device) -> Feed {
        let draw = Draw { seed: self.seed, step: iteration, microbatch };
        Feed::new(&self.data.microbatch(draw, self.batch.0), &self.reading, device)
    }

    /// What a stage computes on: what has arrived, or the tokens.
    fn input(&self, iteration: u32, buffer: Option<BufferId>, device: &Device) -> Result<Signal, String> {
        Ok(match buffer {
            Some(buffer) => Signal::Hidden(on(self.store.matrix((buffer, iteration))?, device)),
            None => Signal::Tokens,
        })
    }

    fn forward(
        &self,
        iteration: u32,
        work: Work,
        (input, output, saved): (Option<BufferId>, Option<BufferId>, BufferId),
    ) -> Result<Outcome, String> {
        let site = self.site(work.stage);
        let parameters = self.store.parameters((work.parameters, 0))?;
        let input = self.input(iteration, input, &site.device)?;
        let layers = self.layers(work.stage);
        let (signal, kept, loss) = site.compute(|| {
            let feed = self.feed(iteration, work.microbatch, &site.device);
            let (signal, kept) = passes::forward(layers, &parameters, input, &feed);
            match signal {
                Signal::Loss(loss) => (None, kept, Some(passes::loss_number(loss))),
                signal => (Some(signal), kept, None),
            }
        })?;
        let mut outcome = Outcome { held: Vec::new(), loss: loss.map(|loss| (work.microbatch, loss)) };
        match (signal, output) {
            (Some(Signal::Hidden(matrix)), Some(buffer)) => {
                self.put(&mut outcome, (buffer, iteration), Value::Matrix(Box::new(matrix)));
            }
            (None, None) => {}
            (Some(_), None) => return Err("its output goes nowhere".into()),
            (_, Some(_)) => return Err("its output is the loss, which goes nowhere".into()),
        }
        self.store.put((saved, iteration), Value::Saved(Box::new(kept)));
        outcome.held.push(((saved, iteration), self.kept(layers)));
        Ok(outcome)
    }

    /// An estimate of what the graph of a stage's saved layers keeps, and its input if it is kept beside.
    fn kept(&self, (units, recomputed): (&[Unit], usize)) -> Bytes {
        units[recomputed..].iter().map(|unit| unit.kept(self.batch)).sum()
    }

    fn recompute(
        &self,
        iteration: u32,
        work: Work,
        (saved, recomputed): (BufferId, BufferId),
    ) -> Result<Outcome, String> {
        let site = self.site(work.stage);
        let parameters = self.store.parameters((work.parameters, 0))?;
        let input = self.store.kept_input((saved, iteration))?;
        let (units, count) = self.layers(work.stage);
        let graph = site.compute(|| {
            let feed = self.feed(iteration, work.microbatch, &site.device);
            passes::tracked(&units[..count], &parameters[..count], input, &feed)
        })?;
        self.store.put((recomputed, iteration), Value::Recomputed(Box::new(graph)));
        let held = vec![((recomputed, iteration), self.kept((&units[..count], 0)))];
        Ok(Outcome { held, loss: None })
    }

    fn backward(
        &self,
        iteration: u32,
        work: Work,
        (saved, recomputed): (BufferId, Option<BufferId>),
        (sum, crossing): (Sum, Crossing),
    ) -> Result<Outcome, String> {
        let site = self.site(work.stage);
        let graphs = (
            self.store.take_saved((saved, iteration))?,
            recomputed.map(|buffer| self.store.take_recomputed((buffer, iteration))).transpose()?,
        );
        let seed = match crossing.incoming {
            Some(buffer) => Seed::Gradient(Box::new(on(self.store.matrix((buffer, iteration))?, &site.device))),
            None => Seed::Loss(1.0 / self.program.shape().microbatches as f64),
        };
        let before = if sum.adds { Some(self.store.take_gradients((sum.buffer, 0))?) } else { None };
        let (gradients, input) = site.compute(|| {
            let gradients = passes::stage_backward(graphs.0, graphs.1, seed);
            let sum = match before {
                Some(before) => passes::accumulate(before, gradients.parameters),
                None => gradients.parameters,
            };
            (sum, gradients.input)
        })?;
        let mut outcome = Outcome::default();
        self.put(&mut outcome, (sum.buffer, 0), Value::Gradients(gradients));
        if let Some(buffer) = crossing.outgoing {
            let gradient = input.ok_or("it has no input that could have a gradient")?;
            self.put(&mut outcome, (buffer, iteration), Value::Matrix(Box::new(gradient)));
        }
        Ok(outcome)
    }

    /// Moves a matrix to another device. Where one of them plays an accelerator, it takes at least as long as the flow would
    /// on the program's links.
    fn copy(
        &self,
        (iteration, action): (u32, ActionId),
        (from, to): (BufferId, BufferId),
        (sender, receiver): (DeviceId, DeviceId),
        stopped: &dyn Fn() -> bool,
    ) -> Result<Outcome, String> {
        let (sender, receiver) = (&self.sites[&sender], &self.sites[&receiver]);
        let flows = &self.program.actions()[action].flows;
        let paced = sender.emulated || receiver.emulated;
        let tickets: Vec<_> = flows.iter().filter(|_| paced).map(|flow| self.pacer.start(flow)).collect();
        let matrix = self.store.matrix((from, iteration))?;
        let shape = matrix.dims();
        // The copy is a new one even where both devices could share memory.
        let numbers = passes::numbers(&matrix);
        let copy = Tensor::from_data(TensorData::new(numbers, shape), &receiver.device);
        receiver.device.sync().map_err(|error| format!("{error:?}"))?;
        for ticket in tickets {
            if !self.pacer.finish(ticket, stopped) {
                return Err("stopped".into());
            }
        }
        let mut outcome = Outcome::default();
        self.put(&mut outcome, (to, iteration), Value::Matrix(Box::new(copy)));
        Ok(outcome)
    }

    fn step(
        &self,
        iteration: u32,
        stage: StageId,
        (parameters, gradients, state): (BufferId, BufferId, BufferId),
    ) -> Result<Outcome, String> {
        let site = self.site(stage);
        let before = self.store.take_parameters((parameters, 0))?;
        let sum = self.store.take_gradients((gradients, 0))?;
        let mut moments = self.store.take_moments((state, 0))?;
        self.keep_first_gradients(iteration, stage, &sum);
        let stepped = site.compute(|| passes::step(&self.optimizer, before, sum, &mut moments))?;
        let mut outcome = Outcome { held: vec![((gradients, 0), Bytes::ZERO)], loss: None };
        self.put(&mut outcome, (parameters, 0), Value::Parameters(stepped));
        self.put(&mut outcome, (state, 0), Value::Moments(moments));
        Ok(outcome)
    }

    fn keep_first_gradients(&self, iteration: u32, stage: StageId, sum: &Tensors) {
        if let Some(kept) = self.first_gradients.as_ref().filter(|_| iteration == 0) {
            let layers = self.program.stages()[stage].layers.iter();
            let mut kept = kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            kept.extend(layers.zip(sum.iter().cloned()));
        }
    }

    fn put(&self, outcome: &mut Outcome, instance: Instance, value: Value) {
        outcome.held.extend(value.bytes().map(|bytes| (instance, bytes)));
        self.store.put(instance, value);
    }
}

/// The matrix on `device`: itself if it is there, which it is unless two devices with different libraries share a memory.
fn on(matrix: Matrix, device: &Device) -> Matrix {
    if matrix.device() == *device {
        return matrix;
    }
    let shape = matrix.dims();
    Tensor::from_data(TensorData::new(passes::numbers(&matrix), shape), device)
}
