//! The packing of stages onto many hosts, where hosts of a class are distinguished only by the
//! bytes that they hold.
//!
//! Hosts form a class if they have equal memory and share it with equal devices. The stages on a
//! class of H hosts with R bytes each need at most H·R together, but that does not suffice: two
//! stages may need too much to share a host. Let x and y be the host bytes of two kinds of devices,
//! g the devices of the first kind per host, and t a number. Then
//!
//! ```text
//! #{x > t} + g·#{y ≥ R − t} ≤ H·g       no host has one of each
//! #{x > t}                  ≤ H·⌊R / (t + 1)⌋
//! ```
//!
//! hold for every packing, and for hosts with two devices also the converse (Hall's condition for
//! pairs below a threshold). Each of them is one more sum ([`Measure`]) beside that of bytes. A
//! failed packing names the one that it breaks.

use crate::feasibility::capacity::{CostSums, MemoryId, host_memories, hosts_of};
use std::collections::BTreeMap;

/// The most placements of a stage on a host that one search tries.
const MOST_TRIES: usize = 1 << 9;

/// A class of equal hosts.
pub(crate) struct HostClass {
    /// The number of memories of this size.
    rooms: u64,
    room: u64,
    pub hosts: Vec<MemoryId>,
    /// The number of devices per host, by the first device that holds like them.
    devices: BTreeMap<usize, u64>,
}

/// A quantity of which each host of a class can have only a limited share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Bytes.
    Sum,
    /// The number of devices that need more than these bytes.
    Count(u64),
    /// Devices like this one that need more than these bytes, and other devices that then have no
    /// room beside them.
    Beside(usize, u64),
}

/// Returns the classes of hosts; `alike` names the first device that holds like each.
pub(crate) fn classes(costs: &CostSums<'_>, alike: &[usize]) -> Vec<HostClass> {
    let mut classes: Vec<HostClass> = Vec::new();
    for (host, room) in host_memories(costs) {
        let mut devices: BTreeMap<usize, u64> = BTreeMap::new();
        for device in (0..alike.len()).filter(|device| hosts_of(costs, *device).contains(&host)) {
            *devices.entry(alike[device]).or_default() += 1;
        }
        match classes.iter_mut().find(|class| class.room == room && class.devices == devices) {
            Some(class) => {
                class.rooms += 1;
                class.hosts.push(host);
            }
            None => classes.push(HostClass { rooms: 1, room, hosts: vec![host], devices }),
        }
    }
    classes
}

impl HostClass {
    /// All hosts as one.
    pub fn all(costs: &CostSums<'_>) -> Vec<Self> {
        let (hosts, rooms): (Vec<MemoryId>, Vec<u64>) = host_memories(costs).into_iter().unzip();
        let room = rooms.into_iter().fold(0, u64::saturating_add);
        vec![Self { rooms: 1, room, hosts, devices: BTreeMap::new() }]
    }

    /// Each host by itself.
    pub fn each(costs: &CostSums<'_>) -> Vec<Self> {
        let of = |(host, room)| Self { rooms: 1, room, hosts: vec![host], devices: BTreeMap::new() };
        host_memories(costs).into_iter().map(of).collect()
    }

    /// The weight of a device that holds like `device` and needs `of_host` bytes.
    pub fn weight(&self, measure: Measure, device: usize, of_host: u64) -> u64 {
        match measure {
            Measure::Sum => of_host,
            Measure::Count(more) => u64::from(of_host > more),
            Measure::Beside(first, more) if first == device => u64::from(of_host > more),
            Measure::Beside(first, more) => self.of(first) * u64::from(of_host >= self.room - more),
        }
    }

    /// The limit of all hosts of the class together.
    pub fn room(&self, measure: Measure) -> u64 {
        let hosts = self.rooms;
        match measure {
            Measure::Sum => hosts.saturating_mul(self.room),
            Measure::Count(more) => hosts * self.devices.values().sum::<u64>().min(self.room / (more + 1)),
            Measure::Beside(first, more) => {
                let others = self.devices.values().sum::<u64>() - self.of(first);
                hosts * self.of(first) * others.min(self.room / (self.room - more)).max(1)
            }
        }
    }

    fn of(&self, device: usize) -> u64 {
        self.devices.get(&device).copied().unwrap_or(0)
    }

    /// The measure that the needs of devices exceed by the largest factor, if any. Each device is
    /// given by the first one that holds like it.
    pub fn broken(&self, needs: &[(usize, u64)]) -> Option<Measure> {
        let candidates = needs
            .iter()
            .filter(|(_, need)| (1..=self.room).contains(need))
            .flat_map(|(device, need)| [Measure::Count(need - 1), Measure::Beside(*device, need - 1)]);
        let counted = |measure: Measure| needs.iter().map(|(device, need)| self.weight(measure, *device, *need)).sum();
        let excess = |measure: &Measure| {
            let (counted, room): (u64, u64) = (counted(*measure), self.room(*measure));
            // In millionths, so that the order does not depend on rounding.
            u128::from(counted) * 1_000_000 / u128::from(room.max(1))
        };
        let broken = candidates.filter(|measure| counted(*measure) > self.room(*measure));
        broken.fold(None, |worst: Option<Measure>, measure| match worst {
            Some(worst) if excess(&worst) >= excess(&measure) => Some(worst),
            _ => Some(measure),
        })
    }
}

/// A device, and the index of the host with its host data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seated {
    pub device: usize,
    pub host: usize,
}

/// A packing of stages onto devices and hosts, by depth-first search.
pub(crate) struct HostPacking<'f, 'a> {
    costs: &'f CostSums<'a>,
    /// The devices of each kind.
    kinds: Vec<&'f [usize]>,
    /// The kind of device of each stage, and its host bytes.
    stages: Vec<(usize, u64)>,
    left: BTreeMap<MemoryId, u64>,
    seats: Vec<Option<Seated>>,
    tries: usize,
}

impl<'f, 'a> HostPacking<'f, 'a> {
    pub fn new(costs: &'f CostSums<'a>, kinds: Vec<&'f [usize]>, stages: Vec<(usize, u64)>) -> Self {
        let seats = vec![None; stages.len()];
        Self { costs, kinds, left: host_memories(costs), stages, seats, tries: 0 }
    }

    /// The device and the host of each stage, if a packing is found.
    pub fn seats(mut self) -> Option<Vec<Seated>> {
        let mut order: Vec<usize> = (0..self.stages.len()).collect();
        order.sort_by_key(|stage| std::cmp::Reverse(self.stages[*stage].1));
        if self.put(&order) { self.seats.into_iter().collect() } else { None }
    }

    /// Places stages in descending order of their needs, each first where the least room is left
    /// beside it (best fit).
    fn put(&mut self, order: &[usize]) -> bool {
        let Some((stage, others)) = order.split_first() else { return true };
        let (kind, need) = self.stages[*stage];
        let mut free: Vec<(Option<u64>, Seated)> = self.kinds[kind]
            .iter()
            .filter(|device| !self.taken(**device))
            .flat_map(|device| self.seats_on(*device, need))
            .filter(|(left, _)| left.map_or(need == 0, |left| left >= need))
            .collect();
        // A stage without host data takes no room from others, whichever it is beside.
        free.sort_by_key(|(left, seated)| (*left, seated.device, seated.host));
        let mut seen: Vec<(Option<u64>, Vec<usize>)> = Vec::new();
        for (left, seated) in free {
            let memory = hosts_of(self.costs, seated.device).get(seated.host).copied();
            let state = (left, self.beside(memory));
            if seen.contains(&state) {
                continue;
            }
            seen.push(state);
            self.tries += 1;
            if self.tries > MOST_TRIES {
                return false;
            }
            if let Some(left) = memory.and_then(|memory| self.left.get_mut(&memory)) {
                *left -= need;
            }
            self.seats[*stage] = Some(seated);
            if self.put(others) {
                return true;
            }
            self.seats[*stage] = None;
            if let Some(left) = memory.and_then(|memory| self.left.get_mut(&memory)) {
                *left += need;
            }
        }
        false
    }

    fn taken(&self, device: usize) -> bool {
        self.seats.iter().flatten().any(|seated| seated.device == device)
    }

    /// The hosts for a stage on a device, each with its free bytes: the nearest alone if the stage
    /// needs none, and a placeholder if the device has no host.
    fn seats_on(&self, device: usize, need: u64) -> Vec<(Option<u64>, Seated)> {
        let hosts = hosts_of(self.costs, device);
        let count = if need == 0 { hosts.len().min(1) } else { hosts.len() };
        let on =
            |host: usize| (hosts.get(host).and_then(|memory| self.left.get(memory)).copied(), Seated { device, host });
        (0..count.max(1)).map(on).collect()
    }

    /// The number of free devices of a host, by kind.
    fn beside(&self, memory: Option<MemoryId>) -> Vec<usize> {
        let of_host = |device: usize| match memory {
            Some(memory) => hosts_of(self.costs, device).contains(&memory),
            None => hosts_of(self.costs, device).is_empty(),
        };
        let free = |other: &&usize| of_host(**other) && !self.taken(**other);
        self.kinds.iter().map(|members| members.iter().filter(free).count()).collect()
    }
}
