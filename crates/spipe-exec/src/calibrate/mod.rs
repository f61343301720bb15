//! Measurements of this machine, for the planner.
//!
//! Devices are measured at the same time, as they will run: each on its own cores, with whatever caches, memory channels and
//! clock they share. A device that is through keeps computing until the last one is. Devices that share a core are measured in
//! turn, each at its full speed: how much of a core one takes from the other is up to what a plan gives them to do.

mod clock;
mod kernels;
mod layers;
mod machine;
mod tokens;

pub use machine::{Unmeasured, measured_machine};

use crate::{
    Executor, RunError, assign_cores,
    contention::{Contention, Watch},
    site::Site,
};
use burn::tensor::FloatDType;
use clock::Clock;
use spipe_base::{Bytes, BytesPerSecond, DataType, Diagnostic, Flops, FlopsPerSecond, ParamsPerSecond, Seconds};
use spipe_model::{Batch, Model};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct CalibrationRequest<'a> {
    /// The devices, which are measured together. Cores that are not named are shared out.
    pub executors: Vec<Executor>,
    /// A model whose layers are measured, and their microbatch.
    pub layers: Option<(&'a Model, Batch)>,
    /// Of how many sequences they are also measured as they find the next token.
    pub tokens: Vec<u64>,
    /// How long all of it may take.
    pub budget: Duration,
}

impl CalibrationRequest<'_> {
    /// How long a calibration takes if nothing is said.
    pub const BUDGET: Duration = Duration::from_secs(20);
}

/// A measurement that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The device.
    pub executor: String,
    /// What was measured.
    pub what: String,
    /// How many are done, over all devices.
    pub done: usize,
    /// How many there are.
    pub of: usize,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// By device, in the order of the request.
    pub devices: Vec<Measured>,
    /// How long it took.
    pub took: Duration,
    /// What others took of the CPU time meanwhile, where that is known.
    pub contention: Option<Contention>,
}

/// What one device does while the others work as well.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The device with its cores.
    pub executor: Executor,
    /// Square matrix products in each type that it computes in: work of one, rate.
    pub matmul: BTreeMap<DataType, Vec<(Flops, FlopsPerSecond)>>,
    /// Sums of two f32 tensors: bytes read and written, rate.
    pub elementwise: Vec<(Bytes, BytesPerSecond)>,
    /// Products of one row with matrices that come from memory: bytes of one matrix, rate.
    pub matvec: Vec<(Bytes, BytesPerSecond)>,
    /// A copy of much memory by all cores, reads and writes together.
    pub memory_bandwidth: BytesPerSecond,
    /// A copy between devices by one thread, without pacing: bytes that arrive.
    pub copy_rate: BytesPerSecond,
    /// Copies from host memory to that of the device and back, where it has a memory of its own.
    pub copies: Option<Copies>,
    /// AdamW by all cores.
    pub optimizer_rate: ParamsPerSecond,
    /// An operation on one number.
    pub launch_floor: Seconds,
    /// Each kind of layer of the model.
    pub layers: Vec<MeasuredLayer>,
    /// Layers for which there was no time, and why.
    pub skipped: Vec<String>,
    /// The largest spread of any figure: half the distance of the 10th and the 90th percentile over the median.
    pub spread: f64,
}

impl Measured {
    /// The best rate of products in a type, if it computes in that.
    pub fn best_rate(&self, data_type: DataType) -> Option<FlopsPerSecond> {
        self.matmul.get(&data_type)?.iter().map(|(_, rate)| *rate).max()
    }
}

/// Rates of copies from host memory to that of a device, and back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copies {
    /// Of memory that the device reaches by itself: what links of a profile carry.
    pub pinned: [BytesPerSecond; 2],
    /// Of other memory, from or to which a core copies first or last.
    pub pageable: [BytesPerSecond; 2],
}

/// One kind of layer on one device, as the executor runs it.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredLayer {
    /// Kind, shapes and batch (`Layer::signature`).
    pub signature: String,
    /// What it was computed in.
    pub data_type: DataType,
    /// Its forward, with the graph for its backward.
    pub forward: Seconds,
    /// Its backward as far as it yields the gradient of the input: the share of it in a backward that is split, of the whole.
    pub backward_input: Seconds,
    /// The rest of the whole, accumulation included.
    pub backward_weight: Seconds,
    /// To make its graph again from what was offloaded.
    pub replay: Seconds,
    /// Of forward and backward, the larger.
    pub spread: f64,
}

/// Measures what `request` asks for.
///
/// # Errors
/// Devices that cannot be opened, and layers that cannot be computed.
pub fn calibrate(
    request: &CalibrationRequest<'_>,
    on_progress: &mut dyn FnMut(&Progress),
) -> Result<Calibration, RunError> {
    let start = Instant::now();
    let mut executors = request.executors.clone();
    assign_cores(&mut executors, &[]);
    if executors.is_empty() {
        return Err(RunError::Unsupported(Diagnostic::error("there is no device to measure").into()));
    }
    let kinds = match &request.layers {
        Some((model, batch)) => layers::kinds(model, *batch).map_err(RunError::Unsupported)?,
        None => Vec::new(),
    };
    let work = Work { kinds: &kinds, tokens: &request.tokens };
    let sites = executors.iter().map(Site::open).collect::<Result<Vec<Site>, RunError>>()?;
    let devices: Vec<(&Executor, &Site)> = executors.iter().zip(&sites).collect();
    let rounds = rounds(&executors);
    let budget = request.budget / rounds.len() as u32;
    let watch = Watch::start();
    let of = sites.len() * (kernels::COUNT + kinds.len());
    let mut done = 0;
    let mut results: Vec<(usize, Measured)> = Vec::with_capacity(sites.len());
    for round in rounds {
        let together: Vec<_> = round.iter().map(|index| devices[*index]).collect();
        let measured = measure_together(&together, work, budget, &mut |executor, what| {
            done += 1;
            on_progress(&Progress { executor: executor.to_string(), what, done, of });
        })?;
        results.extend(round.into_iter().zip(measured));
    }
    results.sort_by_key(|(index, _)| *index);
    let devices = results.into_iter().map(|(_, measured)| measured).collect();
    Ok(Calibration { devices, took: start.elapsed(), contention: watch.contention() })
}

/// Devices that are measured at the same time, since no two of them share a core: each in the first round that has room.
fn rounds(executors: &[Executor]) -> Vec<Vec<usize>> {
    let share = |one: &Executor, other: &Executor| match (one.cpu(), other.cpu()) {
        (Some((_, some)), Some((_, others))) => some.iter().any(|core| others.contains(core)),
        _ => false,
    };
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    for (index, executor) in executors.iter().enumerate() {
        match rounds.iter_mut().find(|round| !round.iter().any(|other| share(executor, &executors[*other]))) {
            Some(round) => round.push(index),
            None => rounds.push(vec![index]),
        }
    }
    rounds
}

/// What is measured beside single operations.
#[derive(Clone, Copy)]
struct Work<'a> {
    kinds: &'a [layers::Kind<'a>],
    /// Sequences whose next token is found.
    tokens: &'a [u64],
}

/// Measures devices that do not share a core, all at the same time.
fn measure_together(
    devices: &[(&Executor, &Site)],
    work: Work<'_>,
    budget: Duration,
    on_progress: &mut dyn FnMut(&Executor, String),
) -> Result<Vec<Measured>, RunError> {
    let start = Instant::now();
    let busy = AtomicUsize::new(devices.len());
    let (sender, receiver) = mpsc::channel::<(usize, String)>();
    std::thread::scope(|scope| {
        let threads: Vec<_> = devices
            .iter()
            .enumerate()
            .map(|(index, (executor, site))| {
                let (sender, busy) = (sender.clone(), &busy);
                scope.spawn(move || {
                    let tell = |what: String| {
                        // Nobody listening is no reason to stop measuring.
                        let _ = sender.send((index, what));
                    };
                    let (widths, apart) = (widths(site).len(), site.apart);
                    let shares = kernels::shares(widths, apart) + work.shares() * widths;
                    let clock = Clock::new(start, budget, shares);
                    let measured = catch_unwind(AssertUnwindSafe(|| measure(site, executor, work, (clock, &tell))));
                    busy.fetch_sub(1, Ordering::Relaxed);
                    if measured.is_ok() {
                        site.compute(|| kernels::keep_busy(&site.device, || busy.load(Ordering::Relaxed) > 0)).ok();
                    }
                    measured.unwrap_or_else(|_| Err(failed(executor, "a measurement panicked".into())))
                })
            })
            .collect();
        drop(sender);
        for (index, what) in receiver {
            on_progress(devices[index].0, what);
        }
        threads
            .into_iter()
            .zip(devices)
            .map(|(thread, (executor, _))| {
                thread.join().unwrap_or_else(|_| Err(failed(executor, "its thread panicked".into())))
            })
            .collect()
    })
}

impl Work<'_> {
    /// Of the time.
    fn shares(self) -> usize {
        self.kinds.iter().map(|kind| kind.shares + self.tokens.len()).sum()
    }
}

fn failed(executor: &Executor, message: String) -> RunError {
    RunError::Lane { lane: executor.to_string(), action: "a measurement".into(), message }
}

/// A type by both of its names.
type Width = (DataType, FloatDType);

/// What a device may compute in that computes in the width in which it holds numbers; the first one is all that others compute in.
const WIDTHS: [Width; 3] =
    [(DataType::F32, FloatDType::F32), (DataType::Bf16, FloatDType::BF16), (DataType::F16, FloatDType::F16)];

fn widths(site: &Site) -> Vec<Width> {
    let computes =
        |(data_type, width): &Width| *data_type == DataType::F32 || (site.apart && site.device.supports_dtype(*width));
    WIDTHS.into_iter().filter(computes).collect()
}

/// All measurements of one device.
fn measure(
    site: &Site,
    executor: &Executor,
    work: Work<'_>,
    (mut clock, tell): (Clock, &(dyn Fn(String) + Sync)),
) -> Result<Measured, RunError> {
    let (widths, apart) = (widths(site), site.apart);
    let kernels = site.compute(|| kernels::measure((&site.device, &widths, apart), &mut clock, tell));
    let kernels = kernels.map_err(|message| failed(executor, message))?;
    let mut measured = Measured {
        executor: executor.clone(),
        matmul: kernels.matmul,
        elementwise: kernels.elementwise,
        matvec: kernels.matvec,
        memory_bandwidth: kernels.memory_bandwidth,
        copy_rate: kernels.copy_rate,
        copies: kernels.copies,
        optimizer_rate: kernels.optimizer_rate,
        launch_floor: kernels.launch_floor,
        layers: Vec::new(),
        skipped: Vec::new(),
        spread: clock.largest_spread(),
    };
    for kind in work.kinds {
        for width in kind.widths(&widths) {
            let device = (&site.device, *width);
            match site.compute(|| tokens::measure(kind, work.tokens, device, &mut clock)) {
                Ok(Ok(layers)) => measured.layers.extend(layers),
                Ok(Err(skipped)) => measured.skipped.push(skipped),
                Err(message) => return Err(failed(executor, message)),
            }
            let best = measured.best_rate(width.0);
            match site.compute(|| layers::measure(kind, device, &mut clock, best)) {
                Ok(Ok(layer)) => measured.layers.push(layer),
                Ok(Err(skipped)) => measured.skipped.push(skipped),
                Err(message) => return Err(failed(executor, message)),
            }
        }
        tell(kind.signature.clone());
    }
    let spreads = measured.layers.iter().map(|layer| layer.spread);
    measured.spread = spreads.fold(measured.spread, f64::max);
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_share_a_core_are_measured_in_turn() {
        let rounds =
            |words: &[&str]| super::rounds(&words.iter().map(|word| word.parse().unwrap()).collect::<Vec<Executor>>());
        assert_eq!(rounds(&["emulated:0:ndarray@0", "emulated:1:ndarray@1", "cpu:0:ndarray@2..3"]), [vec![0, 1, 2]]);
        assert_eq!(rounds(&["emulated:0:ndarray@0", "emulated:1:ndarray@1", "cpu:0:ndarray@0"]), [vec![0, 1], vec![2]]);
        assert_eq!(rounds(&["emulated:0:ndarray@0", "cpu:0:ndarray@0", "emulated:1:ndarray@1"]), [vec![0, 2], vec![1]]);
    }
}
