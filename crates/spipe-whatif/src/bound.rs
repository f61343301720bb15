//! A lower bound of the time of a training on a machine, from the cost table alone
//! ([`spipe_cost::least_time`]). The bound of a training is the least over its sizes of microbatches.

use spipe_base::DeviceId;
use spipe_cost::{BOUND_ROUNDING, CostTable, Workload, layer_time, least_time};
use spipe_hardware::{Device, DeviceKind, Hardware};
use spipe_model::{LayerKind, Model};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Times of the layers on one kind of device, in ms per microbatch, for each size of microbatches;
/// infinite where a layer cannot run.
type Times = Vec<Vec<f64>>;

/// The bounds of one training on any machine. Machines share the tables of their kinds of devices.
#[derive(Debug)]
pub struct Bounder {
    model: Model,
    workloads: Vec<Workload>,
    known: Mutex<BTreeMap<String, Arc<Times>>>,
}

impl Bounder {
    /// Creates the bounds of training `model` with any of `workloads`.
    pub const fn new(model: Model, workloads: Vec<Workload>) -> Self {
        Self { model, workloads, known: Mutex::new(BTreeMap::new()) }
    }

    /// Returns a rate that no plan exceeds, in tokens per second; infinite if nothing is known.
    pub fn most_tokens_per_second(&self, hardware: &Hardware) -> f64 {
        let mut kinds: BTreeMap<String, (DeviceId, f64)> = BTreeMap::new();
        for (id, device) in hardware.devices().enumerate() {
            kinds.entry(self.key(device, hardware)).or_insert((id, 0.0)).1 += 1.0;
        }
        let times = kinds.iter().map(|(key, (device, count))| Some((self.times(hardware, key, *device)?, *count)));
        let Some(times) = times.collect::<Option<Vec<_>>>() else { return f64::INFINITY };
        let rate = |(size, workload): (usize, &Workload)| {
            let kinds: Vec<(&[f64], f64)> =
                times.iter().map(|(times, count)| (times[size].as_slice(), *count)).collect();
            let ms = workload.microbatches as f64 * least_time(&kinds) * (1.0 - BOUND_ROUNDING);
            workload.tokens() as f64 / (ms / 1e3)
        };
        self.workloads.iter().enumerate().map(rate).fold(0.0, f64::max)
    }

    /// The figures of a device by which its times differ from those of others.
    fn key(&self, device: &Device, hardware: &Hardware) -> String {
        // Profiled layers have times by name of device.
        let profiled = self.model.layers().iter().any(|layer| matches!(layer.kind, LayerKind::Profiled(_)));
        let name = if profiled { &device.name } else { "" };
        let mut kind = device.kind.clone();
        if let DeviceKind::Socket { numa_node, .. } = &mut kind {
            *numa_node = 0;
        }
        let Device { peak, memory_bandwidth, launch_floor, efficiency, emulated, .. } = device;
        let runtime = hardware.runtime().name();
        format!("{name} {kind:?} {peak:?} {memory_bandwidth:?} {launch_floor:?} {efficiency:?} {emulated} {runtime}")
    }

    /// The times of a kind of device, from the tables of this machine if they are not known.
    fn times(&self, hardware: &Hardware, key: &str, device: DeviceId) -> Option<Arc<Times>> {
        if let Some(times) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(key) {
            return Some(Arc::clone(times));
        }
        let of = |workload: &Workload| {
            let table = CostTable::new(&self.model, hardware, workload).ok()?;
            Some(table.layers().map(|layer| layer_time(&table, layer, device)).collect())
        };
        let times: Arc<Times> = Arc::new(self.workloads.iter().map(of).collect::<Option<_>>()?);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), Arc::clone(&times));
        Some(times)
    }
}
