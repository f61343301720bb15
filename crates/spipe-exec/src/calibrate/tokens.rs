//! Times of whole layers that find the next token of each sequence, measured with the forward that
//! the executor runs. Such a forward mostly reads weights, whose distance matters: the chain has as
//! many copies as the model.

use super::{
    MeasuredLayer, Width,
    clock::{Clock, repeat},
    kernels::{filled, finish},
    layers::{Kind, shape},
};
use crate::nn::{
    Matrix, cast,
    layers::{KvCache, PassContext, Reading, Signal},
    passes::{self, Layers, Outputs},
};
use burn::tensor::Device;
use spipe_base::Seconds;
use spipe_model::{Batch, Precision};
use std::time::Instant;

/// Times of a forward of `kind` on one token of each of `sequences`, at the end of sequences of its
/// batch's length; none for layers that read images. The error is the reason why it was skipped.
pub(super) fn measure(
    kind: &Kind<'_>,
    sequences: &[u64],
    (device, width): (&Device, Width),
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
    let (units, parameters) = (kind.units(kind.copies), kind.parameters(kind.copies, (device, width)));
    let batches = sequences.iter().map(|sequences| Batch { microbatch: *sequences, ..kind.batch });
    let each = batches.filter_map(|batch| {
        let copies = copies(kind, batch)?;
        let layers = Layers::new(0, &units[..copies], &parameters[..copies]);
        Some(one(kind, (layers, batch), (device, width), clock))
    });
    Ok(each.collect())
}

/// Number of copies in a chain whose caches are not too large; none if one is too large.
fn copies(kind: &Kind<'_>, batch: Batch) -> Option<usize> {
    let cached = kind.layer.cache(batch, Precision::Fp32).get() / Precision::Fp32.bytes();
    let most = MOST_NUMBERS.checked_div(cached).map_or(kind.copies, |most| kind.copies.min(most as usize));
    (most > 0).then_some(most)
}

fn one(
    kind: &Kind<'_>,
    (layers, batch): (Layers<'_>, Batch),
    (device, width): (&Device, Width),
    clock: &mut Clock,
) -> MeasuredLayer {
    let inputs = &kind.layer.inputs;
    let shape = || shape(kind.model, inputs, Batch { seq_len: 1, ..batch });
    let input = if inputs.is_empty() { Signal::Tokens } else { Signal::Hidden(cast(filled(device, shape()), width.1)) };
    let copies = layers.units.len();
    let (before, past) = (before(kind, (batch, copies), (device, width)), batch.seq_len as usize - 1);
    let sequences = batch.microbatch as usize;
    let sample = repeat(clock.take(1), || {
        let start = Instant::now();
        let pass = PassContext::tokens(vec![1; sequences], (sequences, 1), device).answered();
        let pass = pass.with_cache(Some(KvCache::new(past, before.clone())));
        let end = layers.first + copies;
        finish(device, passes::forward(layers, (end, false), input.clone(), &pass, &mut Outputs::default()));
        start.elapsed()
    });
    let sample = clock.note(sample);
    MeasuredLayer {
        signature: kind.layer.generate_signature(batch),
        data_type: width.0,
        forward: sample.median * (1.0 / copies as f64),
        backward_input: Seconds::ZERO,
        backward_weight: Seconds::ZERO,
        replay: Seconds::ZERO,
        split: Seconds::ZERO,
        spread: sample.spread,
    }
}

/// Largest count of numbers created for a measurement, in the parameters of a layer and in all
/// caches: about a second's work.
const MOST_NUMBERS: u64 = 64 << 20;

/// Keys and values of earlier tokens, for each copy.
fn before(kind: &Kind<'_>, (batch, copies): (Batch, usize), (device, width): (&Device, Width)) -> Vec<[Matrix; 2]> {
    let Some(block) = kind.layer.as_block() else { return Vec::new() };
    let rows = batch.microbatch * block.keys(batch.seq_len - 1);
    if rows == 0 {
        return Vec::new();
    }
    let rows = || cast(filled(device, [rows as usize, block.kv_width() as usize]), width.1);
    (0..copies).map(|_| [rows(), rows()]).collect()
}
