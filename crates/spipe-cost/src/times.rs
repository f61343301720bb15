//! The times of a layer on a device: measured, profiled, or by the roofline.

use crate::{
    Mode, Workload,
    added::Added,
    compute_type,
    launches::launches,
    memory::selected,
    product_type,
    roofline::{Roofline, UNFUSED},
    workload::storage,
};
use spipe_base::{Bytes, Seconds};
use spipe_hardware::{AttentionKernel, Device, DeviceKind, LossKernel, MeasuredLayer, NormKernel, Runtime};
use spipe_model::{Attention, Layer, LayerKind, LayerWork, Op, Operations, Recompute};

/// The source of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Measured on this machine for exactly this layer and batch.
    Measured,
    /// The measured profile in the model file.
    Profiled,
    /// Computed from shapes and the device's rates.
    Roofline,
}

/// The times of a layer on a device, for one microbatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerTime {
    /// The forward.
    pub forward: Seconds,
    /// The gradient of its input.
    pub backward_input: Seconds,
    /// The gradients of its weights.
    pub backward_weight: Seconds,
    /// The additional time of the backward if activations were offloaded (measured devices only).
    pub replay: Seconds,
    /// The additional time of a backward that runs in two parts (measured devices only).
    pub split: Seconds,
    /// Bytes that the forward moves through the device's memory.
    pub forward_traffic: Bytes,
    /// Bytes that the backward moves through the device's memory.
    pub backward_traffic: Bytes,
    /// The fraction of the forward that a selective recompute repeats.
    pub selective_share: f64,
    /// The additional time of forward, backward-input and backward-weight if the device's queue is
    /// empty when the pass begins, so that host and device times add up.
    pub queueing: [Seconds; 3],
    /// The source of the times.
    pub source: Source,
}

impl LayerTime {
    /// The whole backward.
    pub fn backward(&self) -> Seconds {
        self.backward_input + self.backward_weight
    }
}

/// Returns the workload with the attention of the runtime: materialised if either is. Generation reads
/// a cache, one query at a time.
pub(crate) fn attending(workload: &Workload, runtime: &Runtime) -> Workload {
    let materialised = runtime.attention() == AttentionKernel::Materialised && workload.mode != Mode::Generate;
    let attention = if materialised { Attention::Materialised } else { workload.attention };
    Workload { attention, ..*workload }
}

/// Estimate of the passes over the logits of an unfused loss, relative to a fused one: a cast, a
/// normaliser, a difference, a gather and their gradients each read and write them.
const UNFUSED_LOSS: f64 = 3.5;

/// Returns the factor on the bytes of a layer's memory-bound operations.
fn passes(layer: &Layer, device: &Device, (workload, runtime): (&Workload, &Runtime)) -> f64 {
    match (&layer.kind, runtime.norms(), workload.loss(runtime)) {
        _ if !device.is_gpu() || device.emulated => 1.0,
        (LayerKind::Head(_), _, LossKernel::Unfused | LossKernel::InPlace) => UNFUSED_LOSS,
        (LayerKind::Head(_), _, _) => 1.0,
        (_, NormKernel::Unfused, _) => UNFUSED,
        (_, NormKernel::Fused | NormKernel::InPlace, _) => 1.0,
    }
}

/// Returns the same for `layer`: divided sequences have the blocks of a fused kernel.
pub(crate) fn attending_in(layer: &Layer, workload: &Workload, runtime: &Runtime) -> Workload {
    match layer.sequence_parts {
        1 => attending(workload, runtime),
        _ => Workload { attention: Attention::Fused, ..*workload },
    }
}

/// The attention kernel of a layer. The blocks of a ring are those of a fused kernel, whose parts are joined by the sums
/// of their rows (Liu et al. 2023, arXiv 2310.01889, section 3).
fn kernel(layer: &Layer, runtime: &Runtime) -> AttentionKernel {
    match runtime.attention() {
        AttentionKernel::Materialised if layer.sequence_parts > 1 => AttentionKernel::Flash2,
        kernel => kernel,
    }
}

fn roofline<'a>(layer: &Layer, device: &'a Device, (workload, runtime): (&Workload, &'a Runtime)) -> Roofline<'a> {
    Roofline {
        device,
        data_type: compute_type(device, workload.precision),
        products: match layer.kind {
            LayerKind::Block(_) => product_type(device, workload.precision),
            _ => compute_type(device, workload.precision),
        },
        element: storage(device, workload.precision).bytes(),
        attention: workload.attention,
        kernel: kernel(layer, runtime),
        runtime,
        passes: passes(layer, device, (workload, runtime)),
    }
}

/// Returns the times of a layer's attention alone in the forward and in the backward, by the roofline.
pub(crate) fn attention_times(
    layer: &Layer,
    device: &Device,
    (workload, runtime): (&Workload, &Runtime),
) -> Option<[Seconds; 2]> {
    let workload = attending_in(layer, workload, runtime);
    let roofline = roofline(layer, device, (&workload, runtime));
    let work = work(layer, &workload);
    let time = |ops: &[Op]| -> Option<Seconds> {
        ops.iter().filter(|op| matches!(op, Op::Attention { .. })).map(|op| roofline.time(op)).sum()
    };
    Some([time(&work.forward)?, time(&work.backward_input)?])
}

pub(crate) fn layer_time(
    layer: &Layer,
    device: &Device,
    (workload, runtime): (&Workload, &Runtime),
) -> Option<LayerTime> {
    let roofline = roofline(layer, device, (workload, runtime));
    let work = work(layer, workload);
    let Added { work: more, converting } = Added::of(layer, workload, &roofline);
    let (times, source) = times(layer, workload, &work, &roofline)?;
    // Measured times include their launches.
    let host = match source {
        Source::Roofline => launches(layer, (&work, &more), &roofline),
        _ => [[Seconds::ZERO; 3]; 2],
    };
    let added = [
        roofline.total(&more.forward)? + converting,
        roofline.total(&more.backward_input)? + converting,
        roofline.total(&more.backward_weight)?,
    ];
    let [replay, split] =
        measured(layer, workload, &roofline).map_or([Seconds::ZERO; 2], |time| [time.replay, time.split]);
    let training = workload.mode == Mode::Train;
    // A block with adapters has gradients inside it even if its input needs none.
    let adapted = layer.adaptation.is_some() && layer.learns() && layer.as_block().is_some();
    let passes = training && (layer.passes_gradient || adapted);
    let copied = layer.adaptation.as_ref().is_some_and(|adaptation| adaptation.copy.is_some());
    let trains = training && (layer.trains || copied);
    let runs = [[true, passes, trains], [true, passes, training]];
    let mut total = [[Seconds::ZERO; 3]; 2];
    for (pass, (time, added)) in times.into_iter().zip(added).enumerate() {
        for (part, (time, host)) in [(time, host[0][pass]), (added, host[1][pass])].into_iter().enumerate() {
            if runs[part][pass] {
                total[0][pass] = total[0][pass] + time;
                total[1][pass] = total[1][pass] + host;
            }
        }
    }
    let again = if passes || trains { repeated(layer, workload, (&roofline, total)) } else { [Seconds::ZERO; 2] };
    for (sum, again) in total.iter_mut().zip(again) {
        sum[1] = sum[1] + again;
    }
    let [device_time, host] = total;
    let shorter = |pass: usize| if device_time[pass] < host[pass] { device_time[pass] } else { host[pass] };
    let longer = |pass: usize| device_time[pass].max(host[pass]);
    let moved = |wanted: bool, ops: &[Op]| if wanted { roofline.traffic(ops) } else { Bytes::ZERO };
    Some(LayerTime {
        forward: longer(0),
        backward_input: longer(1),
        backward_weight: longer(2),
        replay: if passes || trains { replay } else { Seconds::ZERO },
        split: if passes && trains { split } else { Seconds::ZERO },
        forward_traffic: roofline.traffic(&work.forward) + roofline.traffic(&more.forward),
        backward_traffic: moved(passes, &work.backward_input)
            + moved(passes, &more.backward_input)
            + moved(trains, &work.backward_weight)
            + moved(training, &more.backward_weight),
        selective_share: selective_share(layer, workload, &roofline),
        queueing: [shorter(0), shorter(1), shorter(2)],
        source,
    })
}

/// Returns the times of device and host in which the backward repeats the operations of the workload,
/// as fractions of the forward; a replay has as many kernels per time.
fn repeated(layer: &Layer, workload: &Workload, (roofline, total): (&Roofline<'_>, [[Seconds; 3]; 2])) -> [Seconds; 2] {
    if workload.recompute_ops.is_empty() {
        return [Seconds::ZERO; 2];
    }
    let share = repeated_share(layer, workload, (roofline, workload.recompute_ops));
    total.map(|times| times[0] * share)
}

/// Returns the work of a layer in the workload's mode.
fn work(layer: &Layer, workload: &Workload) -> LayerWork {
    match workload.mode {
        Mode::Train | Mode::Infer => workload.shaped(layer, layer.work_without_adapters(workload.mean_batch())),
        Mode::Generate => LayerWork { forward: layer.generate_work(workload.batch()), ..LayerWork::default() },
    }
}

/// Returns the fraction of the forward that a selective recompute repeats. It always follows the
/// roofline, even if the times are measured.
fn selective_share(layer: &Layer, workload: &Workload, roofline: &Roofline<'_>) -> f64 {
    let mut again = layer.recompute_work(workload.mean_batch(), Recompute::Selective, workload.attention);
    workload.shape(layer, &mut again);
    let both = selected(workload.attention).shared(workload.recompute_ops);
    let less = if both.is_empty() { 0.0 } else { repeated_share(layer, workload, (roofline, both)) };
    (share_of_forward(layer, workload, (roofline, again)) - less).max(0.0)
}

/// Returns the fraction of the forward that `operations` take, by the roofline.
fn repeated_share(layer: &Layer, workload: &Workload, (roofline, operations): (&Roofline<'_>, Operations)) -> f64 {
    let mut again = layer.repeated_work(operations, workload.mean_batch());
    workload.shape(layer, &mut again);
    share_of_forward(layer, workload, (roofline, again))
}

fn share_of_forward(layer: &Layer, workload: &Workload, (roofline, ops): (&Roofline<'_>, Vec<Op>)) -> f64 {
    let mut forward = layer.work_without_adapters(workload.mean_batch()).forward;
    workload.shape(layer, &mut forward);
    match (roofline.total(&ops), roofline.total(&forward)) {
        (Some(again), Some(whole)) if whole > Seconds::ZERO => (again / whole).min(1.0),
        _ => 0.0,
    }
}

/// Returns the measured times of a layer on a device. Measurements of whole sequences are not used
/// for generating with a cache.
fn measured(layer: &Layer, workload: &Workload, roofline: &Roofline<'_>) -> Option<MeasuredLayer> {
    let signature = match workload.mode {
        // Measurements are those of whole sequences.
        Mode::Train | Mode::Infer if workload.data.lengths.is_some() => return None,
        Mode::Train | Mode::Infer => layer.own_signature(workload.batch()),
        Mode::Generate => layer.generate_signature(workload.batch()),
    };
    roofline.device.layer_time(&signature, roofline.products)
}

/// Returns the times of forward, backward-input and backward-weight with their source. When
/// generating, the times of a profiled layer are scaled to one token, so they should be measured on
/// one token.
fn times(
    layer: &Layer,
    workload: &Workload,
    work: &LayerWork,
    roofline: &Roofline<'_>,
) -> Option<([Seconds; 3], Source)> {
    let (device, batch) = (roofline.device, workload.mean_batch());
    let generating = workload.mode == Mode::Generate;
    if let Some(time) = measured(layer, workload, roofline) {
        return Some(([time.forward, time.backward_input, time.backward_weight], Source::Measured));
    }
    let is_gpu = matches!(device.kind, DeviceKind::Gpu);
    let seen = if generating { layer.generated(batch) } else { batch };
    if let Some(time) = layer.profile(&device.name, is_gpu, seen) {
        return Some(([time.forward, time.backward_input, time.backward_weight], Source::Profiled));
    }
    if layer.is_profiled() {
        return None;
    }
    let total = |ops: &[Op]| roofline.total(ops);
    let times = [total(&work.forward)?, total(&work.backward_input)?, total(&work.backward_weight)?];
    Some((times, Source::Roofline))
}
