//! Whether there are more layers of one kind than all devices together can hold, each host with the devices that share its memory.

use super::{Figures, MemoryId, host_memories, host_memory};
use std::collections::BTreeMap;

/// Whether, by what their parameters, gradients and optimizer state alone need, some run of equal layers finds no room.
pub(super) fn too_many(figures: &Figures<'_>) -> bool {
    figures.runs.iter().any(|(first, count)| most(figures, *first, *count) < *count)
}

/// How many of `count` layers like layer `layer` all devices together can hold at most.
fn most(figures: &Figures<'_>, layer: usize, count: usize) -> usize {
    let mut groups: BTreeMap<Option<MemoryId>, Vec<usize>> = BTreeMap::new();
    for device in (0..figures.devices.len()).filter(|device| figures.devices[*device].able(layer, layer + 1)) {
        groups.entry(host_memory(figures, device)).or_default().push(device);
    }
    let hosts = host_memories(figures);
    let of_group = |(memory, devices): (Option<MemoryId>, Vec<usize>)| {
        let room = memory.and_then(|memory| hosts.get(&memory)).copied().unwrap_or(0);
        // least[n]: what n layers need of the host at least.
        let mut least: Vec<u64> = vec![0];
        for device in devices {
            let more = needs(figures, device, layer, (count, room));
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

/// What 0, 1, 2, … layers on a device need of its host at least, as far as they fit.
fn needs(figures: &Figures<'_>, index: usize, layer: usize, (count, room): (usize, u64)) -> Vec<u64> {
    let (device, bytes) = (&figures.devices[index], &figures.devices[index].bytes[layer]);
    let state = bytes.state().get();
    let need = |layers: u64| {
        let excess = (layers * state).saturating_sub(device.usable);
        if device.is_cpu {
            return (excess == 0).then_some(layers * state);
        }
        if excess == 0 {
            return Some(0);
        }
        // In stages of their own, as few as will do are stepped on the host.
        let stepped = excess.div_ceil(bytes.optimizer.get().max(1));
        figures.helper(index).filter(|_| stepped <= layers)?;
        let copied = if device.returns(layer + 1) { bytes.parameters.get() } else { 0 };
        Some(stepped * (bytes.optimizer.get() + bytes.gradients.get() + copied))
    };
    (0..=count as u64).map_while(need).take_while(|of_host| *of_host <= room || *of_host == 0).collect()
}
