//! Tensor and data parallelism in closed form, by which measured runs of it are fitted: their constants are found from
//! the parts of a sum. Nothing is ranked by it; the baselines beside plans are [simulated](super::equal_stages).

use crate::error::SearchError;
use spipe_cost::{ParallelCost, ParallelError, Parallelism, Workload};
use spipe_hardware::Hardware;
use spipe_model::{Model, Recompute};

/// The configurations to price.
#[derive(Clone, Copy, Debug, Default)]
pub struct Degrees {
    /// The degree of tensor parallelism; without it, every degree that uses all GPUs.
    pub tensor: Option<u64>,
    /// The degree of data parallelism; without it, every degree that uses all GPUs.
    pub data: Option<u64>,
    /// The activations that are recomputed; without it, every choice.
    pub recompute: Option<Recompute>,
}

/// A configuration with its cost.
pub struct Priced {
    /// The configuration.
    pub spread: Parallelism,
    /// The workload of the best size of microbatches.
    pub workload: Workload,
    /// Its time and memory.
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

/// The number of GPUs of a machine.
fn gpus(hardware: &Hardware) -> u64 {
    hardware.gpus().count() as u64
}

/// The configurations that were asked for, each with its best size of microbatches, and the first
/// refusal of one.
///
/// # Errors
/// The machine has no GPU, or the degrees do not use all GPUs.
pub fn priced(
    degrees: Degrees,
    (model, hardware): (&Model, &Hardware),
    workloads: &[Workload],
) -> Result<(Vec<Priced>, Option<ParallelError>), SearchError> {
    let (mut priced, mut refused) = (Vec::new(), None);
    for spread in spreads(degrees, hardware)? {
        match price(spread, (model, hardware), workloads) {
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
fn spreads(asked: Degrees, hardware: &Hardware) -> Result<Vec<Parallelism>, SearchError> {
    let gpus = gpus(hardware);
    let degrees: Vec<(u64, u64)> = match (asked.tensor, asked.data) {
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
        return Err(SearchError::request(message, "name a machine that has some: spipe hardware list"));
    }
    if degrees.is_empty() {
        let given = asked.tensor.or(asked.data).unwrap_or_default();
        let message = format!("{given} does not divide the {gpus} GPUs of `{}`", hardware.name());
        return Err(SearchError::request(message, "give both degrees to leave GPUs idle"));
    }
    let choices = asked.recompute.map_or_else(|| Recompute::ALL.to_vec(), |given| vec![given]);
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
