//! The cost table: computed once per kind of layer and device, and indexed by layer and device.

use crate::{
    CostError, LayerMemory, Mesh, Mode, Workload,
    added::Added,
    compute_type,
    launches::launches,
    memory::selected,
    roofline::{Roofline, UNFUSED},
    steps::StepWork,
};
use spipe_base::{Bytes, BytesPerSecond, DeviceId, IdVec, LayerId, ParamsPerSecond, Seconds};
use spipe_hardware::{
    AttentionKernel, Constant, DataType, Device, DeviceKind, Hardware, LossKernel, MeasuredLayer, NormKernel, Runtime,
};
use spipe_model::{Attention, Layer, LayerKind, LayerWork, Model, Op, Operations, Precision, Recompute};
use std::collections::BTreeMap;

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

/// Time and memory of every layer on every device.
#[derive(Clone, Debug)]
pub struct CostTable {
    workload: Workload,
    kind_of: IdVec<LayerId, usize>,
    parameters: IdVec<LayerId, u64>,
    trained: IdVec<LayerId, u64>,
    needs_backward: IdVec<LayerId, bool>,
    without_backward: usize,
    /// Indexed by kind of layer, then by device.
    times: Vec<Vec<Option<LayerTime>>>,
    memories: Vec<Vec<LayerMemory>>,
    optimizer_rates: IdVec<DeviceId, ParamsPerSecond>,
    steps: IdVec<DeviceId, StepWork>,
    /// The host's time to launch the kernels of a step; zero on sockets and emulated devices.
    optimizer_launches: IdVec<DeviceId, Seconds>,
    storage: IdVec<DeviceId, Precision>,
    bandwidths: IdVec<DeviceId, BytesPerSecond>,
    mesh: Mesh,
    /// Whether programs have all replicas of the mesh, instead of one that stands for all.
    shows_all: bool,
}

impl CostTable {
    /// Computes the table of `model` on `hardware` for `workload`.
    pub fn new(model: &Model, hardware: &Hardware, workload: &Workload) -> Result<Self, CostError> {
        workload.check()?;
        let mut kinds = BTreeMap::new();
        let mut table = Self {
            workload: *workload,
            kind_of: IdVec::new(),
            parameters: model.layers().iter().map(|layer| layer.parameters).collect(),
            trained: model.layers().iter().map(Layer::trained_parameters).collect(),
            needs_backward: model.layers().iter().map(|layer| layer.needs_backward).collect(),
            without_backward: model.layers().iter().take_while(|layer| !layer.needs_backward).count(),
            times: Vec::new(),
            memories: Vec::new(),
            optimizer_rates: hardware
                .devices()
                .iter()
                .map(|device| optimizer_rate(device, (model.layers().iter(), workload), hardware.runtime()))
                .collect(),
            steps: hardware
                .devices()
                .iter()
                .map(|device| StepWork::of(model.layers().iter(), workload, storage(device, workload.precision)))
                .collect(),
            optimizer_launches: hardware
                .devices()
                .iter()
                .map(|device| step_launches(device, hardware.runtime()))
                .collect(),
            storage: hardware.devices().iter().map(|device| storage(device, workload.precision)).collect(),
            bandwidths: hardware.devices().iter().map(|device| device.memory_bandwidth).collect(),
            mesh: Mesh::default(),
            shows_all: false,
        };
        for (id, layer) in model.layers().enumerate() {
            let passes = (layer.trains, layer.needs_backward, layer.passes_gradient);
            // The kind includes the bytes of a cut after the layer: equal layers with different
            // skip connections around them differ in cost at the end of a stage.
            let cut = model.cut_bytes(id, workload.batch(), Precision::Fp32);
            let key = (layer.signature(workload.batch()), layer.parameters, passes, cut);
            let next = table.times.len();
            let kind = *kinds.entry(key).or_insert(next);
            if kind == next {
                table.add_kind(model, id, hardware)?;
            }
            table.kind_of.push(kind);
        }
        Ok(table)
    }

    fn add_kind(&mut self, model: &Model, id: LayerId, hardware: &Hardware) -> Result<(), CostError> {
        let layer = &model.layers()[id];
        let runtime = hardware.runtime();
        let workload = attending(&self.workload, runtime);
        let times: Vec<_> =
            hardware.devices().iter().map(|device| layer_time(layer, device, (&workload, runtime))).collect();
        if times.iter().all(Option::is_none) {
            return Err(CostError::Nowhere { layer: layer.name.clone(), hardware: hardware.name().into() });
        }
        self.times.push(times);
        self.memories.push(
            hardware
                .devices()
                .iter()
                .map(|device| LayerMemory::of(model, id, (&workload, runtime), storage(device, workload.precision)))
                .collect(),
        );
        Ok(())
    }

    /// Replaces the times of each kind of layer on each device, given one layer of the kind.
    pub(crate) fn each_time(&mut self, change: impl Fn(LayerId, LayerTime) -> LayerTime) {
        for (kind, row) in self.times.iter_mut().enumerate() {
            let Some((layer, _)) = self.kind_of.enumerate().find(|(_, of)| **of == kind) else { continue };
            row.iter_mut().flatten().for_each(|time| *time = change(layer, *time));
        }
    }

    /// Replaces the memory of each kind of layer on each device, given one layer of the kind.
    pub(crate) fn each_memory(&mut self, change: impl Fn((LayerId, DeviceId), LayerMemory) -> LayerMemory) {
        for (kind, row) in self.memories.iter_mut().enumerate() {
            let Some((layer, _)) = self.kind_of.enumerate().find(|(_, of)| **of == kind) else { continue };
            row.iter_mut().enumerate().for_each(|(at, memory)| *memory = change((layer, at.into()), *memory));
        }
    }

    /// Divides the parameters that a device steps.
    pub(crate) fn divide_steps(&mut self, parts: u64) {
        self.trained.iter_mut().for_each(|trained| *trained = trained.div_ceil(parts));
    }

    pub(crate) fn set_mesh(&mut self, mesh: &Mesh) {
        self.mesh = mesh.clone();
    }

    /// Returns the workload of one replica.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Returns the workload of all replicas.
    pub fn whole_workload(&self) -> Workload {
        Workload { microbatches: self.workload.microbatches * self.mesh.data(), ..self.workload }
    }

    /// Returns the mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Returns the same table for programs that have all replicas of the mesh, instead of one that stands for all.
    #[must_use]
    pub fn showing_all(self) -> Self {
        Self { shows_all: true, ..self }
    }

    /// Whether programs have all replicas of the mesh.
    pub const fn shows_all(&self) -> bool {
        self.shows_all
    }

    /// Returns the table of a machine whose devices are `devices` of this table's, in this order: leads of teams, without
    /// their members and the other replicas.
    pub fn restricted_to(&self, devices: &[DeviceId]) -> Self {
        let at = |device: &DeviceId| device.index();
        Self {
            times: self.times.iter().map(|row| devices.iter().map(|device| row[at(device)]).collect()).collect(),
            memories: self.memories.iter().map(|row| devices.iter().map(|device| row[at(device)]).collect()).collect(),
            optimizer_rates: devices.iter().map(|device| self.optimizer_rates[*device]).collect(),
            steps: devices.iter().map(|device| self.steps[*device]).collect(),
            optimizer_launches: devices.iter().map(|device| self.optimizer_launches[*device]).collect(),
            storage: devices.iter().map(|device| self.storage[*device]).collect(),
            bandwidths: devices.iter().map(|device| self.bandwidths[*device]).collect(),
            mesh: self.mesh.of_leads(devices),
            ..self.clone()
        }
    }

    /// Iterates over the layers in model order.
    pub fn layers(&self) -> impl DoubleEndedIterator<Item = LayerId> + ExactSizeIterator + use<> {
        self.kind_of.ids()
    }

    /// Iterates over the devices in the machine's order.
    pub fn devices(&self) -> impl DoubleEndedIterator<Item = DeviceId> + ExactSizeIterator + use<> {
        self.optimizer_rates.ids()
    }

    /// Returns the times of `layer` on `device`; `None` if it cannot run there.
    pub fn time(&self, layer: LayerId, device: DeviceId) -> Option<&LayerTime> {
        self.times[self.kind_of[layer]][device.index()].as_ref()
    }

    /// Returns the memory of `layer` on `device`.
    pub fn memory(&self, layer: LayerId, device: DeviceId) -> &LayerMemory {
        &self.memories[self.kind_of[layer]][device.index()]
    }

    /// Returns the additional time of a recompute of `layer` on `device`: the fraction of its
    /// forward that is repeated.
    pub fn recompute_time(&self, layer: LayerId, device: DeviceId, recompute: Recompute) -> Option<Seconds> {
        let time = self.time(layer, device)?;
        Some(match recompute {
            Recompute::None => Seconds::ZERO,
            Recompute::Full => time.forward,
            Recompute::Selective => time.forward * time.selective_share,
        })
    }

    /// Returns the kind of `layer`. Layers of the same kind cost the same on every device.
    pub fn kind(&self, layer: LayerId) -> usize {
        self.kind_of[layer]
    }

    /// Returns the number of parameters of `layer`.
    pub fn parameters(&self, layer: LayerId) -> u64 {
        self.parameters[layer]
    }

    /// Returns the number of trained parameters of `layer` that a device steps: its own unless it is frozen, and those of
    /// its adapters.
    pub fn trained_parameters(&self, layer: LayerId) -> u64 {
        self.trained[layer]
    }

    /// Whether a backward runs through `layer`: in training, if it or a layer that it reads,
    /// directly or indirectly, trains.
    pub fn needs_backward(&self, layer: LayerId) -> bool {
        self.workload.mode == Mode::Train && self.needs_backward[layer]
    }

    /// Returns the number of leading layers without a backward; outside of training, all layers.
    pub fn without_backward(&self) -> usize {
        match self.workload.mode {
            Mode::Train => self.without_backward,
            _ => self.kind_of.len(),
        }
    }

    /// Returns the precision in which `device` stores parameters and activations.
    pub fn storage(&self, device: DeviceId) -> Precision {
        self.storage[device]
    }

    /// Returns the time of an optimizer step on `parameters` in the memory of `device`.
    pub fn optimizer_time(&self, parameters: u64, device: DeviceId) -> Seconds {
        Seconds::s(parameters as f64 / self.optimizer_rates[device].get()).max(self.optimizer_launches[device])
    }

    /// Returns the time to add `bytes` of gradients to an accumulator on `device`: two reads and
    /// one write.
    pub fn accumulate_time(&self, bytes: Bytes, device: DeviceId) -> Seconds {
        (bytes * 3) / self.bandwidths[device]
    }

    /// Returns the time to read `bytes` of gradients for their norm on `device`.
    pub fn norm_time(&self, bytes: Bytes, device: DeviceId) -> Seconds {
        bytes / self.bandwidths[device]
    }

    /// Returns the bytes that an optimizer step on `parameters` moves through the memory of
    /// `device`.
    pub fn optimizer_traffic(&self, parameters: u64, device: DeviceId) -> Bytes {
        self.steps[device].traffic(parameters)
    }
}

/// Returns the precision in which `device` stores parameters and activations.
pub(crate) fn storage(device: &Device, precision: Precision) -> Precision {
    match compute_type(device, precision) {
        DataType::Bf16 => Precision::Bf16,
        DataType::F16 => Precision::Fp16,
        _ => Precision::Fp32,
    }
}

/// Returns the optimizer rate in parameters per second: a socket's own figure, or a GPU's memory
/// bandwidth divided by the bytes that a step moves per parameter. Arithmetic that does not hide behind
/// them takes its own time.
pub(crate) fn optimizer_rate<'a>(
    device: &Device,
    (layers, workload): (impl Iterator<Item = &'a Layer>, &Workload),
    runtime: &Runtime,
) -> ParamsPerSecond {
    let step = StepWork::of(layers, workload, storage(device, workload.precision));
    let rate = match &device.kind {
        DeviceKind::Socket { optimizer_rate, .. } => match workload.optimizer.socket_factor(step.bytes_per_parameter())
        {
            1.0 => *optimizer_rate,
            factor => ParamsPerSecond::params(optimizer_rate.get() * factor),
        },
        DeviceKind::Gpu => ParamsPerSecond::params(device.memory_bandwidth.get() / step.bytes_per_parameter()),
    };
    let peak = device.peak.get(&compute_type(device, workload.precision)).map(|peak| peak.get());
    let rate = match peak.filter(|_| step.flops_per_parameter() > 0.0) {
        Some(peak) => {
            let arithmetic = step.flops_per_parameter() / (peak * device.efficiency.largest_share());
            ParamsPerSecond::params(1.0 / (1.0 / rate.get() + arithmetic))
        }
        None => rate,
    };
    ParamsPerSecond::new(rate.get() * runtime.constant(Constant::Optimizer)).unwrap_or(rate)
}

/// Returns the host's time to launch the kernels of an optimizer step on `device`.
fn step_launches(device: &Device, runtime: &Runtime) -> Seconds {
    if device.is_gpu() && !device.emulated { runtime.optimizer_launches() } else { Seconds::ZERO }
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

pub(crate) fn layer_time(
    layer: &Layer,
    device: &Device,
    (workload, runtime): (&Workload, &Runtime),
) -> Option<LayerTime> {
    let roofline = Roofline {
        device,
        data_type: compute_type(device, workload.precision),
        element: storage(device, workload.precision).bytes(),
        attention: workload.attention,
        runtime,
        passes: passes(layer, device, (workload, runtime)),
    };
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
    roofline.device.layer_time(&signature, roofline.data_type)
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
