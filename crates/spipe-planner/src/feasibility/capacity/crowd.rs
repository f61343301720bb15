//! A quick test by state alone: a run of equal layers that is longer than all devices together can
//! hold. Hosts count one by one with the devices that share them, or all together where devices
//! have a choice.

use crate::feasibility::capacity::{CostSums, MemoryId, host_memories, hosts_of, rooms};
use std::collections::BTreeMap;

/// Whether parameters, gradients and optimizer state of some run of equal layers find no room.
pub(crate) fn too_many(costs: &CostSums<'_>) -> bool {
    costs.runs.iter().any(|(first, count)| most(costs, *first, *count) < *count)
}

/// Returns the most layers like layer `layer`, up to `count`, that all devices together can hold.
fn most(costs: &CostSums<'_>, layer: usize, count: usize) -> usize {
    let devices = || 0..costs.devices.len();
    // If devices have a choice of hosts, these count as one.
    let all: Vec<MemoryId> = host_memories(costs).into_keys().collect();
    let joined = devices().any(|device| rooms(costs, device).len() > 1);
    let mut groups: BTreeMap<Vec<MemoryId>, Vec<usize>> = BTreeMap::new();
    for device in devices().filter(|device| costs.devices[*device].able(layer, layer + 1)) {
        let hosts = if joined { all.clone() } else { hosts_of(costs, device) };
        groups.entry(hosts).or_default().push(device);
    }
    let hosts = host_memories(costs);
    let of_group = |(memories, devices): (Vec<MemoryId>, Vec<usize>)| {
        let room = memories
            .iter()
            .filter_map(|memory| hosts.get(memory))
            .fold(0, |room: u64, host| room.saturating_add(*host));
        // least[n]: the least host bytes of n layers.
        let mut least: Vec<u64> = vec![0];
        for device in devices {
            let more = needs(costs, device, layer, (count, room));
            let mut next: Vec<u64> = vec![u64::MAX; (least.len() + more.len() - 1).min(count + 1)];
            for (one, here) in least.iter().enumerate() {
                for (other, there) in more.iter().enumerate().take_while(|(other, _)| one + other <= count) {
                    next[one + other] = next[one + other].min(here.saturating_add(*there));
                }
            }
            least = next;
        }
        least.iter().rposition(|needed| *needed <= room).unwrap_or(0)
    };
    groups.into_iter().map(of_group).fold(0, usize::saturating_add)
}

/// Returns the least host bytes of 0, 1, 2, … layers on a device, up to the most that fit.
fn needs(costs: &CostSums<'_>, index: usize, layer: usize, (count, room): (usize, u64)) -> Vec<u64> {
    let (device, bytes) = (&costs.devices[index], &costs.devices[index].bytes[layer]);
    let state = bytes.state().get();
    let need = |layers: u64| {
        let excess = (layers * state).saturating_sub(device.usable);
        if device.is_cpu {
            return (excess == 0).then_some(layers * state);
        }
        if excess == 0 {
            return Some(0);
        }
        // In stages of their own, the fewest that suffice are updated on the host.
        let stepped = excess.div_ceil(bytes.optimizer.get().max(1));
        costs.hosts(index).next().filter(|_| stepped <= layers)?;
        let copied = if device.returns(layer + 1) { bytes.parameters.get() } else { 0 };
        Some(stepped * (bytes.optimizer.get() + bytes.gradients.get() + copied))
    };
    (0..=count as u64).map_while(need).take_while(|of_host| *of_host <= room || *of_host == 0).collect()
}
