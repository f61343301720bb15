//! Rates of single operations.

use super::{
    Copies, Width,
    clock::{Clock, Sample, repeat, repeat_many},
};
use crate::{
    device::{arena::Arena, transfer},
    nn::{Matrix, cast, kernels},
    optimizer::{AdamW, DeviceMoments, DeviceParameter, Exchange, Extent, Numbers},
    stored::{self, halves_mut, to_dtype},
};
use burn::tensor::{DType, Device, Tensor, TensorData};
use rayon::prelude::*;
use spipe_base::{Bytes, BytesPerSecond, DataType, Flops, FlopsPerSecond, ParamsPerSecond, Seconds};
use std::{
    collections::BTreeMap,
    hint::black_box,
    time::{Duration, Instant},
};

/// Rates of one device.
pub(super) struct Kernels {
    pub matmul: BTreeMap<DataType, Vec<(Flops, FlopsPerSecond)>>,
    pub elementwise: Vec<(Bytes, BytesPerSecond)>,
    pub matvec: Vec<(Bytes, BytesPerSecond)>,
    pub memory_bandwidth: BytesPerSecond,
    pub copy_rate: BytesPerSecond,
    pub copies: Option<Copies>,
    pub optimizer_rate: ParamsPerSecond,
    pub launch_floor: Seconds,
    pub round_trip: Seconds,
}

/// Number of measurements that [`measure`] reports.
pub(super) const COUNT: usize = 7;

/// Shares of the time for all of them, in a number of types, with or without discrete memory.
pub(super) fn shares(widths: usize, discrete_memory: bool) -> usize {
    COUNT + widths - 1 + usize::from(discrete_memory)
}

/// Sides of the square matrices. The last two are those of devices with discrete memory: only there
/// does it take that many tiles to give each processor some.
const SIDES: [usize; 9] = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
/// Number of sides on cores.
const SIDES_ON_CORES: usize = 7;
/// Numbers in each operand of a sum.
const ELEMENTS: [usize; 6] = [1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22];
/// Sides of the square matrices that a row is multiplied with.
const WEIGHTS: [usize; 5] = [128, 256, 512, 1024, 2048];
/// Numbers of all matrices together: as many as a small model has, more than second-level caches
/// hold.
const ALL_WEIGHTS: usize = 12 << 20;
/// Bytes of each of two arrays of a copy: more than second-level caches hold.
const COPIED: usize = 64 << 20;
/// Parameters of an optimizer step: 16 bytes of each are more than third-level caches hold.
const STEPPED: usize = 16 << 20;
/// Their shape.
const STEP: [usize; 2] = [STEPPED >> 10, 1 << 10];

/// Measures all rates, one after the other; copies in both directions if the device has discrete
/// memory.
pub(super) fn measure(
    (device, widths, discrete_memory): (&Device, &[Width], bool),
    clock: &mut Clock,
    tell: &(dyn Fn(String) + Sync),
) -> Kernels {
    let done = |what: &str| tell(what.to_owned());
    let sides = &SIDES[..if discrete_memory { SIDES.len() } else { SIDES_ON_CORES }];
    let matmul = widths.iter().map(|width| (width.0, matmul((device, *width), sides, clock))).collect();
    done("matrix products");
    let elementwise = elementwise(device, clock);
    done("sums of tensors");
    let matvec = matvec(device, clock);
    done("products of one row");
    let memory_bandwidth = match elementwise.iter().map(|(_, rate)| *rate).max() {
        Some(best) if discrete_memory => best,
        _ => memory_bandwidth(clock),
    };
    done("memory bandwidth");
    let copy_rate = copy_rate(device, clock);
    let copies = discrete_memory.then(|| copies(device, clock));
    done("copies");
    let optimizer_rate = optimizer_rate((device, discrete_memory), clock);
    done("optimizer");
    let (launch_floor, round_trip) = launches(device, clock);
    done("launches");
    Kernels {
        matmul,
        elementwise,
        matvec,
        memory_bandwidth,
        copy_rate,
        copies,
        optimizer_rate,
        launch_floor,
        round_trip,
    }
}

/// Computes while `go_on` returns true.
pub(super) fn keep_busy(device: &Device, go_on: impl Fn() -> bool) {
    let matrix = filled(device, [256, 256]);
    while go_on() {
        finish(device, matrix.clone().matmul(matrix.clone()));
    }
}

/// A matrix of numbers that are neither equal nor denormal.
pub(super) fn filled(device: &Device, shape: [usize; 2]) -> Matrix {
    let numbers: Vec<f32> =
        (0..shape[0] * shape[1]).map(|index| ((index * 7919) % 1009) as f32 / 1009.0 - 0.5).collect();
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

/// Waits for the device, then drops a result.
pub(super) fn finish<T>(device: &Device, result: T) {
    // A failed device fails the next computation as well, whose error is handled.
    let _ = device.sync();
    drop(result);
}

fn timed<T>(device: &Device, work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    finish(device, work());
    start.elapsed()
}

/// Rates of square products, from small to large, while the share of the time lasts.
fn matmul((device, (_, width)): (&Device, Width), sides: &[usize], clock: &mut Clock) -> Vec<(Flops, FlopsPerSecond)> {
    let mut left = clock.take(1);
    let mut points = Vec::new();
    for (index, side) in sides.iter().copied().enumerate() {
        let start = Instant::now();
        let [a, b] = [(); 2].map(|()| cast(filled(device, [side, side]), width));
        let share = left / (sides.len() - index) as u32;
        let sample = repeat(share, || timed(device, || a.clone().matmul(b.clone())));
        let work = Flops::flop(2.0 * (side as f64).powi(3));
        points.push((work, FlopsPerSecond::flops(work.get() / clock.note(sample).median.get())));
        left = left.saturating_sub(start.elapsed().saturating_sub(sample.compiling));
        // The next side takes eight times as long, for at least two repetitions.
        if sample.median.get() * 16.0 > left.as_secs_f64() {
            break;
        }
    }
    points
}

fn elementwise(device: &Device, clock: &mut Clock) -> Vec<(Bytes, BytesPerSecond)> {
    let share = clock.take(1) / ELEMENTS.len() as u32;
    let mut points = Vec::new();
    for count in ELEMENTS {
        let (a, b) = (filled(device, [count >> 6, 64]), filled(device, [count >> 6, 64]));
        let sample = clock.note(repeat(share, || timed(device, || a.clone() + b.clone())));
        let bytes = Bytes::new(12 * count as u64);
        points.push((bytes, rate(bytes, sample.median)));
        if clock.is_over() {
            break;
        }
    }
    points
}

/// Rates of products of one row with one matrix after the other.
fn matvec(device: &Device, clock: &mut Clock) -> Vec<(Bytes, BytesPerSecond)> {
    let share = clock.take(1) / WEIGHTS.len() as u32;
    let mut points = Vec::new();
    for side in WEIGHTS {
        let row = filled(device, [1, side]).autodiff();
        let weight = filled(device, [side, side]);
        let copy = || weight.clone().add_scalar(1e-3).autodiff();
        let weights: Vec<Matrix> = (0..ALL_WEIGHTS / (side * side)).map(|_| copy()).collect();
        let mut products = Vec::with_capacity(weights.len());
        let sample = repeat(share, || {
            products.clear();
            timed(device, || products.extend(weights.iter().map(|weight| kernels::matmul(row.clone(), weight.clone()))))
        });
        let bytes = Bytes::new(4 * (side * side) as u64);
        points.push((bytes, rate(bytes, clock.note(sample).median * (1.0 / weights.len() as f64))));
        if clock.is_over() {
            break;
        }
    }
    points
}

fn rate(bytes: Bytes, time: Seconds) -> BytesPerSecond {
    BytesPerSecond::bytes(bytes.as_f64() / time.get())
}

fn memory_bandwidth(clock: &mut Clock) -> BytesPerSecond {
    let share = clock.take(1);
    let from = vec![1u64; COPIED / 8];
    let mut to = vec![0u64; COPIED / 8];
    let chunk = (from.len() / rayon::current_num_threads()).max(1);
    let sample = repeat(share, || {
        let start = Instant::now();
        to.par_chunks_mut(chunk).zip(from.par_chunks(chunk)).for_each(|(to, from)| to.copy_from_slice(from));
        start.elapsed()
    });
    rate(Bytes::new(2 * COPIED as u64), clock.note(sample).median)
}

fn copy_rate(device: &Device, clock: &mut Clock) -> BytesPerSecond {
    let matrix = filled(device, [1024, 1024]);
    let copy = || Tensor::<2>::from_data(TensorData::new(transfer::numbers(&matrix), [1024, 1024]), device);
    let sample = repeat(clock.take(1), || timed(device, copy));
    rate(Bytes::new(4 << 20), clock.note(sample).median)
}

/// Rates of copies to the device and from it: of pinned memory, of pageable memory, and of whole
/// actions, which leave the numbers where they were.
fn copies(device: &Device, clock: &mut Clock) -> Copies {
    let share = clock.take(1) / 6;
    let matrix = filled(device, [COPIED >> 12, 1 << 10]);
    let numbers = transfer::numbers(&matrix);
    let fresh = || TensorData::new(numbers.clone(), matrix.dims());
    let kept = kept(fresh());
    let samples = [
        repeat(share, || {
            let mut data = fresh();
            device.staging(std::iter::once(&mut data));
            timed(device, || Tensor::<2>::from_data(data, device))
        }),
        repeat(share, || {
            let start = Instant::now();
            black_box(transfer::to_host(&matrix)).ok();
            start.elapsed()
        }),
        repeat(share, || {
            let data = fresh();
            timed(device, || transfer::to_device(data, device))
        }),
        repeat(share, || {
            let start = Instant::now();
            black_box(transfer::to_host(&matrix).map(|data| transfer::copy(&data))).ok();
            start.elapsed()
        }),
        repeat(share, || timed(device, || transfer::to_device(kept.clone(), device))),
        repeat(share, || {
            let start = Instant::now();
            black_box(transfer::all_to_host([&matrix])).ok();
            start.elapsed()
        }),
    ];
    let [pinned_in, pinned_out, pageable_in, pageable_out, run_in, run_out] =
        samples.map(|sample| rate(Bytes::new(COPIED as u64), clock.note(sample).median));
    Copies { pinned: [pinned_in, pinned_out], pageable: [pageable_in, pageable_out], run: [run_in, run_out] }
}

fn optimizer_rate((device, discrete_memory): (&Device, bool), clock: &mut Clock) -> ParamsPerSecond {
    let numbers = transfer::numbers(&filled(device, STEP));
    let share = clock.take(1);
    let sample = if discrete_memory { device_steps(device, &numbers, share) } else { host_steps(&numbers, share) };
    ParamsPerSecond::params(STEPPED as f64 / clock.note(sample).median.get())
}

fn device_steps(device: &Device, numbers: &[f32], share: Duration) -> Sample {
    let adam = AdamW::default();
    let held = DeviceParameter::new(filled(device, STEP), None);
    let mut state = Some((held, DeviceMoments::new(&adam.state(&Extent::whole(STEP)), STEP, device)));
    repeat(share, || {
        let gradient = transfer::to_device(TensorData::new(numbers.to_vec(), STEP), device);
        finish(device, ());
        let start = Instant::now();
        state = state.take().map(|(held, moments)| adam.step_on_device(held, (gradient, 1.0), moments));
        finish(device, ());
        start.elapsed()
    })
}

/// Steps as runs take them: in the memory of an arena, with gradients of 16 bits, and parameters of 16 bits beside
/// those of 32.
fn host_steps(numbers: &[f32], share: Duration) -> Sample {
    let wide = || TensorData::new(numbers.to_vec(), STEP);
    let (mut parameters, mut narrow) = (kept(wide()), kept(to_dtype(wide(), DType::BF16)));
    let gradients = kept(to_dtype(wide(), DType::BF16));
    let (adam, state) = (AdamW::default(), AdamW::default().state(&Extent::whole(STEP)));
    let mut state = match Arena::new(2 * size_of::<f32>() * STEPPED) {
        Ok(arena) => state.moved_to(&arena),
        Err(_) => state,
    };
    repeat(share, || {
        let start = Instant::now();
        let gradients = stored::numbers(&gradients).unwrap_or(Numbers::F32(&[]));
        let exchange = Exchange { weights: halves_mut(&mut narrow), ..Exchange::of(gradients) };
        adam.step_with(parameters.as_mut_slice().unwrap_or_default(), exchange, &mut state);
        start.elapsed()
    })
}

/// The same numbers in the memory of an arena, as runs have them.
fn kept(data: TensorData) -> TensorData {
    match Arena::new(data.as_bytes().len()) {
        Ok(arena) => arena.copied(&data),
        Err(_) => data,
    }
}

/// Launches queued before the device is waited for.
const QUEUED: u32 = 1000;

/// The time of a launch among many that are queued, and that of one that is waited for, on one
/// number.
fn launches(device: &Device, clock: &mut Clock) -> (Seconds, Seconds) {
    let one = filled(device, [1, 1]);
    let share = clock.take(1).min(Duration::from_millis(300)) / 2;
    let queued = repeat(share, || timed(device, || (0..QUEUED).fold(one.clone(), |sum, _| sum + one.clone())) / QUEUED);
    let waited = repeat_many(share, 200, || finish(device, one.clone() + one.clone()));
    (clock.note(queued).median, waited.median)
}
