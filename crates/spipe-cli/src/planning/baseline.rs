//! The baselines that the options of `spipe baseline tensor-data` describe.

use super::training;
use crate::{Failure, args, input};
use spipe_cost::Workload;
use spipe_hardware::{Hardware, Runtime};
use spipe_model::{Attention, Model};
use spipe_search::{has_foreign_gpus, workloads};

/// The runtime that trains with tensor parallelism on GPUs.
const FRAMEWORK: &str = "megatron";

/// The runtime that was asked for, or the one that trains on this machine.
pub fn runtime(what: &args::TensorData, hardware: &Hardware) -> Result<Runtime, Failure> {
    match &what.runtime {
        Some(given) => input::runtime(given),
        None if has_foreign_gpus(hardware) => input::runtime(FRAMEWORK),
        None => Ok(Runtime::default()),
    }
}

/// The workloads of all sizes of microbatches.
pub fn sizes(what: &args::TensorData, model: &Model) -> Result<Vec<Workload>, Failure> {
    let template = Workload {
        mode: input::mode(model, what.mode)?,
        seq_len: input::seq_len(model, what.seq_len)?,
        microbatch: 1,
        microbatches: 1,
        precision: what.precision,
        optimizer: what.optimizer,
        attention: if what.materialised_attention { Attention::Materialised } else { Attention::Fused },
        formats: what.training.formats(),
        ..Workload::PLAIN
    };
    let template = what.shape.shape(template)?;
    training::check(model, &template)?;
    Ok(workloads(template, what.global_batch, &what.microbatch)?)
}
