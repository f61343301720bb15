//! Times of whole layers, measured with the passes that the executor runs.

use super::{
    MeasuredLayer, Width,
    clock::{Clock, sample, warm_up},
    kernels::{filled, finish},
};
use crate::{
    data::{Data, Draw, Tokens},
    nn::{
        Matrix, Tensors, cast,
        layers::{ActivationRecord, PassContext, Reading, Signal, Unit, initial, lone_units},
        passes::{self, Layers, Outputs, Seed},
    },
};
use burn::tensor::{Device, Tensor, TensorData};
use spipe_base::{Bytes, Faults, FlopsPerSecond, LayerId, Seconds};
use spipe_model::{Batch, Layer, LayerKind, LayerWork, Model, Op, Precision};
use std::time::{Duration, Instant};

/// A kind of layer: layers with the same signature.
pub(super) struct Kind<'a> {
    pub signature: String,
    pub layer: &'a Layer,
    pub unit: Unit,
    pub model: &'a Model,
    /// Number of copies in a chain: as many as the model has, unless they are too large.
    pub copies: usize,
    pub batch: Batch,
    /// Shares of the time for its training passes.
    pub shares: usize,
    work: LayerWork,
}

impl Kind<'_> {
    /// The types, among those of a device, in which its layers are computed.
    pub fn widths<'w>(&self, widths: &'w [Width]) -> &'w [Width] {
        if Reading::of(self.model).supports_half() { widths } else { &widths[..1] }
    }

    /// Number of copies in a chain for training passes.
    fn trained(&self) -> usize {
        self.copies.min(MOST_TRAINED)
    }

    /// A chain of copies.
    pub fn units(&self, copies: usize) -> Vec<Unit> {
        (0..copies as u32).map(|index| self.unit.copy(self.model, index)).collect()
    }

    /// The parameters of a chain of copies.
    pub fn parameters(&self, copies: usize, (device, (_, width)): (&Device, Width)) -> Tensors {
        let copy = |copy: usize| {
            let tensor = |parameter: &crate::nn::layers::Parameter| {
                let numbers = initial(copy as u64, LayerId::new(0), parameter);
                cast(Tensor::from_data(TensorData::new(numbers, parameter.shape), device), width)
            };
            self.unit.parameters().iter().map(tensor).collect()
        };
        (0..copies).map(copy).collect()
    }
}

/// Largest number of copies in a chain for training passes: their weights exceed second-level
/// caches.
const MOST_TRAINED: usize = 4;
/// Largest number of parameters of all copies together.
const MOST_NUMBERS: u64 = 64 << 20;

/// Average shares of the time per kind, beyond one, in proportion to the kind's work.
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

/// The shape of the outputs of `layers`, side by side.
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

/// Times of forward and backward of `kind`; the error is the reason why it was skipped.
pub(super) fn measure(
    kind: &Kind<'_>,
    (device, width): (&Device, Width),
    clock: &mut Clock,
    best: Option<FlopsPerSecond>,
) -> Result<MeasuredLayer, String> {
    let share = clock.take(kind.shares);
    // Once to warm up, and at least once; large products reach the best rate measured so far.
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
    let mut sum = bench.gradients();
    let mut times: [Vec<Duration>; 5] = Default::default();
    clock.exclude(warm_up(|| {
        bench.run(&mut sum);
    }));
    let start = Instant::now();
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
        // The halves of the executor add up to its whole backward.
        split: Seconds::ZERO,
        spread: forward.spread.max(backward.spread),
    })
}

fn flops(work: &LayerWork) -> f64 {
    total(&work.forward) + total(&work.backward_input) + total(&work.backward_weight)
}

fn total(ops: &[Op]) -> f64 {
    ops.iter().map(|op| op.flops().get()).sum()
}

/// A chain of copies, with parameters and inputs.
struct Bench<'a> {
    units: Vec<Unit>,
    parameters: Tensors,
    input: Signal,
    gradient: Option<Matrix>,
    pass: PassContext,
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
            pass: PassContext::new(&microbatch, &Reading::of(kind.model), device),
            device,
        })
    }

    /// Zero gradients to accumulate into.
    fn gradients(&self) -> Option<Tensors> {
        Some(self.parameters.iter().map(|layer| layer.iter().map(Tensor::zeros_like).collect()).collect())
    }

    /// Durations of a forward, of a backward with accumulation, of the two halves of a split
    /// backward, and of rebuilding its graph from recorded activations.
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
            self.timed(|| passes::tracked(layers, input(), &self.pass, false, &mut Outputs::default()));
        let (gradients, backward) = self.timed(|| passes::backward(vec![graph], seed()));
        let mut add = |more: Tensors| {
            let before = sum.take().unwrap_or_default();
            *sum = Some(passes::accumulate(before, more));
        };
        let ((), added) = self.timed(|| add(gradients.parameters));
        let (_, saved) = passes::recorded_forward(layers, 0, input(), &self.pass, &mut Outputs::default());
        let pass = self.pass.with_record(&ActivationRecord::of(saved.outputs));
        let (graph, replay) = self.timed(|| passes::tracked(layers, input(), &pass, true, &mut Outputs::default()));
        let ((later, gradient), first) = self.timed(|| passes::backward_input(vec![graph], seed()));
        drop(gradient);
        let ((), second) = self.timed(|| add(passes::backward_weight(later).parameters));
        [forward, backward + added, first, second, replay]
    }

    /// The result of `work`, and its duration on the device.
    fn timed<T>(&self, work: impl FnOnce() -> T) -> (T, Duration) {
        let start = Instant::now();
        let made = work();
        finish(self.device, ());
        (made, start.elapsed())
    }
}

impl MeasuredLayer {
    /// Time of the whole backward.
    pub fn backward(&self) -> Seconds {
        self.backward_input + self.backward_weight
    }
}
