//! The table itself: computed once per kind of layer and device, read by layer and device.

use crate::{LayerMemory, Mode, Workload, compute_type, roofline::Roofline};
use spipe_base::{Bytes, BytesPerSecond, DeviceId, IdVec, LayerId, ParamsPerSecond, Seconds};
use spipe_hardware::{DataType, Device, DeviceKind, Hardware, MeasuredLayer};
use spipe_model::{Layer, LayerWork, Model, Op, Precision, Recompute};
use std::collections::BTreeMap;

/// Where a time comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Measured on this machine for exactly this layer and batch.
    Measured,
    /// The model file's own measured profile.
    Profiled,
    /// Computed from shapes and the device's rates.
    Roofline,
}

/// How long a layer takes on a device, for one microbatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerTime {
    /// Its forward.
    pub forward: Seconds,
    /// The gradient of its input.
    pub backward_input: Seconds,
    /// The gradients of its weights.
    pub backward_weight: Seconds,
    /// What its backward takes longer where its activations were offloaded (measured devices only).
    pub replay: Seconds,
    /// Bytes that the forward moves through the device's memory.
    pub forward_traffic: Bytes,
    /// Bytes that the backward moves through the device's memory.
    pub backward_traffic: Bytes,
    /// The share of the forward that a selective recompute does again.
    pub selective_share: f64,
    /// Where the figures come from.
    pub source: Source,
}

impl LayerTime {
    /// The whole backward.
    pub fn backward(&self) -> Seconds {
        self.backward_input + self.backward_weight
    }
}

/// Why there is no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CostError {
    /// A batch of nothing.
    #[error("{what} is zero")]
    Zero {
        /// Which figure.
        what: &'static str,
    },
    /// A batch of more than can be counted.
    #[error("{what} is more than {most}")]
    TooLarge {
        /// Which figure.
        what: &'static str,
        /// The largest that it may be.
        most: u64,
    },
    /// A layer that no device can run.
    #[error("layer `{layer}` has no time on any device of `{hardware}`")]
    Nowhere {
        /// The layer's name.
        layer: String,
        /// The machine's name.
        hardware: String,
    },
}

/// Time and memory of every layer on every device.
#[derive(Clone, Debug)]
pub struct CostTable {
    workload: Workload,
    kind_of: IdVec<LayerId, usize>,
    parameters: IdVec<LayerId, u64>,
    trains: IdVec<LayerId, bool>,
    needs_backward: IdVec<LayerId, bool>,
    without_backward: usize,
    /// By kind of layer, then device.
    times: Vec<Vec<Option<LayerTime>>>,
    memories: Vec<Vec<LayerMemory>>,
    optimizer_rates: IdVec<DeviceId, ParamsPerSecond>,
    storage: IdVec<DeviceId, Precision>,
    bandwidths: IdVec<DeviceId, BytesPerSecond>,
}

impl CostTable {
    /// The table of `model` on `hardware` under `workload`.
    pub fn new(model: &Model, hardware: &Hardware, workload: &Workload) -> Result<Self, CostError> {
        workload.check()?;
        let mut kinds = BTreeMap::new();
        let mut table = Self {
            workload: *workload,
            kind_of: IdVec::new(),
            parameters: model.layers().iter().map(|layer| layer.parameters).collect(),
            trains: model.layers().iter().map(|layer| layer.trains).collect(),
            needs_backward: model.layers().iter().map(|layer| layer.needs_backward).collect(),
            without_backward: model.layers().iter().take_while(|layer| !layer.needs_backward).count(),
            times: Vec::new(),
            memories: Vec::new(),
            optimizer_rates: hardware.devices().iter().map(|device| optimizer_rate(device, workload)).collect(),
            storage: hardware.devices().iter().map(|device| storage(device, workload.precision)).collect(),
            bandwidths: hardware.devices().iter().map(|device| device.memory_bandwidth).collect(),
        };
        for (id, layer) in model.layers().enumerate() {
            let passes = (layer.trains, layer.needs_backward, layer.passes_gradient);
            // Two layers before which different skip connections begin cost differently if a stage ends behind them.
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
        let times: Vec<_> = hardware.devices().iter().map(|device| layer_time(layer, device, &self.workload)).collect();
        if times.iter().all(Option::is_none) {
            return Err(CostError::Nowhere { layer: layer.name.clone(), hardware: hardware.name().into() });
        }
        self.times.push(times);
        self.memories.push(
            hardware
                .devices()
                .iter()
                .map(|device| LayerMemory::of(model, id, &self.workload, storage(device, self.workload.precision)))
                .collect(),
        );
        Ok(())
    }

    /// What was asked for.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// The layers, in model order.
    pub fn layers(&self) -> impl DoubleEndedIterator<Item = LayerId> + ExactSizeIterator + use<> {
        self.kind_of.ids()
    }

    /// The devices, in the machine's order.
    pub fn devices(&self) -> impl DoubleEndedIterator<Item = DeviceId> + ExactSizeIterator + use<> {
        self.optimizer_rates.ids()
    }

    /// How long `layer` takes on `device`; none if it cannot run there.
    pub fn time(&self, layer: LayerId, device: DeviceId) -> Option<&LayerTime> {
        self.times[self.kind_of[layer]][device.index()].as_ref()
    }

    /// What `layer` holds on `device`.
    pub fn memory(&self, layer: LayerId, device: DeviceId) -> &LayerMemory {
        &self.memories[self.kind_of[layer]][device.index()]
    }

    /// The extra forward time when `layer` is recomputed on `device`: its forward, times the share of the operations that
    /// are done again.
    pub fn recompute_time(&self, layer: LayerId, device: DeviceId, recompute: Recompute) -> Option<Seconds> {
        let time = self.time(layer, device)?;
        Some(match recompute {
            Recompute::None => Seconds::ZERO,
            Recompute::Full => time.forward,
            Recompute::Selective => time.forward * time.selective_share,
        })
    }

    /// Two layers of the same kind cost the same on every device.
    pub fn kind(&self, layer: LayerId) -> usize {
        self.kind_of[layer]
    }

    /// The number of parameters of `layer`.
    pub fn parameters(&self, layer: LayerId) -> u64 {
        self.parameters[layer]
    }

    /// The number of parameters of `layer` that are trained: all of them or none.
    pub fn trained_parameters(&self, layer: LayerId) -> u64 {
        if self.trains[layer] { self.parameters[layer] } else { 0 }
    }

    /// Whether a backward runs through `layer`: in training, if it trains or one of those that it reads does, directly or
    /// through others.
    pub fn needs_backward(&self, layer: LayerId) -> bool {
        self.workload.mode == Mode::Train && self.needs_backward[layer]
    }

    /// How many layers at the front of the model no backward runs through: all of them outside of training.
    pub fn without_backward(&self) -> usize {
        match self.workload.mode {
            Mode::Train => self.without_backward,
            _ => self.kind_of.len(),
        }
    }

    /// The precision in which `device` stores parameters and activations.
    pub fn storage(&self, device: DeviceId) -> Precision {
        self.storage[device]
    }

    /// How long `device` takes to step that many parameters that it holds itself.
    pub fn optimizer_time(&self, parameters: u64, device: DeviceId) -> Seconds {
        Seconds::s(parameters as f64 / self.optimizer_rates[device].get())
    }

    /// How long `device` takes to add `bytes` to as many: two are read and one is written for each.
    pub fn accumulate_time(&self, bytes: Bytes, device: DeviceId) -> Seconds {
        (bytes * 3) / self.bandwidths[device]
    }

    /// How long `device` takes to read `bytes` of gradients for their norm.
    pub fn norm_time(&self, bytes: Bytes, device: DeviceId) -> Seconds {
        bytes / self.bandwidths[device]
    }

    /// Bytes that a step of that many parameters moves through the memory of `device`.
    pub fn optimizer_traffic(&self, parameters: u64, device: DeviceId) -> Bytes {
        Bytes::new(parameters * self.workload.optimizer.step_bytes(self.storage[device].bytes()))
    }
}

/// The precision in which `device` stores parameters and activations.
pub(crate) fn storage(device: &Device, precision: Precision) -> Precision {
    match compute_type(device, precision) {
        DataType::Bf16 => Precision::Bf16,
        DataType::F16 => Precision::Fp16,
        _ => Precision::Fp32,
    }
}

/// Parameters per second: a socket's own figure; on a GPU its memory bandwidth over the bytes that a step moves.
pub(crate) fn optimizer_rate(device: &Device, workload: &Workload) -> ParamsPerSecond {
    match &device.kind {
        DeviceKind::Socket { optimizer_rate, .. } => *optimizer_rate,
        DeviceKind::Gpu => {
            let moved = workload.optimizer.step_bytes(storage(device, workload.precision).bytes());
            ParamsPerSecond::params(device.memory_bandwidth.get() / moved as f64)
        }
    }
}

pub(crate) fn layer_time(layer: &Layer, device: &Device, workload: &Workload) -> Option<LayerTime> {
    let roofline = Roofline {
        device,
        data_type: compute_type(device, workload.precision),
        element: storage(device, workload.precision).bytes(),
        attention: workload.attention,
    };
    let work = work(layer, workload);
    let (times, source) = times(layer, workload, &work, &roofline)?;
    let replay = measured(layer, workload, &roofline).map_or(Seconds::ZERO, |time| time.replay);
    let training = workload.mode == Mode::Train;
    let [forward, backward_input, backward_weight] = times;
    let (passes, trains) = (training && layer.passes_gradient, training && layer.trains);
    let when = |wanted: bool, time: Seconds| if wanted { time } else { Seconds::ZERO };
    let moved = |wanted: bool, ops: &[Op]| if wanted { roofline.traffic(ops) } else { Bytes::ZERO };
    Some(LayerTime {
        forward,
        backward_input: when(passes, backward_input),
        backward_weight: when(trains, backward_weight),
        replay: when(passes || trains, replay),
        forward_traffic: roofline.traffic(&work.forward),
        backward_traffic: moved(passes, &work.backward_input) + moved(trains, &work.backward_weight),
        selective_share: selective_share(layer, workload, &roofline),
        source,
    })
}

/// What a layer computes in the workload's mode.
fn work(layer: &Layer, workload: &Workload) -> LayerWork {
    match workload.mode {
        Mode::Train | Mode::Infer => layer.work(workload.batch()),
        Mode::Generate => LayerWork { forward: layer.generate_work(workload.batch()), ..LayerWork::default() },
    }
}

/// By the roofline, whatever the source of the whole: the shape of a layer says which of its operations are done again.
fn selective_share(layer: &Layer, workload: &Workload, roofline: &Roofline<'_>) -> f64 {
    let (batch, attention) = (workload.batch(), workload.attention);
    let again = roofline.total(&layer.recompute_work(batch, Recompute::Selective, attention));
    let whole = roofline.total(&layer.work(batch).forward);
    match (again, whole) {
        (Some(again), Some(whole)) if whole > Seconds::ZERO => (again / whole).min(1.0),
        _ => 0.0,
    }
}

/// What was measured of a layer on a device. Measurements of whole sequences say nothing about generating with a cache.
fn measured(layer: &Layer, workload: &Workload, roofline: &Roofline<'_>) -> Option<MeasuredLayer> {
    let signature = match workload.mode {
        Mode::Train | Mode::Infer => layer.signature(workload.batch()),
        Mode::Generate => layer.generate_signature(workload.batch()),
    };
    roofline.device.layer_time(&signature, roofline.data_type)
}

/// Forward, backward-input and backward-weight from the best source there is. When generating, the times of a profiled layer are
/// scaled to one token, so measure it on one.
fn times(
    layer: &Layer,
    workload: &Workload,
    work: &LayerWork,
    roofline: &Roofline<'_>,
) -> Option<([Seconds; 3], Source)> {
    let (device, batch) = (roofline.device, workload.batch());
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
