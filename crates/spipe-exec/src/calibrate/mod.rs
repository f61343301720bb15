//! Measurements of this machine, for the planner.
//!
//! Devices are measured at the same time, as they will run: each on its own cores, sharing caches,
//! memory channels and clock. A device that is done keeps computing until the last one is. Devices
//! that share a core are measured in turn, each at its full speed: how they divide the core depends
//! on the plan.

mod clock;
mod kernels;
mod layers;
mod machine;
mod tokens;

pub use machine::{Unmeasured, measured_machine};

use crate::{
    device::{DeviceContext, DeviceError, Executor, assign_cores},
    error::RunError,
    host::{Contention, Watch},
    task_error::TaskError,
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

/// The extent of a calibration.
#[derive(Clone, Debug)]
pub struct CalibrationRequest<'a> {
    /// The devices, which are measured together. Unnamed cores are divided among them.
    pub executors: Vec<Executor>,
    /// A model whose layers are measured, and the batch.
    pub layers: Option<(&'a Model, Batch)>,
    /// Numbers of sequences for which layers are also measured as they find the next token.
    pub tokens: Vec<u64>,
    /// Time for everything.
    pub budget: Duration,
}

impl CalibrationRequest<'_> {
    /// The default budget.
    pub const BUDGET: Duration = Duration::from_secs(20);
}

/// A finished measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The device.
    pub executor: String,
    /// The quantity.
    pub what: String,
    /// Number of finished measurements of all devices.
    pub done: usize,
    /// Number of all measurements.
    pub of: usize,
}

/// The results of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// By device, in the order of the request.
    pub devices: Vec<Measured>,
    /// Time that it took.
    pub took: Duration,
    /// CPU time that others took meanwhile, if known.
    pub contention: Option<Contention>,
}

/// Rates of one device while the others work as well.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The device with its cores.
    pub executor: Executor,
    /// Square matrix products in each compute type: work of one, rate.
    pub matmul: BTreeMap<DataType, Vec<(Flops, FlopsPerSecond)>>,
    /// Sums of two f32 tensors: bytes read and written, rate.
    pub elementwise: Vec<(Bytes, BytesPerSecond)>,
    /// Products of one row with matrices from memory: bytes of one matrix, rate.
    pub matvec: Vec<(Bytes, BytesPerSecond)>,
    /// A copy of large arrays by all cores, reads and writes together.
    pub memory_bandwidth: BytesPerSecond,
    /// A copy between devices by one thread, without pacing: bytes that arrive.
    pub copy_rate: BytesPerSecond,
    /// Copies from host memory to the device and back, if it has discrete memory.
    pub copies: Option<Copies>,
    /// AdamW by all cores.
    pub optimizer_rate: ParamsPerSecond,
    /// The duration of an operation on one number, of many that are queued.
    pub launch_floor: Seconds,
    /// The duration of such an operation that is waited for, if it was measured.
    pub round_trip: Option<Seconds>,
    /// Each kind of layer of the model.
    pub layers: Vec<MeasuredLayer>,
    /// Layers that were skipped for lack of time, with reasons.
    pub skipped: Vec<String>,
    /// The largest spread of any figure: half the distance of the 10th and the 90th percentile,
    /// divided by the median.
    pub spread: f64,
}

impl Measured {
    /// The best rate of products in a type; none if the device does not compute in it.
    pub fn best_rate(&self, data_type: DataType) -> Option<FlopsPerSecond> {
        self.matmul.get(&data_type)?.iter().map(|(_, rate)| *rate).max()
    }
}

/// Rates of copies from host memory to a device, and back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copies {
    /// From and to pinned memory, which the device accesses directly.
    pub pinned: [BytesPerSecond; 2],
    /// From and to pageable memory, which a core copies first or last.
    pub pageable: [BytesPerSecond; 2],
    /// As the actions of a run copy: the rates of a profile's links.
    pub run: [BytesPerSecond; 2],
}

/// One kind of layer on one device, as the executor runs it.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredLayer {
    /// Kind, shapes and batch (`Layer::signature`).
    pub signature: String,
    /// The type in which it was computed.
    pub data_type: DataType,
    /// Time of its forward with a graph.
    pub forward: Seconds,
    /// Time of its backward for the gradient of the input: the share of a split backward's first
    /// half, times the whole backward.
    pub backward_input: Seconds,
    /// Time of the rest of its backward, accumulation included.
    pub backward_weight: Seconds,
    /// Time to rebuild its graph from offloaded activations.
    pub replay: Seconds,
    /// The additional time of a backward in two parts.
    pub split: Seconds,
    /// The larger spread of forward and backward.
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
    let device_contexts =
        executors.iter().map(DeviceContext::open).collect::<Result<Vec<DeviceContext>, DeviceError>>()?;
    let devices: Vec<(&Executor, &DeviceContext)> = executors.iter().zip(&device_contexts).collect();
    let rounds = rounds(&executors);
    let budget = request.budget / rounds.len() as u32;
    let watch = Watch::start();
    let of = device_contexts.len() * (kernels::COUNT + kinds.len());
    let mut done = 0;
    let mut results: Vec<(usize, Measured)> = Vec::with_capacity(device_contexts.len());
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

/// Indices of devices that are measured at the same time, no two of which share a core: each goes
/// to the first round without a conflict.
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

/// Layers to be measured.
#[derive(Clone, Copy)]
struct Work<'a> {
    kinds: &'a [layers::Kind<'a>],
    /// Numbers of sequences whose next token is found.
    tokens: &'a [u64],
}

/// Measures devices that do not share a core, all at the same time.
fn measure_together(
    devices: &[(&Executor, &DeviceContext)],
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
            .map(|(index, (executor, device_context))| {
                let (sender, busy) = (sender.clone(), &busy);
                scope.spawn(move || {
                    let tell = |what: String| {
                        // Measuring goes on without a listener.
                        let _ = sender.send((index, what));
                    };
                    let (widths, discrete_memory) = (widths(device_context).len(), device_context.discrete_memory);
                    let shares = kernels::shares(widths, discrete_memory) + work.shares() * widths;
                    let clock = Clock::new(start, budget, shares);
                    let measured =
                        catch_unwind(AssertUnwindSafe(|| measure(device_context, executor, work, (clock, &tell))));
                    busy.fetch_sub(1, Ordering::Relaxed);
                    if measured.is_ok() {
                        device_context
                            .compute(|| kernels::keep_busy(&device_context.device, || busy.load(Ordering::Relaxed) > 0))
                            .ok();
                    }
                    measured
                        .unwrap_or_else(|_| Err(failed(executor, TaskError::Panicked("a measurement panicked".into()))))
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
                thread
                    .join()
                    .unwrap_or_else(|_| Err(failed(executor, TaskError::Panicked("its thread panicked".into()))))
            })
            .collect()
    })
}

impl Work<'_> {
    /// Shares of the time.
    fn shares(self) -> usize {
        self.kinds.iter().map(|kind| kind.shares + self.tokens.len()).sum()
    }
}

fn failed(executor: &Executor, error: TaskError) -> RunError {
    RunError::Lane { lane: executor.to_string(), action: "a measurement".into(), error }
}

/// A type by both of its names.
type Width = (DataType, FloatDType);

/// Types in which a device with discrete memory may compute; others compute in the first.
const WIDTHS: [Width; 3] =
    [(DataType::F32, FloatDType::F32), (DataType::Bf16, FloatDType::BF16), (DataType::F16, FloatDType::F16)];

fn widths(device_context: &DeviceContext) -> Vec<Width> {
    let computes = |(data_type, width): &Width| {
        *data_type == DataType::F32 || (device_context.discrete_memory && device_context.device.supports_dtype(*width))
    };
    WIDTHS.into_iter().filter(computes).collect()
}

/// All measurements of one device.
fn measure(
    device_context: &DeviceContext,
    executor: &Executor,
    work: Work<'_>,
    (mut clock, tell): (Clock, &(dyn Fn(String) + Sync)),
) -> Result<Measured, RunError> {
    let (widths, discrete_memory) = (widths(device_context), device_context.discrete_memory);
    let kernels = device_context
        .compute(|| kernels::measure((&device_context.device, &widths, discrete_memory), &mut clock, tell));
    let kernels = kernels.map_err(|error| failed(executor, error))?;
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
        round_trip: Some(kernels.round_trip),
        layers: Vec::new(),
        skipped: Vec::new(),
        spread: clock.largest_spread(),
    };
    for kind in work.kinds {
        for width in kind.widths(&widths) {
            let device = (&device_context.device, *width);
            match device_context.compute(|| tokens::measure(kind, work.tokens, device, &mut clock)) {
                Ok(Ok(layers)) => measured.layers.extend(layers),
                Ok(Err(skipped)) => measured.skipped.push(skipped),
                Err(error) => return Err(failed(executor, error)),
            }
            let best = measured.best_rate(width.0);
            match device_context.compute(|| layers::measure(kind, device, &mut clock, best)) {
                Ok(Ok(layer)) => measured.layers.push(layer),
                Ok(Err(skipped)) => measured.skipped.push(skipped),
                Err(error) => return Err(failed(executor, error)),
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
