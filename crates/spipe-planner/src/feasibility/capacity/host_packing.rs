//! How stages are spread over many hosts: those that are alike are told apart only by what they hold.
//!
//! Hosts are alike if they have the same room and share it with the same devices. Of a class of H hosts with room R each all stages
//! together need at most H·R, which is not enough: two may need too much to share a host. With x and y what two kinds of devices on a
//! host need of it, g devices of the first kind and a number t,
//!
//! ```text
//! #{x > t} + g·#{y ≥ R − t} ≤ H·g       no host has one of either
//! #{x > t}                  ≤ H·⌊R / (t + 1)⌋
//! ```
//!
//! hold for whatever can be spread, and of hosts with two devices also the other way round (Hall's condition for pairs below a threshold).
//! Each of them is one more sum of the same kind as that of what is needed. What cannot be spread names the one that it breaks.

use crate::feasibility::capacity::{CostSums, MemoryId, host_memories, hosts_of};
use std::collections::BTreeMap;

/// How many ways to put one stage on a host are tried.
const MOST_TRIES: usize = 1 << 9;

/// Hosts that are alike.
pub(crate) struct Class {
    /// How often there is such a room.
    rooms: u64,
    room: u64,
    pub hosts: Vec<MemoryId>,
    /// How many devices that hold alike share each of them, by the first of these.
    devices: BTreeMap<usize, u64>,
}

/// What is needed of a class of hosts, counted in a way that no host can hold more of than its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Bytes.
    Sum,
    /// Devices that need more than so much.
    Count(u64),
    /// Devices that hold like one and need more than so much, and others beside which they then have no room.
    Beside(usize, u64),
}

/// The classes of hosts, where `alike` names the first device that holds like each.
pub(crate) fn classes(costs: &CostSums<'_>, alike: &[usize]) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
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
            None => classes.push(Class { rooms: 1, room, hosts: vec![host], devices }),
        }
    }
    classes
}

impl Class {
    /// All hosts as if they were one.
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

    /// What a device that holds like `device` counts for if it needs so much.
    pub fn weight(&self, measure: Measure, device: usize, of_host: u64) -> u64 {
        match measure {
            Measure::Sum => of_host,
            Measure::Count(more) => u64::from(of_host > more),
            Measure::Beside(first, more) if first == device => u64::from(of_host > more),
            Measure::Beside(first, more) => self.of(first) * u64::from(of_host >= self.room - more),
        }
    }

    /// How much all hosts have room for.
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

    /// The measure by which what devices need is most too much, each with the first that holds like it.
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

/// A device, and which of its hosts has what leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seated {
    pub device: usize,
    pub host: usize,
}

/// What stages need of hosts, to be spread over devices.
pub(crate) struct Spread<'f, 'a> {
    costs: &'f CostSums<'a>,
    /// The devices of each kind.
    kinds: Vec<&'f [usize]>,
    /// The kind of device that each stage is on, and what it needs of the host.
    stages: Vec<(usize, u64)>,
    left: BTreeMap<MemoryId, u64>,
    seats: Vec<Option<Seated>>,
    tries: usize,
}

impl<'f, 'a> Spread<'f, 'a> {
    pub fn new(costs: &'f CostSums<'a>, kinds: Vec<&'f [usize]>, stages: Vec<(usize, u64)>) -> Self {
        let seats = vec![None; stages.len()];
        Self { costs, kinds, left: host_memories(costs), stages, seats, tries: 0 }
    }

    /// The device and the host of each stage, if a way is found that hosts have room for.
    pub fn seats(mut self) -> Option<Vec<Seated>> {
        let mut order: Vec<usize> = (0..self.stages.len()).collect();
        order.sort_by_key(|stage| std::cmp::Reverse(self.stages[*stage].1));
        if self.put(&order) { self.seats.into_iter().collect() } else { None }
    }

    /// Puts stages on devices, those that need most first, each first where least is left beside it.
    fn put(&mut self, order: &[usize]) -> bool {
        let Some((stage, others)) = order.split_first() else { return true };
        let (kind, need) = self.stages[*stage];
        let mut free: Vec<(Option<u64>, Seated)> = self.kinds[kind]
            .iter()
            .filter(|device| !self.taken(**device))
            .flat_map(|device| self.seats_on(*device, need))
            .filter(|(left, _)| left.map_or(need == 0, |left| left >= need))
            .collect();
        // What needs nothing takes no room from others, whichever it is beside.
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

    /// The hosts on which a stage may be that is on a device, each with what is left there: one where it needs nothing, and none where there
    /// is none.
    fn seats_on(&self, device: usize, need: u64) -> Vec<(Option<u64>, Seated)> {
        let hosts = hosts_of(self.costs, device);
        let count = if need == 0 { hosts.len().min(1) } else { hosts.len() };
        let on =
            |host: usize| (hosts.get(host).and_then(|memory| self.left.get(memory)).copied(), Seated { device, host });
        (0..count.max(1)).map(on).collect()
    }

    /// Which kinds of devices of a host are free, by the lists that stages may be on.
    fn beside(&self, memory: Option<MemoryId>) -> Vec<usize> {
        let of_host = |device: usize| match memory {
            Some(memory) => hosts_of(self.costs, device).contains(&memory),
            None => hosts_of(self.costs, device).is_empty(),
        };
        let free = |other: &&usize| of_host(**other) && !self.taken(**other);
        self.kinds.iter().map(|members| members.iter().filter(free).count()).collect()
    }
}
