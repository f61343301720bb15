//! Chains of layers with given times and bytes, on four GPUs and two sockets.

use spipe_base::LayerRange;
use spipe_cost::{Mode, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Precision};
use std::fmt::Write;

const MACHINE: &str = "rtx3090-x4-two-sockets";

pub fn workload(microbatches: u64, mode: Mode) -> Workload {
    Workload { mode, seq_len: 1024, microbatch: 1, microbatches, precision: Precision::Bf16, ..Workload::PLAIN }
}

/// The same with clipped gradients.
pub fn perhaps_clipped(clips: bool, workload: Workload) -> Workload {
    Workload { clip_norm: clips.then(|| 1.0.try_into().unwrap()), ..workload }
}

/// A chain of layers: forward in tenths of a millisecond, boundary and saved activations in MiB. At
/// most the first `frozen` layers are frozen; the last one is always trained.
pub fn model(layers: &[(u64, u64, u64)], frozen: usize) -> Model {
    frozen_in_front(Model::from_toml("chain.toml", &chain(layers)).unwrap(), frozen)
}

/// The same chain, or a transformer of as many layers with tied embedding and head, if there are at
/// least three.
pub fn perhaps_tied(layers: &[(u64, u64, u64)], frozen: usize, tied: bool) -> Model {
    let Some(blocks) = layers.len().checked_sub(2).filter(|blocks| tied && *blocks > 0) else {
        return model(layers, frozen);
    };
    let text = format!(
        "format-version = 1\nkind = \"transformer\"\nname = \"tied\"\nvocabulary = 20000\nseq-len = 1024\nhidden = 256\n\
         layers = {blocks}\nheads = 4\nintermediate = 512\ntied = true\n"
    );
    frozen_in_front(Model::from_toml("tied.toml", &text).unwrap(), frozen)
}

pub fn frozen_in_front(model: Model, frozen: usize) -> Model {
    let front = frozen.min(model.layers().len() - 1).checked_sub(1);
    let front: Vec<LayerRange> = front.and_then(|last| LayerRange::new(0.into(), last.into())).into_iter().collect();
    model.with_frozen(&front).unwrap()
}

pub fn chain(layers: &[(u64, u64, u64)]) -> String {
    chain_of(layers, &[1; 16])
}

/// The same chain with the given number of parameters per layer, in millions.
pub fn chain_of(layers: &[(u64, u64, u64)], parameters: &[u64]) -> String {
    let mut text =
        "format-version = 1\nkind = \"profiled\"\nname = \"chain\"\nmicrobatch = 1\nseq-len = 1024\n".to_owned();
    for (index, ((time, boundary, saved), parameters)) in layers.iter().zip(parameters).enumerate() {
        let saved = saved.max(boundary);
        let ms = |tenths: u64| format!("\"{} ms\"", tenths as f64 / 10.0);
        let (once, half) = (ms(*time), ms(time.div_ceil(2)));
        let cell = format!("{{ forward = {once}, backward-input = {once}, backward-weight = {half} }}");
        let _ = write!(
            text,
            "[[layer]]\nname = \"layer{index}\"\nparameters = {parameters}000000\nboundary-activation = \"{boundary} MiB\"\n\
             saved-activation = \"{saved} MiB\"\ntime = {{ gpu = {cell}, cpu = {cell} }}\n",
        );
    }
    text
}

pub fn machine() -> Hardware {
    let text = spipe_hardware::shipped().iter().find(|(name, _)| *name == MACHINE).unwrap().1;
    Hardware::from_toml(MACHINE, text).unwrap()
}
