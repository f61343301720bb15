//! Times of whole layers, by the very passes that the executor runs.

use super::{
    MeasuredLayer, Width,
    clock::{Clock, sample},
    kernels::{filled, finish},
};
use crate::{
    Data, Draw, Tokens,
    layers::{Feed, Matrix, Reading, Signal, Tape, Unit, cast, initial, lone_units},
    passes::{self, Layers, Outputs, Seed, Tensors},
};
use burn::tensor::{Device, Tensor, TensorData};
use spipe_base::{Bytes, Faults, FlopsPerSecond, LayerId, Seconds};
use spipe_model::{Batch, Layer, LayerKind, LayerWork, Model, Op, Precision};
use std::time::{Duration, Instant};

/// One kind of layer.
pub(super) struct Kind<'a> {
    pub signature: String,
    pub layer: &'a Layer,
    pub unit: Unit,
    pub model: &'a Model,
    /// How many of them run in a row: as many as the model has, if they are not too large.
    pub copies: usize,
    pub batch: Batch,
    /// Shares of the time for its passes in a training.
    pub shares: usize,
    work: LayerWork,
}

impl Kind<'_> {
    /// Those of the widths of a device in which its layers are computed.
    pub fn widths<'w>(&self, widths: &'w [Width]) -> &'w [Width] {
        if Reading::of(self.model).may_be_narrow() { widths } else { &widths[..1] }
    }

    /// How many of them run in a row for a pass of a training.
    fn trained(&self) -> usize {
        self.copies.min(MOST_TRAINED)
    }

    /// So many copies.
    pub fn units(&self, copies: usize) -> Vec<Unit> {
        (0..copies as u32).map(|index| self.unit.copy(self.model, index)).collect()
    }

    /// Those of each copy.
    pub fn parameters(&self, copies: usize, (device, (_, width)): (&Device, Width)) -> Tensors {
        let copy = |copy: usize| {
            let tensor = |parameter: &crate::layers::Parameter| {
                let numbers = initial(copy as u64, LayerId::new(0), parameter);
                cast(Tensor::from_data(TensorData::new(numbers, parameter.shape), device), width)
            };
            self.unit.parameters().iter().map(tensor).collect()
        };
        (0..copies).map(copy).collect()
    }
}

/// Copies in a row at most where passes of a training are measured: their weights no longer fit into second-level caches.
const MOST_TRAINED: usize = 4;
/// Numbers that the parameters of all copies come to at most.
const MOST_NUMBERS: u64 = 64 << 20;

/// Shares of the time for each kind on average, beyond one: what takes most of an iteration gets most of them.
const SHARES: f64 = 2.0;

/// The distinct layers of `model` in `batch`.
pub(super) fn kinds(model: &Model, batch: Batch) -> Result<Vec<Kind<'_>>, Faults> {
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    let mut weights: Vec<f64> = Vec::new();
    for (layer, unit) in model.layers().iter().zip(lone_units(model)?) {
        let signature = layer.signature(batch);
        let chains = layer.inputs.len() == 1 && shape(model, &layer.inputs, batch) == shape(model, &[unit.id()], batch);
        let most = if chains { (MOST_NUMBERS / layer.parameters.max(1)).max(1) as usize } else { 1 };
        let work = layer.work(batch);
        match kinds.iter().position(|kind| kind.signature == signature) {
            Some(index) => {
                kinds[index].copies = (kinds[index].copies + 1).min(most);
                weights[index] += flops(&work);
            }
            None => {
                weights.push(flops(&work));
                kinds.push(Kind { signature, layer, unit, model, copies: 1, batch, shares: 1, work });
            }
        }
    }
    let shares = SHARES * kinds.len() as f64 / weights.iter().sum::<f64>().max(1.0);
    for (kind, weight) in kinds.iter_mut().zip(weights) {
        kind.shares += (weight * shares).round() as usize;
    }
    Ok(kinds)
}

/// What the outputs of `layers` come to side by side.
pub(super) fn shape(model: &Model, layers: &[LayerId], batch: Batch) -> [usize; 2] {
    let numbers = layers.iter().map(|layer| model.layers()[*layer].boundary(batch, Precision::Fp32));
    let numbers = numbers.sum::<Bytes>().get() / Precision::Fp32.bytes();
    let tokens = |layer: &Layer| match layer.kind {
        LayerKind::Unet(_) => 1,
        _ => layer.tokens.unwrap_or(batch.seq_len),
    };
    let rows = batch.microbatch * layers.first().map_or(1, |layer| tokens(&model.layers()[*layer]));
    [rows as usize, (numbers / rows) as usize]
}

/// Forward and backward of `kind`; the error says why it was left out.
pub(super) fn measure(
    kind: &Kind<'_>,
    (device, width): (&Device, Width),
    clock: &mut Clock,
    best: Option<FlopsPerSecond>,
) -> Result<MeasuredLayer, String> {
    let share = clock.take(kind.shares);
    // Once to warm up, and once at least; large products reach the best rate that has been seen.
    let expected = best.map_or(0.0, |rate| 2.0 * kind.trained() as f64 * flops(&kind.work) / rate.get());
    if expected > share.as_secs_f64().max(0.2) {
        return Err(format!(
            "`{}` would take {:.1} s, there were {:.1} s left for it",
            kind.signature,
            expected,
            share.as_secs_f64()
        ));
    }
    let bench = Bench::new(kind, (device, width))?;
    let start = Instant::now();
    let mut sum = bench.gradients();
    let mut times: [Vec<Duration>; 5] = Default::default();
    bench.run(&mut sum);
    while times[0].is_empty() || (times[0].len() < 60 && start.elapsed() < share) {
        let found = bench.run(&mut sum);
        times.iter_mut().zip(found).for_each(|(times, found)| times.push(found));
    }
    let [forward, backward, input, weight, replay] = times.map(sample);
    let (forward, backward) = (clock.note(forward), clock.note(backward));
    let per_layer = 1.0 / kind.trained() as f64;
    let input_share = input.median / (input.median + weight.median);
    Ok(MeasuredLayer {
        signature: kind.signature.clone(),
        data_type: width.0,
        forward: forward.median * per_layer,
        backward_input: backward.median * (per_layer * input_share),
        backward_weight: backward.median * (per_layer * (1.0 - input_share)),
        replay: replay.median * per_layer,
        spread: forward.spread.max(backward.spread),
    })
}

fn flops(work: &LayerWork) -> f64 {
    total(&work.forward) + total(&work.backward_input) + total(&work.backward_weight)
}

fn total(ops: &[Op]) -> f64 {
    ops.iter().map(|op| op.flops().get()).sum()
}

/// Parameters and inputs of some copies of a layer.
struct Bench<'a> {
    units: Vec<Unit>,
    parameters: Tensors,
    input: Signal,
    gradient: Option<Matrix>,
    feed: Feed,
    device: &'a Device,
}

impl<'a> Bench<'a> {
    fn new(kind: &Kind<'_>, (device, width): (&'a Device, Width)) -> Result<Self, String> {
        let activation = |layers: &[LayerId]| cast(filled(device, shape(kind.model, layers, kind.batch)), width.1);
        let inputs = &kind.layer.inputs;
        let text = || Tokens::bytes(&vec![1; kind.batch.seq_len as usize + 1], kind.batch.seq_len).map(Data::from);
        let data = Data::synthetic(kind.model).map_or_else(text, Ok).map_err(|error| error.to_string())?;
        let draw = Draw { seed: 0, step: 0, microbatch: 0 };
        let microbatch = data.microbatch(draw, kind.batch.microbatch as usize);
        Ok(Self {
            units: kind.units(kind.trained()),
            parameters: kind.parameters(kind.trained(), (device, width)),
            input: if inputs.is_empty() { Signal::Tokens } else { Signal::Hidden(activation(inputs)) },
            gradient: (!kind.unit.yields_loss()).then(|| activation(&[kind.unit.id()])),
            feed: Feed::new(&microbatch, &Reading::of(kind.model), device),
            device,
        })
    }

    /// Zeros to accumulate into.
    fn gradients(&self) -> Option<Tensors> {
        Some(self.parameters.iter().map(|layer| layer.iter().map(Tensor::zeros_like).collect()).collect())
    }

    /// One forward and one backward with accumulation; the two halves of a backward that is split; and making the graph again
    /// for the latter from what a forward wrote down.
    fn run(&self, sum: &mut Option<Tensors>) -> [Duration; 5] {
        let layers = Layers::new(0, &self.units, &self.parameters);
        let (input, seed) = (
            || self.input.clone(),
            || match &self.gradient {
                Some(gradient) => Seed::Gradient(Box::new(gradient.clone())),
                None => Seed::Loss(1.0),
            },
        );
        let (graph, forward) =
            self.timed(|| passes::tracked(layers, input(), &self.feed, false, &mut Outputs::default()));
        let (gradients, backward) = self.timed(|| passes::backward(vec![graph], seed()));
        let mut add = |more: Tensors| {
            let before = sum.take().unwrap_or_default();
            *sum = Some(passes::accumulate(before, more));
        };
        let ((), added) = self.timed(|| add(gradients.parameters));
        let (_, record) = passes::recorded_forward(layers, 0, input(), &self.feed, &mut Outputs::default());
        let feed = self.feed.taped(&Tape::of(record.outputs));
        let (graph, replay) = self.timed(|| passes::tracked(layers, input(), &feed, true, &mut Outputs::default()));
        let ((later, gradient), first) = self.timed(|| passes::backward_input(vec![graph], seed()));
        drop(gradient);
        let ((), second) = self.timed(|| add(passes::backward_weight(later).parameters));
        [forward, backward + added, first, second, replay]
    }

    /// What `work` makes, and how long it takes until the device has it.
    fn timed<T>(&self, work: impl FnOnce() -> T) -> (T, Duration) {
        let start = Instant::now();
        let made = work();
        finish(self.device, ());
        (made, start.elapsed())
    }
}

impl MeasuredLayer {
    /// The whole backward.
    pub fn backward(&self) -> Seconds {
        self.backward_input + self.backward_weight
    }
}
