//! The cost table: computed once per kind of layer and device, and indexed by layer and device.

use crate::{
    CostError, LayerMemory, LayerTime, Mesh, Mode, ShardGroups, SharedLinks, Workload, compute_type,
    shared_links::KnownLinks,
    steps::StepWork,
    times::{attending_in, layer_time},
    workload::storage,
};
use spipe_base::{Bytes, BytesPerSecond, DeviceId, IdVec, LayerId, ParamsPerSecond, Seconds};
use spipe_hardware::{Constant, Device, DeviceKind, Hardware, Runtime};
use spipe_model::{Layer, Model, Precision, Recompute};
use std::{collections::BTreeMap, sync::Arc};

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
    /// By layer, the parameters of experts of a mesh that divides them, and all parameters; zeros without such experts.
    experts: IdVec<LayerId, [u64; 2]>,
    /// Whether programs have all replicas of the mesh, instead of one that stands for all.
    shows_all: bool,
    links: KnownLinks,
}

impl CostTable {
    /// Computes the table of `model` on `hardware` for `workload`.
    pub fn new(model: &Model, hardware: &Hardware, workload: &Workload) -> Result<Self, CostError> {
        workload.check()?;
        let (mut kinds, runs) = (BTreeMap::new(), Runs::of(hardware));
        let rate = |device: &Device| optimizer_rate(device, (model.layers().iter(), workload), hardware.runtime());
        let step = |device: &Device| StepWork::of(model.layers().iter(), workload, storage(device, workload.precision));
        let mut table = Self {
            workload: *workload,
            kind_of: IdVec::new(),
            parameters: model.layers().iter().map(|layer| layer.parameters).collect(),
            trained: model.layers().iter().map(Layer::trained_parameters).collect(),
            needs_backward: model.layers().iter().map(|layer| layer.needs_backward).collect(),
            without_backward: model.layers().iter().take_while(|layer| !layer.needs_backward).count(),
            times: Vec::new(),
            memories: Vec::new(),
            optimizer_rates: runs.each(rate).collect(),
            steps: runs.each(step).collect(),
            optimizer_launches: hardware
                .devices()
                .iter()
                .map(|device| step_launches(device, hardware.runtime()))
                .collect(),
            storage: hardware.devices().iter().map(|device| storage(device, workload.precision)).collect(),
            bandwidths: hardware.devices().iter().map(|device| device.memory_bandwidth).collect(),
            mesh: Mesh::default(),
            experts: model.layers().iter().map(|_| [0; 2]).collect(),
            shows_all: false,
            links: KnownLinks::default(),
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
                table.add_kind(model, id, (hardware, &runs))?;
            }
            table.kind_of.push(kind);
        }
        Ok(table)
    }

    fn add_kind(
        &mut self,
        model: &Model,
        id: LayerId,
        (hardware, runs): (&Hardware, &Runs<'_>),
    ) -> Result<(), CostError> {
        let layer = &model.layers()[id];
        let runtime = hardware.runtime();
        let workload = attending_in(layer, &self.workload, runtime);
        let times: Vec<_> = runs.each(|device| layer_time(layer, device, (&workload, runtime))).collect();
        if times.iter().all(Option::is_none) {
            return Err(CostError::Nowhere { layer: layer.name.clone(), hardware: hardware.name().into() });
        }
        self.times.push(times);
        let memory =
            |device: &Device| LayerMemory::of(model, id, (&workload, runtime), storage(device, workload.precision));
        self.memories.push(runs.each(memory).collect());
        Ok(())
    }

    /// Replaces the times of each kind of layer on each device, given one layer of the kind.
    pub(crate) fn each_time(&mut self, change: impl Fn((LayerId, DeviceId), LayerTime) -> LayerTime) {
        for (kind, row) in self.times.iter_mut().enumerate() {
            let Some((layer, _)) = self.kind_of.enumerate().find(|(_, of)| **of == kind) else { continue };
            for (at, time) in row.iter_mut().enumerate() {
                *time = time.map(|time| change((layer, at.into()), time));
            }
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
    pub(crate) fn divide_steps(&mut self) {
        for layer in self.layers() {
            self.trained[layer] = self.state_part(layer, Bytes::new(self.trained[layer])).get();
        }
    }

    /// Sets the mesh, of which `part` has what a member holds.
    pub(crate) fn set_mesh(&mut self, mesh: &Mesh, part: &Model) {
        let of = |layer: &Layer| match layer.as_block() {
            Some(block) if mesh.expert > 1 => [block.expert_parameters(), layer.parameters],
            _ => [0; 2],
        };
        self.experts = part.layers().iter().map(of).collect();
        self.mesh = mesh.clone();
    }

    /// Returns the part of `bytes`, which belong to the parameters of `layer` in proportion, that belongs to experts which
    /// devices divide.
    pub fn of_experts(&self, layer: LayerId, bytes: Bytes) -> Bytes {
        let [experts, all] = self.experts[layer].map(u128::from);
        let part = (u128::from(bytes.get()) * experts).checked_div(all).unwrap_or(0);
        Bytes::new(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// Returns the part of `bytes` of a layer's optimizer that a device has; all of them if the optimizer is not divided.
    pub fn state_part(&self, layer: LayerId, bytes: Bytes) -> Bytes {
        let experts = self.of_experts(layer, bytes);
        if self.mesh.state_parts() == 1 { bytes } else { self.mesh.holders_part([bytes - experts, experts]) }
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

    /// Returns the same table for one replica of `mesh`, which has its share of the microbatches and stands for all.
    #[must_use]
    pub fn of_one_replica(&self, mesh: &Mesh) -> Self {
        let workload = Workload { microbatches: self.workload.microbatches / mesh.data(), ..self.workload };
        Self { workload, mesh: mesh.clone(), ..self.clone() }
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

    /// Whether all layers have the same times and bytes on two devices, and optimizer steps the same times.
    pub fn alike(&self, one: DeviceId, other: DeviceId) -> bool {
        let [at, beside] = [one.index(), other.index()];
        self.times.iter().all(|row| row[at] == row[beside])
            && self.memories.iter().all(|row| row[at] == row[beside])
            && self.optimizer_rates[one] == self.optimizer_rates[other]
            && self.optimizer_launches[one] == self.optimizer_launches[other]
            && self.bandwidths[one] == self.bandwidths[other]
    }

    /// Returns the links among groups of devices of the table's machine, which share all layers.
    pub fn shared_links(&self, hardware: &Hardware, groups: &ShardGroups) -> Arc<SharedLinks> {
        self.links.among(hardware, groups)
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

/// The devices of a machine, in runs of neighbours that compute alike.
struct Runs<'a>(Vec<(&'a Device, usize)>);

impl<'a> Runs<'a> {
    fn of(hardware: &'a Hardware) -> Self {
        let mut runs: Vec<(&Device, usize)> = Vec::new();
        for device in hardware.devices().iter() {
            match runs.last_mut().filter(|(before, _)| before.computes_like(device)) {
                Some((_, count)) => *count += 1,
                None => runs.push((device, 1)),
            }
        }
        Self(runs)
    }

    /// A figure of each device, which is computed once for a run.
    fn each<T: Clone>(&self, figure: impl Fn(&Device) -> T) -> impl Iterator<Item = T> {
        self.0.iter().flat_map(move |(device, count)| std::iter::repeat_n(figure(device), *count))
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
