//! Whether stages fit the memories at all, whichever devices they are on, in whichever order.
//!
//! What a stage needs depends on the kind of its device, on its layers, and on how many microbatches it has in flight, which without
//! a head start only the number of stages behind it decides. So it does not matter in which order the devices of a kind are, only how
//! many of each are behind:
//!
//! ```text
//! ways(one more of kind k, from) = { way + what layers from..to on k need of its host : way ∈ ways(those behind, to) }
//! ```
//!
//! by dynamic programming from the last stage to the first. Of the ways with the same devices and layers only those are kept of which
//! none needs less of every host. Hosts count, one after the other,
//!
//! ```text
//! not at all     nothing leaves the GPUs: where that fits, it is a plan
//! all together   where that does not fit, nothing does; a way that can be spread over the hosts is a plan
//! each by itself exact, where they are few
//! ```

use crate::{
    Pins,
    case::{Case, Discipline, Division},
    figures::{DeviceFigures, Figures, Help, Seat},
};
use spipe_base::MemoryId;
use spipe_plan::{Placement, System, check};
use std::collections::BTreeMap;

mod crowd;
mod hold;

use hold::{Hold, Holds};

/// How many hosts are told apart.
const HOSTS: usize = 4;

/// Beyond so many pairs of devices behind and a layer, and so many comparisons of ways, nothing is decided.
const MOST_PAIRS: usize = 1 << 21;
const MOST_STEPS: usize = 1 << 27;

/// How many ways are tried to be spread over the hosts.
const TRIES: usize = 64;

/// What can be said of a discipline.
#[derive(Debug)]
pub(crate) enum Capacity {
    /// This placement fits.
    Fits(Placement),
    /// No placement fits.
    Never,
    /// Neither is certain.
    Open,
}

/// How the memories of hosts count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hosts {
    Unused,
    Together,
    Apart,
}

/// Devices that hold alike, and the slot in which what they need of their host counts.
struct Kind {
    members: Vec<usize>,
    slot: Option<usize>,
}

/// The last stages of a chain, with what they need of the hosts.
#[derive(Clone, Copy)]
struct Way {
    held: [u64; HOSTS],
    /// Of the first of them: the kind of its device, the layer after its last one, and the way that goes on there.
    kind: usize,
    to: usize,
    next: usize,
}

/// Whether a placement of one stage per device fits under `discipline`, which has no head start.
pub(crate) fn capacity(figures: &Figures<'_>, discipline: Discipline, pins: &Pins) -> Capacity {
    if crowd::too_many(figures) {
        return Capacity::Never;
    }
    for hosts in [Hosts::Unused, Hosts::Together, Hosts::Apart] {
        let chain = Chain::new(figures, hosts, discipline);
        let Some(ways) = chain.as_ref().and_then(Chain::ways) else { return Capacity::Open };
        let Some(chain) = chain else { return Capacity::Open };
        let complete = chain.complete(&ways);
        if complete.is_empty() && hosts != Hosts::Unused {
            return Capacity::Never;
        }
        let place = |(state, index): (usize, usize)| chain.place(&ways, state, index);
        let fits = |placement: &Placement| {
            pins.allow(&figures.context, placement) && check(&figures.context, placement).is_ok()
        };
        if let Some(placement) = complete.into_iter().take(TRIES).filter_map(place).find(fits) {
            return Capacity::Fits(placement);
        }
    }
    Capacity::Open
}

/// The ways by state, then by their first layer.
type Ways = Vec<Vec<Vec<Way>>>;

struct Chain<'f, 'a> {
    figures: &'f Figures<'a>,
    discipline: Discipline,
    kinds: Vec<Kind>,
    /// What one device more of each kind adds to the number of a state, in which the counts of all kinds are digits.
    strides: Vec<usize>,
    states: usize,
    /// Bytes by slot.
    room: [u64; HOSTS],
    holds: Holds,
}

impl<'f, 'a> Chain<'f, 'a> {
    /// None where there is too much to tell apart.
    fn new(figures: &'f Figures<'a>, hosts: Hosts, discipline: Discipline) -> Option<Self> {
        let memories = host_memories(figures);
        let mut room = [0; HOSTS];
        match hosts {
            Hosts::Unused => {}
            Hosts::Together => room[0] = memories.values().sum(),
            Hosts::Apart if memories.len() > HOSTS => return None,
            Hosts::Apart => room.iter_mut().zip(memories.values()).for_each(|(room, usable)| *room = *usable),
        }
        let slot = |device: usize| match hosts {
            Hosts::Unused => None,
            Hosts::Together => Some(0),
            Hosts::Apart => memories.keys().position(|memory| Some(*memory) == host_memory(figures, device)),
        };
        let mut kinds: Vec<Kind> = Vec::new();
        for device in 0..figures.devices.len() {
            let like = |kind: &&mut Kind| kind.slot == slot(device) && hold_alike(figures, kind.members[0], device);
            match kinds.iter_mut().find(like) {
                Some(kind) => kind.members.push(device),
                None => kinds.push(Kind { members: vec![device], slot: slot(device) }),
            }
        }
        let mut strides = Vec::new();
        let mut states = 1usize;
        for kind in &kinds {
            strides.push(states);
            states = states.checked_mul(kind.members.len() + 1)?;
        }
        states.checked_mul(figures.layers + 1).filter(|pairs| *pairs <= MOST_PAIRS)?;
        let firsts: Vec<usize> = kinds.iter().map(|kind| kind.members[0]).collect();
        let holds = Holds::new(figures, discipline, &firsts, hosts != Hosts::Unused);
        Some(Self { figures, discipline, kinds, strides, states, room, holds })
    }

    /// How many devices of a kind a state has.
    fn count(&self, state: usize, kind: usize) -> usize {
        state / self.strides[kind] % (self.kinds[kind].members.len() + 1)
    }

    /// How many devices it has.
    fn devices(&self, state: usize) -> usize {
        (0..self.kinds.len()).map(|kind| self.count(state, kind)).sum()
    }

    /// None where that takes too many steps.
    fn ways(&self) -> Option<Ways> {
        let layers = self.figures.layers;
        let nothing = Way { held: [0; HOSTS], kind: 0, to: layers, next: 0 };
        let mut all: Ways = vec![vec![Vec::new(); layers + 1]; self.states];
        all[0][layers].push(nothing);
        let mut steps = 0;
        for state in 1..self.states {
            let behind = self.devices(state) - 1;
            for kind in (0..self.kinds.len()).filter(|kind| self.count(state, *kind) > 0) {
                let (before, here) = all.split_at_mut(state);
                for (to, ways) in before[state - self.strides[kind]].iter().enumerate() {
                    for (from, held) in self.holds.ending(kind, behind, to, !ways.is_empty()) {
                        for (next, way) in ways.iter().enumerate() {
                            // A way is compared with all that are there.
                            steps += 1 + here[0][from].len();
                            if steps > MOST_STEPS {
                                return None;
                            }
                            if let Some(held) = self.with(way.held, kind, held) {
                                keep(&mut here[0][from], Way { held, kind, to, next });
                            }
                        }
                    }
                }
            }
        }
        Some(all)
    }

    /// What hosts hold with `more` for a device of a kind, if they have the room.
    fn with(&self, mut held: [u64; HOSTS], kind: usize, more: u64) -> Option<[u64; HOSTS]> {
        if let Some(slot) = self.kinds[kind].slot {
            held[slot] = held[slot].saturating_add(more);
            if held[slot] > self.room[slot] {
                return None;
            }
        }
        Some(held)
    }

    /// The ways that begin with the first layer, each by state and index, those that need least of the hosts first.
    fn complete(&self, ways: &Ways) -> Vec<(usize, usize)> {
        let needs_cpu = self.discipline.system == System::Hybrid;
        let is_cpu = |kind: &Kind| self.figures.devices[kind.members[0]].is_cpu;
        let on_cpu = |state: usize| {
            self.kinds.iter().enumerate().any(|(index, kind)| is_cpu(kind) && self.count(state, index) > 0)
        };
        let mut list: Vec<(u64, usize, usize)> = Vec::new();
        for state in (1..self.states).filter(|state| !needs_cpu || on_cpu(*state)) {
            let ways = ways[state][0].iter().enumerate();
            list.extend(ways.map(|(index, way)| (way.held.iter().sum(), state, index)));
        }
        list.sort_unstable();
        list.into_iter().map(|(_, state, index)| (state, index)).collect()
    }

    /// The placement of a way, what needs most of a host first where there is most room.
    fn place(&self, ways: &Ways, mut state: usize, mut index: usize) -> Option<Placement> {
        let figures = self.figures;
        let (mut division, mut from) = (Division { ends: Vec::new(), recomputed: Vec::new() }, 0);
        let mut stages: Vec<(usize, Hold)> = Vec::new();
        while from < figures.layers {
            let way = ways[state][from][index];
            let hold = self.holds.hold(figures, (way.kind, self.devices(state) - 1), (from, way.to))?;
            division.ends.push(way.to);
            division.recomputed.push(hold.recomputed);
            stages.push((way.kind, hold));
            (state, from, index) = (state - self.strides[way.kind], way.to, way.next);
        }
        let mut order: Vec<usize> = (0..stages.len()).collect();
        order.sort_by_key(|stage| std::cmp::Reverse(stages[*stage].1.of_host));
        let mut left = host_memories(figures);
        let mut devices: Vec<Option<usize>> = vec![None; stages.len()];
        for stage in order {
            let (kind, hold) = &stages[stage];
            let free = self.kinds[*kind].members.iter().filter(|member| !devices.contains(&Some(**member)));
            let room = |device: usize| host_memory(figures, device).and_then(|memory| left.get(&memory)).copied();
            let device = *free.max_by_key(|device| (room(**device), std::cmp::Reverse(**device)))?;
            if let Some(left) = host_memory(figures, device).and_then(|memory| left.get_mut(&memory)) {
                *left = left.saturating_sub(hold.of_host);
            }
            devices[stage] = Some(device);
        }
        let devices: Vec<usize> = devices.into_iter().collect::<Option<_>>()?;
        let mut case = Case::new(figures, &devices, self.discipline);
        for (seat, (_, hold)) in case.seats.iter_mut().zip(&stages) {
            seat.help = Some(hold.help);
        }
        Some(case.placement(figures, &division))
    }
}

/// Adds `way` unless one of `ways` needs no more of any host, and takes out those that need no less of all.
fn keep(ways: &mut Vec<Way>, way: Way) {
    let no_more = |one: &Way, other: &Way| one.held.iter().zip(&other.held).all(|(one, other)| one <= other);
    if ways.iter().any(|other| no_more(other, &way)) {
        return;
    }
    ways.retain(|other| !no_more(&way, other));
    ways.push(way);
}

/// The usable bytes of each memory of a socket.
fn host_memories(figures: &Figures<'_>) -> BTreeMap<MemoryId, u64> {
    let sockets = figures.devices.iter().filter(|device| device.is_cpu);
    sockets.map(|device| (device.memory, device.usable)).collect()
}

/// The memory of a socket, or of the one that may help a GPU.
fn host_memory(figures: &Figures<'_>, device: usize) -> Option<MemoryId> {
    let own = &figures.devices[device];
    if own.is_cpu { Some(own.memory) } else { figures.helper(device).map(|host| host.memory) }
}

/// Whether two devices hold the same layers in the same bytes, and have hosts of the same size or none.
fn hold_alike(figures: &Figures<'_>, one: usize, other: usize) -> bool {
    let usable_of_host = |device: usize| figures.helper(device).map(|host| figures.devices[host.socket.index()].usable);
    let (first, second) = (&figures.devices[one], &figures.devices[other]);
    let able = |device: &DeviceFigures| device.times.iter().map(Option::is_some).collect::<Vec<bool>>();
    first.is_cpu == second.is_cpu
        && first.usable == second.usable
        && usable_of_host(one) == usable_of_host(other)
        && first.bytes == second.bytes
        && able(first) == able(second)
}
