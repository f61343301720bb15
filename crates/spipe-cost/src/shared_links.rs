//! The links among devices that share all layers, and their loads by bytes.

use crate::{
    ShardGroups,
    collectives::{hops, rings},
};
use spipe_base::{DeviceId, LinkId, MemoryId};
use spipe_hardware::Hardware;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

/// The loads of the links among devices that do the same, in ms per byte.
#[derive(Debug)]
pub struct SharedLinks {
    /// By device, the time of a byte that it receives in equal parts in each ring of its group, on the slowest link.
    pub slowest: Vec<f64>,
    /// The same in the rings of the devices with the same shard, one of each group.
    pub slowest_sums: Vec<f64>,
    /// The links with unlike loads: those by a byte that each device receives in the rings of its group, by one that it
    /// receives from the host memory near it, by one that it sends there, and by one that it receives from other groups.
    pub loads: Vec<(LinkId, [f64; 4])>,
}

impl SharedLinks {
    fn of(hardware: &Hardware, groups: &ShardGroups) -> Self {
        let (devices, memory) = (groups.devices(), |device: DeviceId| hardware.devices()[device].memory);
        let [mut into, mut across] = [groups.groups(), groups.across()].map(|all| hops_into(hardware, &all));
        let mut loads: BTreeMap<LinkId, [f64; 4]> = BTreeMap::new();
        let mut load = |ends: [MemoryId; 2], kind: usize, bytes: f64| {
            let times = link_times(hardware, ends).map(|(link, time)| (link, time * bytes));
            times.fold(0.0, |slowest: f64, (link, time)| {
                loads.entry(link).or_default()[kind] += time;
                slowest.max(time)
            })
        };
        let (mut slowest, mut slowest_sums) = (Vec::with_capacity(devices.len()), Vec::with_capacity(devices.len()));
        for device in devices {
            for (kind, into, slowest) in [(0, &mut into, &mut slowest), (3, &mut across, &mut slowest_sums)] {
                let hops = into.remove(device).unwrap_or_default();
                let part = 1.0 / hops.len() as f64;
                slowest.push(hops.into_iter().map(|ends| load(ends, kind, part)).fold(0.0, f64::max));
            }
            if let Some(host) = hardware.host_memory(*device) {
                load([host, memory(*device)], 1, 1.0);
                load([memory(*device), host], 2, 1.0);
            }
        }
        let mut seen = BTreeSet::new();
        let unlike = loads.into_iter().filter(|(_, load)| seen.insert(load.map(f64::to_bits))).collect();
        Self { slowest, slowest_sums, loads: unlike }
    }
}

/// By device, the ends of its hops in the rings of its group.
fn hops_into(hardware: &Hardware, groups: &[Vec<DeviceId>]) -> BTreeMap<DeviceId, Vec<[MemoryId; 2]>> {
    let memory = |device: DeviceId| hardware.devices()[device].memory;
    let mut into: BTreeMap<DeviceId, Vec<[MemoryId; 2]>> = BTreeMap::new();
    for ring in groups.iter().flat_map(|group| rings(hardware, group)) {
        for [from, to] in hops(&ring) {
            into.entry(to).or_default().push([memory(from), memory(to)]);
        }
    }
    into
}

/// The links of a route with the time of a byte on each, in ms; none within a memory.
fn link_times(hardware: &Hardware, [from, to]: [MemoryId; 2]) -> impl Iterator<Item = (LinkId, f64)> + '_ {
    let route = hardware.route(from, to).filter(|_| from != to);
    let links = route.into_iter().flat_map(|route| route.links.iter());
    links.map(|link| (*link, 1e3 / hardware.links()[*link].bandwidth.get()))
}

/// The links among groups of devices of one machine, computed once for each division into groups. A copy begins anew.
#[derive(Debug, Default)]
pub(crate) struct KnownLinks(Mutex<Vec<(ShardGroups, Arc<SharedLinks>)>>);

impl Clone for KnownLinks {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl KnownLinks {
    /// The links among `groups`.
    pub fn among(&self, hardware: &Hardware, groups: &ShardGroups) -> Arc<SharedLinks> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, links)) = known.iter().find(|(of, _)| of == groups) {
            return Arc::clone(links);
        }
        let links = Arc::new(SharedLinks::of(hardware, groups));
        known.push((groups.clone(), Arc::clone(&links)));
        links
    }
}
