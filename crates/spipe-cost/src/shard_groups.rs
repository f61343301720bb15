//! Groups of devices that have one copy of sharded parameters each (hybrid sharding).
//!
//! ```text
//! group 0   gpu0 gpu1 gpu2 gpu3      a group has one copy of everything, a shard on each of its devices
//! group 1   gpu4 gpu5 gpu6 gpu7      gpu0 and gpu4 have the same shard, whose gradients they add up
//! ```
//!
//! All-gathers and reduce-scatters stay within a group (Zhao et al. 2023, arXiv 2304.11277, section 3.2.2).

use spipe_base::DeviceId;

/// Devices with sharded parameters in groups of consecutive ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardGroups {
    devices: Vec<DeviceId>,
    size: usize,
}

impl ShardGroups {
    /// Groups of `size` devices each, at least one.
    pub fn new(devices: Vec<DeviceId>, size: usize) -> Self {
        Self { size: size.clamp(1, devices.len().max(1)), devices }
    }

    /// The devices of all groups.
    pub fn devices(&self) -> &[DeviceId] {
        &self.devices
    }

    /// The devices of a group, and the shards into which everything is divided.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The groups.
    pub const fn count(&self) -> usize {
        self.devices.len().div_ceil(self.size)
    }

    /// The devices of each group.
    pub fn groups(&self) -> Vec<Vec<DeviceId>> {
        self.devices.chunks(self.size).map(<[DeviceId]>::to_vec).collect()
    }

    /// The devices with the same shard, by shard: one of each group.
    pub fn across(&self) -> Vec<Vec<DeviceId>> {
        (0..self.size).map(|shard| self.devices.iter().skip(shard).step_by(self.size).copied().collect()).collect()
    }

    /// The numbers of the devices of the group to which device number `at` belongs.
    pub fn group_of(&self, at: usize) -> std::ops::Range<usize> {
        let first = at / self.size * self.size;
        first..(first + self.size).min(self.devices.len())
    }

    /// The shard of device number `at`.
    pub const fn shard_of(&self, at: usize) -> usize {
        at % self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_in_one_group_and_has_one_shard() {
        let devices: Vec<DeviceId> = (0..6).map(DeviceId::from).collect();
        for size in [1, 2, 3, 6] {
            let all = ShardGroups::new(devices.clone(), size);
            assert_eq!((all.count() * size, all.groups().concat()), (6, devices.clone()));
            let mut across = all.across().concat();
            across.sort_unstable();
            assert_eq!(across, devices);
            for (at, device) in devices.iter().enumerate() {
                assert!(devices[all.group_of(at)].contains(device) && all.across()[all.shard_of(at)].contains(device));
            }
        }
    }
}
