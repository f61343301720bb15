//! Tensor and data parallelism in closed form, for the options of `spipe baseline tensor-data`.

use super::{training, workloads};
use crate::{Failure, args, input};
use spipe_cost::{ParallelCost, ParallelError, Parallelism, Workload};
use spipe_hardware::{Hardware, Runtime};
use spipe_model::{Attention, Model, Recompute};

/// The runtime that trains with tensor parallelism on GPUs.
const FRAMEWORK: &str = "megatron";

/// The runtime that was asked for, or the one that trains on this machine.
pub fn runtime(what: &args::TensorData, hardware: &Hardware) -> Result<Runtime, Failure> {
    match &what.runtime {
        Some(given) => input::runtime(given),
        None if input::has_foreign_gpus(hardware) => input::runtime(FRAMEWORK),
        None => Ok(Runtime::default()),
    }
}

/// A configuration with its cost.
pub struct Priced {
    pub spread: Parallelism,
    pub workload: Workload,
    pub cost: ParallelCost,
}

impl Priced {
    /// Whether it is faster and fits, or if none fits, needs less memory.
    fn better_than(&self, other: &Self) -> bool {
        match (self.cost.fits(), other.cost.fits()) {
            (true, true) => self.cost.iteration < other.cost.iteration,
            (false, false) => self.cost.memory < other.cost.memory,
            (fits, _) => fits,
        }
    }
}

/// The configurations that were asked for, each with its best size of microbatches, and the first
/// refusal of one.
pub fn priced(
    what: &args::TensorData,
    (model, hardware): (&Model, &Hardware),
) -> Result<(Vec<Priced>, Option<ParallelError>), Failure> {
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
    let workloads = workloads(template, what.global_batch, &what.microbatch)?;
    let (mut priced, mut refused) = (Vec::new(), None);
    for spread in spreads(what, hardware)? {
        match price(spread, (model, hardware), &workloads) {
            Ok(found) => priced.push(found),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Ok((priced, refused))
}

/// The index of the best configuration.
pub fn best(priced: &[Priced]) -> Option<usize> {
    (0..priced.len()).reduce(|best, other| if priced[other].better_than(&priced[best]) { other } else { best })
}

/// The configurations of the given degrees. Degrees that are not given take every value that uses
/// all GPUs.
fn spreads(what: &args::TensorData, hardware: &Hardware) -> Result<Vec<Parallelism>, Failure> {
    let gpus = hardware.devices().iter().filter(|device| device.is_gpu()).count() as u64;
    let degrees: Vec<(u64, u64)> = match (what.tensor, what.data) {
        (Some(tensor), Some(data)) => vec![(tensor, data)],
        (tensor, data) => {
            let divisors = (1..=gpus).filter(|divisor| gpus.is_multiple_of(*divisor));
            let pairs = divisors.map(|divisor| (divisor, gpus / divisor));
            pairs
                .filter(|pair| tensor.is_none_or(|own| own == pair.0) && data.is_none_or(|own| own == pair.1))
                .collect()
        }
    };
    if gpus == 0 {
        let message = format!("`{}` has no GPU", hardware.name());
        return Err(Failure::argument(message, "name a machine that has some: spipe hardware list"));
    }
    if degrees.is_empty() {
        let given = what.tensor.or(what.data).unwrap_or_default();
        let message = format!("{given} does not divide the {gpus} GPUs of `{}`", hardware.name());
        return Err(Failure::argument(message, "give both degrees to leave GPUs idle"));
    }
    let choices = what.recompute.map_or_else(|| Recompute::ALL.to_vec(), |given| vec![given.into()]);
    let spread =
        |(tensor, data)| choices.iter().map(move |recompute| Parallelism { tensor, data, recompute: *recompute });
    Ok(degrees.into_iter().flat_map(spread).collect())
}

/// A configuration with its best size of microbatches.
fn price(
    spread: Parallelism,
    (model, hardware): (&Model, &Hardware),
    workloads: &[Workload],
) -> Result<Priced, ParallelError> {
    let mut best: Option<Priced> = None;
    let mut refused = ParallelError::Zero;
    for workload in workloads {
        match spread.cost(model, hardware, workload) {
            Ok(cost) => {
                let priced = Priced { spread, workload: *workload, cost };
                if best.as_ref().is_none_or(|best| priced.better_than(best)) {
                    best = Some(priced);
                }
            }
            Err(error) => refused = error,
        }
    }
    best.ok_or(refused)
}
