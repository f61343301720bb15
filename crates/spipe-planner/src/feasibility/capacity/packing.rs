//! The packing of stages onto devices and hosts, by depth-first search.

use crate::feasibility::capacity::{CostSums, MemoryId, host_memories, hosts_of};
use std::collections::BTreeMap;

/// The most hosts that one search tries for all stages together: a millisecond.
const MOST_TRIES: usize = 1 << 9;

/// A device, and the index of the host with its host data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedStage {
    pub device: usize,
    pub host: usize,
}

/// Stages that are packed, each onto a device of its own.
pub(crate) struct Packing<'f, 'a> {
    costs: &'f CostSums<'a>,
    /// The devices on which each stage may be, and its host bytes.
    stages: Vec<(&'f [usize], u64)>,
    left: BTreeMap<MemoryId, u64>,
    packed: Vec<Option<PackedStage>>,
    tries: usize,
}

impl<'f, 'a> Packing<'f, 'a> {
    pub fn new(costs: &'f CostSums<'a>, stages: Vec<(&'f [usize], u64)>) -> Self {
        let packed = vec![None; stages.len()];
        Self { costs, left: host_memories(costs), stages, packed, tries: 0 }
    }

    /// The device and the host of each stage, if a packing is found.
    pub fn packed(mut self) -> Option<Vec<PackedStage>> {
        let mut order: Vec<usize> = (0..self.stages.len()).collect();
        order.sort_by_key(|stage| std::cmp::Reverse(self.stages[*stage].1));
        if self.put(&order) { self.packed.into_iter().collect() } else { None }
    }

    /// Places stages in descending order of their needs, each first where the least room is left
    /// beside it (best fit).
    fn put(&mut self, order: &[usize]) -> bool {
        let Some((stage, others)) = order.split_first() else { return true };
        let (devices, need) = self.stages[*stage];
        let free =
            devices.iter().filter(|device| !self.packed.iter().flatten().any(|packed| packed.device == **device));
        let mut places: Vec<(Option<u64>, Option<MemoryId>, PackedStage)> =
            free.flat_map(|device| self.places(*device, need)).collect();
        places.sort_by_key(|(left, _, packed)| (*left, packed.device, packed.host));
        let mut seen: Vec<Option<MemoryId>> = Vec::new();
        for (left, memory, packed) in places {
            // The devices of a host are interchangeable.
            if seen.contains(&memory) {
                continue;
            }
            seen.push(memory);
            self.tries += 1;
            if self.tries > MOST_TRIES {
                return false;
            }
            let before = memory.zip(left);
            self.left.extend(before.map(|(memory, left)| (memory, left - need)));
            self.packed[*stage] = Some(packed);
            if self.put(others) {
                return true;
            }
            self.packed[*stage] = None;
            self.left.extend(before);
        }
        false
    }

    /// The hosts with room for a stage on a device, each with its free bytes: the nearest alone if
    /// the stage needs none, and a placeholder if the device has no host.
    fn places(&self, device: usize, need: u64) -> Vec<(Option<u64>, Option<MemoryId>, PackedStage)> {
        let hosts = hosts_of(self.costs, device);
        let count = if need == 0 { hosts.len().min(1) } else { hosts.len() };
        let place = |host: usize| {
            let memory = hosts.get(host).copied();
            (memory.and_then(|memory| self.left.get(&memory)).copied(), memory, PackedStage { device, host })
        };
        let has_room = |(left, _, _): &(Option<u64>, _, _)| left.map_or(need == 0, |left| left >= need);
        (0..count.max(1)).map(place).filter(has_room).collect()
    }
}
