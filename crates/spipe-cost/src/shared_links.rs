//! The links among devices that share all layers, and their loads by bytes.

use crate::collectives::{hops, rings};
use spipe_base::{DeviceId, LinkId, MemoryId};
use spipe_hardware::Hardware;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

/// The loads of the links among devices that do the same, in ms per byte.
#[derive(Debug)]
pub struct SharedLinks {
    /// By device, the time of a byte that it receives in equal parts in each of its rings, on the slowest link.
    pub slowest: Vec<f64>,
    /// The links with unlike loads: those by a byte that each device receives in its rings, by one that it receives from
    /// the host memory near it, and by one that it sends there.
    pub loads: Vec<(LinkId, [f64; 3])>,
}

impl SharedLinks {
    fn of(hardware: &Hardware, devices: &[DeviceId]) -> Self {
        let memory = |device: DeviceId| hardware.devices()[device].memory;
        let mut into: BTreeMap<DeviceId, Vec<[MemoryId; 2]>> = BTreeMap::new();
        for [from, to] in rings(hardware, devices).iter().flat_map(|ring| hops(ring)) {
            into.entry(to).or_default().push([memory(from), memory(to)]);
        }
        let mut loads: BTreeMap<LinkId, [f64; 3]> = BTreeMap::new();
        let mut load = |ends: [MemoryId; 2], kind: usize, bytes: f64| {
            let times = link_times(hardware, ends).map(|(link, time)| (link, time * bytes));
            times.fold(0.0, |slowest: f64, (link, time)| {
                loads.entry(link).or_default()[kind] += time;
                slowest.max(time)
            })
        };
        let mut slowest = Vec::with_capacity(devices.len());
        for device in devices {
            let hops = into.remove(device).unwrap_or_default();
            let part = 1.0 / hops.len() as f64;
            slowest.push(hops.into_iter().map(|ends| load(ends, 0, part)).fold(0.0, f64::max));
            if let Some(host) = hardware.host_memory(*device) {
                load([host, memory(*device)], 1, 1.0);
                load([memory(*device), host], 2, 1.0);
            }
        }
        let mut seen = BTreeSet::new();
        let unlike = loads.into_iter().filter(|(_, load)| seen.insert(load.map(f64::to_bits))).collect();
        Self { slowest, loads: unlike }
    }
}

/// The links of a route with the time of a byte on each, in ms; none within a memory.
fn link_times(hardware: &Hardware, [from, to]: [MemoryId; 2]) -> impl Iterator<Item = (LinkId, f64)> + '_ {
    let route = hardware.route(from, to).filter(|_| from != to);
    let links = route.into_iter().flat_map(|route| route.links.iter());
    links.map(|link| (*link, 1e3 / hardware.links()[*link].bandwidth.get()))
}

/// The links among lists of devices of one machine, each computed once. A copy begins anew.
#[derive(Debug, Default)]
pub(crate) struct KnownLinks(Mutex<Vec<(Vec<DeviceId>, Arc<SharedLinks>)>>);

impl Clone for KnownLinks {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl KnownLinks {
    /// The links among `devices`.
    pub fn among(&self, hardware: &Hardware, devices: &[DeviceId]) -> Arc<SharedLinks> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, links)) = known.iter().find(|(of, _)| of == devices) {
            return Arc::clone(links);
        }
        let links = Arc::new(SharedLinks::of(hardware, devices));
        known.push((devices.to_vec(), Arc::clone(&links)));
        links
    }
}
