//! Times of whole layers, by the very passes that the executor runs.

use super::{
    MeasuredLayer,
    clock::{Clock, sample},
    kernels::{filled, finish},
};
use crate::{
    data,
    layers::{Feed, Matrix, Signal, Unit, initial, units},
    passes::{self, Seed, Tensors},
};
use burn::tensor::{Device, Tensor, TensorData};
use spipe_base::{Faults, FlopsPerSecond, LayerId, Seconds};
use spipe_model::{Batch, Layer, LayerKind, LayerWork, Model, Op};
use std::time::{Duration, Instant};

/// One kind of layer.
pub(super) struct Kind<'a> {
    pub signature: String,
    layer: &'a Layer,
    unit: Unit,
    /// How many of them are run in a row: weights then come from as far away as in a run.
    copies: usize,
    batch: Batch,
    work: LayerWork,
}

/// Copies in a row at most.
const MOST_COPIES: usize = 4;
/// Numbers that the parameters of all copies come to at most.
const MOST_NUMBERS: u64 = 64 << 20;

/// The distinct layers of `model` in `batch`.
pub(super) fn kinds(model: &Model, batch: Batch) -> Result<Vec<Kind<'_>>, Faults> {
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    for (layer, unit) in model.layers().iter().zip(units(model)?) {
        let signature = layer.signature(batch);
        let most = (MOST_NUMBERS / layer.parameters.max(1)).clamp(1, MOST_COPIES as u64) as usize;
        match kinds.iter_mut().find(|kind| kind.signature == signature) {
            Some(kind) => kind.copies = (kind.copies + 1).min(most),
            None => kinds.push(Kind { signature, layer, unit, copies: 1, batch, work: layer.work(batch) }),
        }
    }
    Ok(kinds)
}

/// Forward and backward of `kind`; the error says why it was left out.
pub(super) fn measure(
    kind: &Kind<'_>,
    device: &Device,
    clock: &mut Clock,
    best: Option<FlopsPerSecond>,
) -> Result<MeasuredLayer, String> {
    let share = clock.take(3);
    // Once to warm up, and once at least; large products reach the best rate that has been seen.
    let expected = best.map_or(0.0, |rate| 2.0 * kind.copies as f64 * flops(&kind.work) / rate.get());
    if expected > share.as_secs_f64().max(0.2) {
        return Err(format!(
            "`{}` would take {:.1} s, there were {:.1} s left for it",
            kind.signature,
            expected,
            share.as_secs_f64()
        ));
    }
    let bench = Bench::new(kind, device);
    let start = Instant::now();
    let mut sum = bench.gradients();
    let (mut forwards, mut backwards) = (Vec::new(), Vec::new());
    bench.run(&mut sum);
    while forwards.is_empty() || (forwards.len() < 60 && start.elapsed() < share) {
        let [forward, backward] = bench.run(&mut sum);
        forwards.push(forward);
        backwards.push(backward);
    }
    let (forward, backward) = (clock.note(sample(forwards)), clock.note(sample(backwards)));
    let per_layer = 1.0 / kind.copies as f64;
    let (whole, input) = (backward.median * per_layer, input_share(&kind.work));
    Ok(MeasuredLayer {
        signature: kind.signature.clone(),
        forward: forward.median * per_layer,
        backward_input: whole * input,
        backward_weight: whole * (1.0 - input),
        spread: forward.spread.max(backward.spread),
    })
}

fn flops(work: &LayerWork) -> f64 {
    total(&work.forward) + total(&work.backward_input) + total(&work.backward_weight)
}

fn total(ops: &[Op]) -> f64 {
    ops.iter().map(|op| op.flops().get()).sum()
}

/// The part of the backward's FLOPs that goes into the gradient of the input.
fn input_share(work: &LayerWork) -> f64 {
    let (input, weight) = (total(&work.backward_input), total(&work.backward_weight));
    if input + weight > 0.0 { input / (input + weight) } else { 0.0 }
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
    fn new(kind: &Kind<'_>, device: &'a Device) -> Self {
        let (sequences, seq_len) = (kind.batch.microbatch as usize, kind.batch.seq_len as usize);
        let tokens = vec![1; sequences * seq_len];
        let batch = data::Batch { inputs: tokens.clone(), targets: tokens, sequences, seq_len };
        let parameters = (0..kind.copies).map(|copy| {
            let tensor = |parameter: &crate::layers::Parameter| {
                let numbers = initial(copy as u64, LayerId::new(0), parameter);
                Tensor::from_data(TensorData::new(numbers, parameter.shape), device)
            };
            kind.unit.parameters().iter().map(tensor).collect()
        });
        let activation = |width: u64| filled(device, [sequences * seq_len, width as usize]);
        let (input, gradient) = match &kind.layer.kind {
            LayerKind::Embedding(embedding) => (Signal::Tokens, Some(activation(embedding.hidden))),
            LayerKind::Block(block) => (Signal::Hidden(activation(block.hidden)), Some(activation(block.hidden))),
            LayerKind::Head(head) => (Signal::Hidden(activation(head.hidden)), None),
            // Units exist for the three above only.
            _ => (Signal::Tokens, None),
        };
        Self {
            units: vec![kind.unit.clone(); kind.copies],
            parameters: parameters.collect(),
            input,
            gradient,
            feed: Feed::new(&batch, device),
            device,
        }
    }

    /// Zeros to accumulate into.
    fn gradients(&self) -> Option<Tensors> {
        Some(self.parameters.iter().map(|layer| layer.iter().map(Tensor::zeros_like).collect()).collect())
    }

    /// One forward and one backward with accumulation.
    fn run(&self, sum: &mut Option<Tensors>) -> [Duration; 2] {
        let start = Instant::now();
        let graph = passes::tracked(&self.units, &self.parameters, self.input.clone(), &self.feed);
        finish(self.device, ());
        let forward = start.elapsed();
        let seed = self.gradient.clone().map_or(Seed::Loss(1.0), |gradient| Seed::Gradient(Box::new(gradient)));
        let start = Instant::now();
        let gradients = passes::backward(graph, seed);
        let before = sum.take().unwrap_or_default();
        *sum = Some(passes::accumulate(before, gradients.parameters));
        finish(self.device, gradients.input);
        [forward, start.elapsed()]
    }
}

impl MeasuredLayer {
    /// The whole backward.
    pub fn backward(&self) -> Seconds {
        self.backward_input + self.backward_weight
    }
}
