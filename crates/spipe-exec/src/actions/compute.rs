//! Forward, recompute and backward of a stage on one microbatch.

use super::{Interpreter, inference::LastOutput};
use crate::{
    actions::{
        Outcome,
        store::Value,
        task::{BoundaryGradients, GradientSums, SavedGraph, Sum, Work},
    },
    device::DeviceContext,
    nn::{
        Matrix, Tensors,
        layers::{ActivationRecord, Signal, Unit},
        passes::{self, Gradients, Layers, Outputs, SavedActivations, Seed, Tracked},
    },
    stored::{Stored, StoredTensors, all_own, store_all},
    task_error::TaskError,
};
use burn::tensor::{DType, Device, FloatDType};
use spipe_base::{BufferId, Bytes, LayerId, LayerRange, StageId};

impl Interpreter<'_> {
    fn context(&self, stage: StageId) -> &DeviceContext {
        &self.contexts[&self.program.stages()[stage].device]
    }

    fn stage_units(&self, stage: StageId) -> (usize, &[Unit]) {
        let layers = self.program.stages()[stage].layers;
        (layers.first().index(), &self.units[layers.first().index()..=layers.last().index()])
    }

    /// The first layer of a stage that a backward runs through.
    fn first_tracked(&self, stage: StageId) -> usize {
        self.program.stages()[stage].layers.first().index().max(self.program.shape().without_backward)
    }

    /// The input of a stage: the activation that has arrived, or none if the stage reads data.
    fn input(&self, iteration: u32, work: Work, device: &Device) -> Result<Signal, TaskError> {
        let dtype = self.compute_dtype(work.stage);
        Ok(match work.input {
            Some(buffer) => Signal::Hidden(self.store.matrix(self.at(buffer, iteration))?.on(device, dtype)?),
            None => Signal::Tokens,
        })
    }

    /// Estimated bytes that the graphs of some layers of a stage keep. The stage's input is not
    /// counted if the graph shares it with its buffer, that is, if it is computed with in the type
    /// in which it is stored.
    fn graph_bytes(&self, work: Work, layers: std::ops::Range<usize>) -> Bytes {
        let (stage, begins) = (work.stage, layers.start == self.stage_units(work.stage).0);
        let how = (self.context(stage).has_kernels(), DType::from(self.compute_dtype(stage)).size() as u64);
        let same = begins && self.compute_dtype(stage) == self.storage_dtype(stage);
        let input = work.input.filter(|_| same).map_or(Bytes::ZERO, |input| self.program.buffers()[input].bytes);
        self.units[layers].iter().map(|unit| unit.saved(self.inputs.batch, how)).sum::<Bytes>().saturating_sub(input)
    }

    pub(super) fn forward(
        &self,
        iteration: u32,
        work: Work,
        (outputs, keeps): (&[(LayerId, BufferId)], Option<SavedGraph>),
    ) -> Result<Outcome, TaskError> {
        let context = self.context(work.stage);
        let parameters = self.store.tensors(self.at(work.parameters, iteration))?;
        let input = self.input(iteration, work, &context.device)?;
        let (first, units) = self.stage_units(work.stage);
        let mut wanted = Outputs::of(outputs.iter().map(|(layer, _)| layer.index()).collect());
        // A graph holds no converted matrices: a quantised base is converted again for the backward.
        let drops = self.numerics.frozen.quantises();
        let drop =
            |keeps: SavedGraph| SavedGraph { split: keeps.split || drops, leaves: keeps.leaves || drops, ..keeps };
        let keeps = keeps.map(drop);
        let tracked = keeps.map_or((first + units.len(), false), |keeps| (keeps.from, keeps.split));
        let (cache, shared) = (self.cache(iteration, work)?, self.shared(iteration, work)?);
        let (kept, end) = context.compute(|| {
            let pass = self.pass_context(iteration, work.microbatch, &context.device).with_cache(cache.clone());
            let parameters = self.computed(work.stage, parameters)?;
            let layers = Layers::new(first, units, &parameters).sharing(shared.as_ref());
            let (signal, kept) = if keeps.is_some_and(|keeps| keeps.offloads) {
                let (signal, saved) = passes::recorded_forward(layers, tracked.0, input, &pass, &mut wanted);
                // Offloaded activations have the storage type.
                let saved = saved.turned(|matrix| Stored::of(matrix, self.storage_dtype(work.stage)));
                (signal, Value::Saved(Box::new(saved)))
            } else {
                let (signal, graph) = passes::forward(layers, tracked, input, &pass, &mut wanted);
                if let Some(graph) = graph.as_ref().filter(|_| keeps.is_some_and(|keeps| keeps.leaves)) {
                    graph.forget();
                }
                (signal, Value::Graphs(graph.into_iter().collect()))
            };
            Ok::<_, TaskError>((kept, LastOutput::of(signal)))
        })??;
        let loss = end.loss.map(|loss| (work.microbatch, loss));
        let mut outcome = Outcome { loss, ..Outcome::default() };
        self.remember(&mut outcome, (iteration, work), (cache, end.answer))?;
        for (layer, buffer) in outputs {
            let made = wanted.found.iter().find(|(found, _)| *found == layer.index());
            let (_, matrix) =
                made.ok_or_else(|| TaskError::inconsistent(format!("{layer} has no output that could go on")))?;
            let matrix = Stored::of(matrix.clone(), self.storage_dtype(work.stage));
            self.put(&mut outcome, self.at(*buffer, iteration), Value::Matrix(Box::new(matrix)));
        }
        if let Some(keeps) = keeps {
            let graph = self.graph_bytes(work, keeps.from.clamp(first, first + units.len())..first + units.len());
            let bytes = kept.bytes().unwrap_or(graph);
            self.put_held(&mut outcome, (self.at(keeps.graph, iteration), bytes), kept);
        }
        Ok(outcome)
    }

    pub(super) fn recompute(
        &self,
        iteration: u32,
        work: Work,
        (layers, split, into): (LayerRange, bool, BufferId),
    ) -> Result<Outcome, TaskError> {
        let context = self.context(work.stage);
        let parameters = self.store.tensors(self.at(work.parameters, iteration))?;
        let input = self.input(iteration, work, &context.device)?;
        let end = layers.last().index() + 1;
        let graph = self.track(iteration, (work, split), (&parameters, end), input)?;
        let mut outcome = Outcome::default();
        let held = (self.at(into, iteration), self.graph_bytes(work, self.first_tracked(work.stage).min(end)..end));
        self.put_held(&mut outcome, held, Value::Graphs(graph.into_iter().collect()));
        Ok(outcome)
    }

    /// The graph of a stage's layers before `end`, without those that no backward runs through.
    fn track(
        &self,
        iteration: u32,
        (work, split): (Work, bool),
        (parameters, end): (&StoredTensors, usize),
        input: Signal,
    ) -> Result<Option<Tracked>, TaskError> {
        let context = self.context(work.stage);
        let (first, units) = self.stage_units(work.stage);
        let shared = self.shared(iteration, work)?;
        let start = self.first_tracked(work.stage);
        context.compute(|| {
            let pass = self.pass_context(iteration, work.microbatch, &context.device);
            let parameters = self.computed(work.stage, parameters.clone())?;
            let (layers, _) = Layers::new(first, units, &parameters).sharing(shared.as_ref()).split_at(end);
            Ok(passes::forward(layers, (start, split), input, &pass, &mut Outputs::default()).1)
        })?
    }

    /// The graphs of all layers that a backward runs through, in model order. Recomputes layers at
    /// the front of the stage whose graph no forward has kept.
    fn graphs(
        &self,
        iteration: u32,
        (work, split): (Work, bool),
        buffers: &[BufferId],
    ) -> Result<Vec<Tracked>, TaskError> {
        let mut graphs = Vec::new();
        for buffer in buffers {
            match self.store.take(self.at(*buffer, iteration)) {
                Some(Value::Graphs(found)) => graphs.extend(found),
                Some(Value::Saved(saved)) => graphs.push(self.graph_from(iteration, work, *saved)?),
                // A buffer beside offloaded activations is the stage's input, which is stored
                // separately.
                _ => {}
            }
        }
        let (first, units) = self.stage_units(work.stage);
        let start = self.first_tracked(work.stage);
        // No backward runs through layers before the first trained one.
        graphs.retain(|graph| graph.end() > start);
        graphs.sort_by_key(|graph| graph.first);
        let parameters = self.store.tensors(self.at(work.parameters, iteration))?;
        if graphs.iter().any(Tracked::borrows) {
            let parameters = self.computed(work.stage, parameters.clone())?;
            graphs.iter().for_each(|graph| graph.lend(Layers::new(first, units, &parameters)));
        }
        let covered = graphs.first().map_or(first + units.len(), |graph| graph.first);
        if start < covered {
            let context = self.context(work.stage);
            let input = self.input(iteration, work, &context.device)?;
            let graph = self.track(iteration, (work, split), (&parameters, covered), input)?;
            graphs.splice(0..0, graph);
        }
        Ok(graphs)
    }

    /// The graph of a stage's last layers, rebuilt from the activations that the forward recorded.
    fn graph_from(&self, iteration: u32, work: Work, saved: SavedActivations<Stored>) -> Result<Tracked, TaskError> {
        let context = self.context(work.stage);
        let parameters = self.store.tensors(self.at(work.parameters, iteration))?;
        let dtype = self.compute_dtype(work.stage);
        let saved = context.compute(|| saved.tried(|stored| stored.on(&context.device, dtype)))??;
        let input = match saved.input {
            Some(input) => Signal::Hidden(input),
            None => self.input(iteration, work, &context.device)?,
        };
        let (first, units) = self.stage_units(work.stage);
        let shared = self.shared(iteration, work)?;
        context.compute(|| {
            let pass = self
                .pass_context(iteration, work.microbatch, &context.device)
                .with_record(&ActivationRecord::of(saved.outputs));
            let parameters = self.computed(work.stage, parameters)?;
            let (_, layers) = Layers::new(first, units, &parameters).sharing(shared.as_ref()).split_at(saved.first);
            Ok(passes::tracked(layers, input, &pass, true, &mut Outputs::default()))
        })?
    }

    /// Empty gradients of a stage's layers before the first that its backward runs through.
    fn frozen_before(&self, stage: StageId, graphs: &[Tracked]) -> Tensors {
        let first = self.program.stages()[stage].layers.first().index();
        vec![Vec::new(); graphs.first().map_or(0, |graph| graph.first - first)]
    }

    fn seed(
        &self,
        iteration: u32,
        (work, crossing): (Work, BoundaryGradients),
        device: &Device,
    ) -> Result<Seed, TaskError> {
        Ok(match crossing.incoming {
            Some(buffer) => {
                let gradient = self.store.matrix(self.at(buffer, iteration))?;
                Seed::Gradient(Box::new(gradient.on(device, self.compute_dtype(work.stage))?))
            }
            None => Seed::Loss(f64::from(self.scale(iteration)) / self.program.shape().microbatches as f64),
        })
    }

    pub(super) fn backward(
        &self,
        iteration: u32,
        work: Work,
        graphs: &[BufferId],
        (sums, crossing): (GradientSums, BoundaryGradients),
    ) -> Result<Outcome, TaskError> {
        let context = self.context(work.stage);
        let graphs = self.graphs(iteration, (work, false), graphs)?;
        let frozen = self.frozen_before(work.stage, &graphs);
        let seed = self.seed(iteration, (work, crossing), &context.device)?;
        let before = self.before(iteration, sums)?;
        let gradients = context.compute(|| {
            let gradients = passes::backward(graphs, seed);
            let parameters = frozen.into_iter().chain(gradients.parameters).collect();
            before.add(Gradients { parameters, ..gradients }, (&context.device, self.gradient_dtype(work.stage)))
        })??;
        let mut outcome = Outcome::default();
        let input = self.put_gradients(&mut outcome, (iteration, sums), gradients)?;
        if let Some(buffer) = crossing.outgoing {
            let gradient = input.ok_or("it has no input that could have a gradient")?;
            let gradient = Stored::of(gradient, self.storage_dtype(work.stage));
            self.put(&mut outcome, self.at(buffer, iteration), Value::Matrix(Box::new(gradient)));
        }
        Ok(outcome)
    }

    fn before(&self, iteration: u32, sums: GradientSums) -> Result<SumsBefore, TaskError> {
        let of = |sum: Sum| sum.adds.then(|| self.store.take_tensors(self.at(sum.buffer, iteration))).transpose();
        Ok(SumsBefore { own: of(sums.own)?, shared: sums.shared.map(of).transpose()?.flatten() })
    }

    /// Stores the sums of gradients; returns the gradient of the input.
    fn put_gradients(
        &self,
        outcome: &mut Outcome,
        (iteration, sums): (u32, GradientSums),
        gradients: SumsAfter,
    ) -> Result<Option<Matrix>, TaskError> {
        self.put(outcome, self.at(sums.own.buffer, iteration), Value::Tensors(gradients.parameters));
        if let Some(sum) = sums.shared {
            let gradient = gradients.shared.ok_or("it makes no gradient of shared parameters")?;
            self.put(outcome, self.at(sum.buffer, iteration), Value::Tensors(vec![vec![gradient]]));
        }
        Ok(gradients.input)
    }

    pub(super) fn backward_input(
        &self,
        iteration: u32,
        work: Work,
        buffers: &[BufferId],
        crossing: BoundaryGradients,
    ) -> Result<Outcome, TaskError> {
        let context = self.context(work.stage);
        let graphs = self.graphs(iteration, (work, true), buffers)?;
        let frozen = self.frozen_before(work.stage, &graphs);
        let seed = self.seed(iteration, (work, crossing), &context.device)?;
        let (mut later, input) = context.compute(|| passes::backward_input(graphs, seed))?;
        let mut outcome = Outcome::default();
        later.layers.splice(..0, frozen.into_iter().map(|_| Vec::new()));
        self.store.put(self.at(buffers[0], iteration), Value::Pending(Box::new(later)));
        if let Some(buffer) = crossing.outgoing {
            let gradient = input.ok_or("it has no input that could have a gradient")?;
            let gradient = Stored::of(gradient, self.storage_dtype(work.stage));
            self.put(&mut outcome, self.at(buffer, iteration), Value::Matrix(Box::new(gradient)));
        }
        Ok(outcome)
    }

    pub(super) fn backward_weight(
        &self,
        iteration: u32,
        stage: StageId,
        (later, sums): (BufferId, GradientSums),
    ) -> Result<Outcome, TaskError> {
        let later = self.store.take_as(self.at(later, iteration), |value| match value {
            Value::Pending(later) => Some(*later),
            _ => None,
        })?;
        let before = self.before(iteration, sums)?;
        let context = self.context(stage);
        let gradients = context
            .compute(|| before.add(passes::backward_weight(later), (&context.device, self.gradient_dtype(stage))))??;
        let mut outcome = Outcome::default();
        self.put_gradients(&mut outcome, (iteration, sums), gradients)?;
        Ok(outcome)
    }
}

/// Sums of gradients before a microbatch.
struct SumsBefore {
    own: Option<StoredTensors>,
    shared: Option<StoredTensors>,
}

/// Sums of gradients after a microbatch, and the gradient of the input.
struct SumsAfter {
    parameters: StoredTensors,
    shared: Option<Stored>,
    input: Option<Matrix>,
}

impl SumsBefore {
    /// The sums on `device`, which stores numbers of `width`.
    fn add(self, more: Gradients, (device, dtype): (&Device, FloatDType)) -> Result<SumsAfter, TaskError> {
        let sum = |before: Option<StoredTensors>, more: Tensors| {
            let sum = match before {
                Some(before) => passes::accumulate(all_own(before, device)?, more),
                None => more,
            };
            Ok::<_, TaskError>(store_all(sum, dtype))
        };
        let shared = more.shared.map(|more| sum(self.shared, vec![vec![more]])).transpose()?;
        let shared = shared.and_then(|mut layers| layers.pop()?.pop());
        Ok(SumsAfter { parameters: sum(self.own, more.parameters)?, shared, input: more.input })
    }
}
