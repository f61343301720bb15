//! Forward, recompute and backward of a stage on one microbatch.

use super::{Interpreter, infer::End};
use crate::{
    layers::{Matrix, Signal, Tape, Unit},
    passes::{self, Gradients, Layers, Outputs, Record, Seed, Tracked},
    site::Site,
    state::Outcome,
    store::Value,
    stored::{Stored, StoredTensors, all_on, store_all},
    task::{Crossing, Keeps, Sum, Sums, Work},
};
use burn::tensor::{DType, Device, FloatDType};
use spipe_base::{BufferId, Bytes, LayerId, LayerRange, StageId};

impl Interpreter<'_> {
    fn site(&self, stage: StageId) -> &Site {
        &self.sites[&self.program.stages()[stage].device]
    }

    fn stage_units(&self, stage: StageId) -> (usize, &[Unit]) {
        let layers = self.program.stages()[stage].layers;
        (layers.first().index(), &self.units[layers.first().index()..=layers.last().index()])
    }

    /// The first layer of a stage that a backward runs through.
    fn first_tracked(&self, stage: StageId) -> usize {
        self.program.stages()[stage].layers.first().index().max(self.program.shape().without_backward)
    }

    /// What a stage computes on: what has arrived, or the tokens.
    fn input(&self, iteration: u32, work: Work, device: &Device) -> Result<Signal, String> {
        let width = self.computed_by(work.stage);
        Ok(match work.input {
            Some(buffer) => Signal::Hidden(self.store.matrix(self.at(buffer, iteration))?.on(device, width)?),
            None => Signal::Tokens,
        })
    }

    /// An estimate of what the graphs of some layers of a stage keep beside the stage's input, which is one with the buffer that it
    /// came in unless it is computed with in another width.
    fn kept(&self, work: Work, layers: std::ops::Range<usize>) -> Bytes {
        let (stage, begins) = (work.stage, layers.start == self.stage_units(work.stage).0);
        let how = (self.site(stage).has_kernels(), DType::from(self.computed_by(stage)).size() as u64);
        let same = begins && self.computed_by(stage) == self.held_by(stage);
        let input = work.input.filter(|_| same).map_or(Bytes::ZERO, |input| self.program.buffers()[input].bytes);
        self.units[layers].iter().map(|unit| unit.kept(self.batch, how)).sum::<Bytes>().saturating_sub(input)
    }

    pub(super) fn forward(
        &self,
        iteration: u32,
        work: Work,
        (outputs, keeps): (&[(LayerId, BufferId)], Option<Keeps>),
    ) -> Result<Outcome, String> {
        let site = self.site(work.stage);
        let parameters = self.store.tensors(self.at(work.parameters, iteration))?;
        let input = self.input(iteration, work, &site.device)?;
        let (first, units) = self.stage_units(work.stage);
        let mut wanted = Outputs::of(outputs.iter().map(|(layer, _)| layer.index()).collect());
        let tracked = keeps.map_or((first + units.len(), false), |keeps| (keeps.from, keeps.split));
        let (recall, shared) = (self.recall(iteration, work)?, self.shared(iteration, work)?);
        let (kept, end) = site.compute(|| {
            let feed = self.feed(iteration, work.microbatch, &site.device).recalling(recall.clone());
            let parameters = self.computed(work.stage, parameters)?;
            let layers = Layers::new(first, units, &parameters).sharing(shared.as_ref());
            let (signal, kept) = if keeps.is_some_and(|keeps| keeps.record) {
                let (signal, record) = passes::recorded_forward(layers, tracked.0, input, &feed, &mut wanted);
                // What leaves is as narrow as what stays.
                let record = record.turned(|matrix| Stored::of(matrix, self.held_by(work.stage)));
                (signal, Value::Record(Box::new(record)))
            } else {
                let (signal, graph) = passes::forward(layers, tracked, input, &feed, &mut wanted);
                if let Some(graph) = graph.as_ref().filter(|_| keeps.is_some_and(|keeps| keeps.leaves)) {
                    graph.forget();
                }
                (signal, Value::Graphs(graph.into_iter().collect()))
            };
            Ok::<_, String>((kept, End::of(signal)))
        })??;
        let loss = end.loss.map(|loss| (work.microbatch, loss));
        let mut outcome = Outcome { loss, ..Outcome::default() };
        self.remember(&mut outcome, (iteration, work), (recall, end.answer))?;
        for (layer, buffer) in outputs {
            let made = wanted.found.iter().find(|(found, _)| *found == layer.index());
            let (_, matrix) = made.ok_or_else(|| format!("{layer} has no output that could go on"))?;
            let matrix = Stored::of(matrix.clone(), self.held_by(work.stage));
            self.put(&mut outcome, self.at(*buffer, iteration), Value::Matrix(Box::new(matrix)));
        }
        if let Some(keeps) = keeps {
            let graph = self.kept(work, keeps.from.clamp(first, first + units.len())..first + units.len());
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
    ) -> Result<Outcome, String> {
        let site = self.site(work.stage);
        let parameters = self.store.tensors(self.at(work.parameters, iteration))?;
        let input = self.input(iteration, work, &site.device)?;
        let end = layers.last().index() + 1;
        let graph = self.track(iteration, (work, split), (&parameters, end), input)?;
        let mut outcome = Outcome::default();
        let held = (self.at(into, iteration), self.kept(work, self.first_tracked(work.stage).min(end)..end));
        self.put_held(&mut outcome, held, Value::Graphs(graph.into_iter().collect()));
        Ok(outcome)
    }

    /// The graph of a stage's layers before `end`, but for those that no backward runs through.
    fn track(
        &self,
        iteration: u32,
        (work, split): (Work, bool),
        (parameters, end): (&StoredTensors, usize),
        input: Signal,
    ) -> Result<Option<Tracked>, String> {
        let site = self.site(work.stage);
        let (first, units) = self.stage_units(work.stage);
        let shared = self.shared(iteration, work)?;
        let start = self.first_tracked(work.stage);
        site.compute(|| {
            let feed = self.feed(iteration, work.microbatch, &site.device);
            let parameters = self.computed(work.stage, parameters.clone())?;
            let (layers, _) = Layers::new(first, units, &parameters).sharing(shared.as_ref()).split_at(end);
            Ok(passes::forward(layers, (start, split), input, &feed, &mut Outputs::default()).1)
        })?
    }

    /// The graphs of all layers that a backward runs through, in model order. Layers at the front of the stage that no forward
    /// has kept a graph of run again here.
    fn graphs(
        &self,
        iteration: u32,
        (work, split): (Work, bool),
        buffers: &[BufferId],
    ) -> Result<Vec<Tracked>, String> {
        let mut graphs = Vec::new();
        for buffer in buffers {
            match self.store.take(self.at(*buffer, iteration)) {
                Some(Value::Graphs(found)) => graphs.extend(found),
                Some(Value::Record(record)) => graphs.push(self.play(iteration, work, *record)?),
                // What is saved beside a record is the stage's input, which has a buffer of its own.
                _ => {}
            }
        }
        let (first, units) = self.stage_units(work.stage);
        let start = self.first_tracked(work.stage);
        // Of layers at which nothing trains there is nothing to go through, computed again or not.
        graphs.retain(|graph| graph.end() > start);
        graphs.sort_by_key(|graph| graph.first);
        let parameters = self.store.tensors(self.at(work.parameters, iteration))?;
        if graphs.iter().any(Tracked::borrows) {
            let parameters = self.computed(work.stage, parameters.clone())?;
            graphs.iter().for_each(|graph| graph.lend(Layers::new(first, units, &parameters)));
        }
        let covered = graphs.first().map_or(first + units.len(), |graph| graph.first);
        if start < covered {
            let site = self.site(work.stage);
            let input = self.input(iteration, work, &site.device)?;
            let graph = self.track(iteration, (work, split), (&parameters, covered), input)?;
            graphs.splice(0..0, graph);
        }
        Ok(graphs)
    }

    /// The graph of a stage's last layers, from what was written down when they were computed.
    fn play(&self, iteration: u32, work: Work, record: Record<Stored>) -> Result<Tracked, String> {
        let site = self.site(work.stage);
        let parameters = self.store.tensors(self.at(work.parameters, iteration))?;
        let width = self.computed_by(work.stage);
        let record = site.compute(|| record.tried(|stored| stored.on(&site.device, width)))??;
        let input = match record.input {
            Some(input) => Signal::Hidden(input),
            None => self.input(iteration, work, &site.device)?,
        };
        let (first, units) = self.stage_units(work.stage);
        let shared = self.shared(iteration, work)?;
        site.compute(|| {
            let feed = self.feed(iteration, work.microbatch, &site.device).taped(&Tape::of(record.outputs));
            let parameters = self.computed(work.stage, parameters)?;
            let (_, layers) = Layers::new(first, units, &parameters).sharing(shared.as_ref()).split_at(record.first);
            Ok(passes::tracked(layers, input, &feed, true, &mut Outputs::default()))
        })?
    }

    /// Gradients of a stage's layers before those that its backward runs through: none.
    fn frozen_before(&self, stage: StageId, graphs: &[Tracked]) -> passes::Tensors {
        let first = self.program.stages()[stage].layers.first().index();
        vec![Vec::new(); graphs.first().map_or(0, |graph| graph.first - first)]
    }

    fn seed(&self, iteration: u32, (work, crossing): (Work, Crossing), device: &Device) -> Result<Seed, String> {
        Ok(match crossing.incoming {
            Some(buffer) => {
                let gradient = self.store.matrix(self.at(buffer, iteration))?;
                Seed::Gradient(Box::new(gradient.on(device, self.computed_by(work.stage))?))
            }
            None => Seed::Loss(f64::from(self.scale(iteration)) / self.program.shape().microbatches as f64),
        })
    }

    pub(super) fn backward(
        &self,
        iteration: u32,
        work: Work,
        graphs: &[BufferId],
        (sums, crossing): (Sums, Crossing),
    ) -> Result<Outcome, String> {
        let site = self.site(work.stage);
        let graphs = self.graphs(iteration, (work, false), graphs)?;
        let frozen = self.frozen_before(work.stage, &graphs);
        let seed = self.seed(iteration, (work, crossing), &site.device)?;
        let before = self.before(iteration, sums)?;
        let gradients = site.compute(|| {
            let gradients = passes::backward(graphs, seed);
            let parameters = frozen.into_iter().chain(gradients.parameters).collect();
            before.add(Gradients { parameters, ..gradients }, (&site.device, self.held_by(work.stage)))
        })??;
        let mut outcome = Outcome::default();
        let input = self.put_gradients(&mut outcome, (iteration, sums), gradients)?;
        if let Some(buffer) = crossing.outgoing {
            let gradient = input.ok_or("it has no input that could have a gradient")?;
            let gradient = Stored::of(gradient, self.held_by(work.stage));
            self.put(&mut outcome, self.at(buffer, iteration), Value::Matrix(Box::new(gradient)));
        }
        Ok(outcome)
    }

    fn before(&self, iteration: u32, sums: Sums) -> Result<Before, String> {
        let of = |sum: Sum| sum.adds.then(|| self.store.take_tensors(self.at(sum.buffer, iteration))).transpose();
        Ok(Before { own: of(sums.own)?, shared: sums.shared.map(of).transpose()?.flatten() })
    }

    /// Puts what gradients have come to; what is left is that of the input.
    fn put_gradients(
        &self,
        outcome: &mut Outcome,
        (iteration, sums): (u32, Sums),
        gradients: Summed,
    ) -> Result<Option<Matrix>, String> {
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
        crossing: Crossing,
    ) -> Result<Outcome, String> {
        let site = self.site(work.stage);
        let graphs = self.graphs(iteration, (work, true), buffers)?;
        let frozen = self.frozen_before(work.stage, &graphs);
        let seed = self.seed(iteration, (work, crossing), &site.device)?;
        let (mut later, input) = site.compute(|| passes::backward_input(graphs, seed))?;
        let mut outcome = Outcome::default();
        later.layers.splice(..0, frozen.into_iter().map(|_| Vec::new()));
        self.store.put(self.at(buffers[0], iteration), Value::Later(Box::new(later)));
        if let Some(buffer) = crossing.outgoing {
            let gradient = input.ok_or("it has no input that could have a gradient")?;
            let gradient = Stored::of(gradient, self.held_by(work.stage));
            self.put(&mut outcome, self.at(buffer, iteration), Value::Matrix(Box::new(gradient)));
        }
        Ok(outcome)
    }

    pub(super) fn backward_weight(
        &self,
        iteration: u32,
        stage: StageId,
        (later, sums): (BufferId, Sums),
    ) -> Result<Outcome, String> {
        let later = self.store.take_as(self.at(later, iteration), |value| match value {
            Value::Later(later) => Some(*later),
            _ => None,
        })?;
        let before = self.before(iteration, sums)?;
        let site = self.site(stage);
        let gradients =
            site.compute(|| before.add(passes::backward_weight(later), (&site.device, self.held_by(stage))))??;
        let mut outcome = Outcome::default();
        self.put_gradients(&mut outcome, (iteration, sums), gradients)?;
        Ok(outcome)
    }
}

/// What gradients have come to so far.
struct Before {
    own: Option<StoredTensors>,
    shared: Option<StoredTensors>,
}

/// What they come to then, and the gradient of the input.
struct Summed {
    parameters: StoredTensors,
    shared: Option<Stored>,
    input: Option<Matrix>,
}

impl Before {
    /// The sums on `device`, which stores numbers of `width`.
    fn add(self, more: Gradients, (device, width): (&Device, FloatDType)) -> Result<Summed, String> {
        let sum = |before: Option<StoredTensors>, more: passes::Tensors| {
            let sum = match before {
                Some(before) => passes::accumulate(all_on(before, device, FloatDType::F32)?, more),
                None => more,
            };
            Ok::<_, String>(store_all(sum, width))
        };
        let shared = more.shared.map(|more| sum(self.shared, vec![vec![more]])).transpose()?;
        let shared = shared.and_then(|mut layers| layers.pop()?.pop());
        Ok(Summed { parameters: sum(self.own, more.parameters)?, shared, input: more.input })
    }
}
