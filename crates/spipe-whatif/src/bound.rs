//! A lower bound of the time of a job on a machine, from operations and peaks alone.
//!
//! ```text
//! seconds per token ≥ operations per token ÷ Σ over devices of the peak in the type that it computes in
//! ```
//!
//! Operations are those of matrix products and attention, half of the latter, since a causal mask
//! makes half of them useless. No device exceeds its peak, so no plan is faster.

use spipe_cost::compute_type;
use spipe_hardware::Hardware;
use spipe_model::{Batch, Model, Op, Precision};

/// Returns the least operations per token of training a model: each layer's forward, the gradients
/// of its weights, and of its input except in the first layer.
pub fn operations_per_token(model: &Model, seq_len: u64) -> f64 {
    let batch = Batch { microbatch: 1, seq_len };
    let mut total = 0.0;
    for (index, layer) in model.layers().iter().enumerate() {
        let work = layer.work(batch);
        let input = if index == 0 { &[][..] } else { &work.backward_input };
        total += work.forward.iter().chain(&work.backward_weight).chain(input).map(operations).sum::<f64>();
    }
    total / seq_len.max(1) as f64
}

fn operations(op: &Op) -> f64 {
    match op {
        Op::Elementwise { .. } => 0.0,
        Op::Attention { .. } => op.flops().get() / 2.0,
        _ => op.flops().get(),
    }
}

/// Returns the rate that the devices of a machine do not exceed together, in operations per second.
pub fn peak(hardware: &Hardware, precision: Precision) -> f64 {
    let of = |device: &spipe_hardware::Device| {
        device.peak.get(&compute_type(device, precision)).map_or(0.0, |rate| rate.get())
    };
    hardware.devices().iter().map(of).sum()
}

/// Returns a rate of tokens that no plan exceeds, in tokens per second.
pub fn most_tokens_per_second(operations: f64, hardware: &Hardware, precision: Precision) -> f64 {
    peak(hardware, precision) / operations.max(f64::MIN_POSITIVE)
}
