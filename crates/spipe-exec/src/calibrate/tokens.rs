//! Times of whole layers that find the next token of each sequence, by the very forward that the executor runs.

use super::{
    MeasuredLayer,
    clock::{Clock, repeat},
    kernels::{filled, finish},
    layers::{Kind, shape},
};
use crate::{
    layers::{Feed, Matrix, Reading, Recall, Signal},
    passes::{self, Layers, Outputs},
};
use burn::tensor::Device;
use spipe_base::Seconds;
use spipe_model::Batch;
use std::time::Instant;

/// The forward of `kind` on one token of each of so many sequences, which ends sequences of the length of its batch; none of
/// layers that read images. The error says why it was left out.
pub(super) fn measure(
    kind: &Kind<'_>,
    sequences: &[u64],
    device: &Device,
    clock: &mut Clock,
) -> Result<Vec<MeasuredLayer>, String> {
    if !matches!(Reading::of(kind.model), Reading::Tokens) || kind.layer.tokens.is_some() || sequences.is_empty() {
        return Ok(Vec::new());
    }
    let parameters = kind.layer.parameters;
    if parameters > MOST_NUMBERS {
        let what = &kind.signature;
        return Err(format!("`{what}` token by token: {parameters} parameters are more than {MOST_NUMBERS}"));
    }
    let (units, parameters) = (kind.units(), kind.parameters(device));
    let layers = Layers::new(0, &units, &parameters);
    let batches = sequences.iter().map(|sequences| Batch { microbatch: *sequences, ..kind.batch });
    let fits = batches.filter(|batch| cached(kind, *batch) <= MOST_NUMBERS);
    Ok(fits.map(|batch| one(kind, (layers, batch), device, clock)).collect())
}

fn one(kind: &Kind<'_>, (layers, batch): (Layers<'_>, Batch), device: &Device, clock: &mut Clock) -> MeasuredLayer {
    let inputs = &kind.layer.inputs;
    let shape = || shape(kind.model, inputs, Batch { seq_len: 1, ..batch });
    let input = if inputs.is_empty() { Signal::Tokens } else { Signal::Hidden(filled(device, shape())) };
    let (before, past) = (before(kind, batch, device), batch.seq_len as usize - 1);
    let sequences = batch.microbatch as usize;
    let sample = repeat(clock.take(1), || {
        let start = Instant::now();
        let feed = Feed::tokens(vec![1; sequences], (sequences, 1), device).answered();
        let feed = feed.recalling(Some(Recall::new(past, before.clone())));
        let end = layers.first + layers.units.len();
        finish(device, passes::forward(layers, (end, false), input.clone(), &feed, &mut Outputs::default()));
        start.elapsed()
    });
    let sample = clock.note(sample);
    MeasuredLayer {
        signature: kind.layer.generate_signature(batch),
        forward: sample.median * (1.0 / kind.copies as f64),
        backward_input: Seconds::ZERO,
        backward_weight: Seconds::ZERO,
        replay: Seconds::ZERO,
        spread: sample.spread,
    }
}

/// Numbers that are made for a measurement at most, in the parameters of a layer and in all caches: a second's worth.
const MOST_NUMBERS: u64 = 64 << 20;

/// Numbers in the caches of all copies.
fn cached(kind: &Kind<'_>, batch: Batch) -> u64 {
    kind.copies as u64 * kind.layer.cache(batch, spipe_model::Precision::Fp32).get() / 4
}

/// Keys and values of the tokens before, for each copy.
fn before(kind: &Kind<'_>, batch: Batch, device: &Device) -> Vec<[Matrix; 2]> {
    let Some(block) = kind.layer.as_block() else { return Vec::new() };
    let rows = batch.microbatch * block.keys(batch.seq_len - 1);
    if rows == 0 {
        return Vec::new();
    }
    let rows = || filled(device, [rows as usize, block.kv_width() as usize]);
    (0..kind.copies).map(|_| [rows(), rows()]).collect()
}
