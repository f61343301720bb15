//! The dynamic program over chains of devices: states count the devices of each kind behind, labels
//! the bytes that hosts hold.

use crate::{
    costs::{CostSums, HostOffload},
    feasibility::capacity::{
        HOSTS, Hosts, Question,
        cut::CutStage,
        hold::{Entry, HeldStage, Hold},
        host_memories, hosts_of,
        packing::{PackedStage, Packing},
    },
    space::{
        rules::SystemSpec,
        subproblem::{DecidedPartition, ScheduleKind, Subproblem},
    },
};
use spipe_base::MemoryId;
use spipe_plan::Placement;
use std::collections::{BTreeMap, BTreeSet};

/// The most pairs of a state and a layer, and the most comparisons of labels; beyond these nothing
/// is decided. The empty lists take 50 MB then, and the comparisons less than a second.
const MOST_PAIRS: usize = 1 << 21;
const MOST_STEPS: usize = 1 << 27;

/// Devices that hold the same layers in the same bytes, and the modelled hosts that each may use.
struct Kind {
    members: Vec<usize>,
    hosts: Vec<usize>,
}

/// A label: the last stages of a chain, by the bytes on each modelled host.
#[derive(Clone, Copy)]
pub(crate) struct ChainLabel {
    held: [u64; HOSTS],
    /// The kind of the first device, the layer after its last one, and the index of the label that
    /// goes on there.
    kind: usize,
    to: usize,
    next: usize,
}

/// The labels by state, then by their first layer.
pub(crate) type ChainLabels = Vec<Vec<Vec<ChainLabel>>>;

pub(crate) struct Chain<'q, 'f, 'a> {
    question: &'q Question<'q, 'f, 'a>,
    kinds: Vec<Kind>,
    /// The stride of each kind in the number of a state, whose digits are the counts of all kinds.
    strides: Vec<usize>,
    states: usize,
    /// The bytes of each modelled host.
    rooms: Vec<u64>,
}

impl<'q, 'f, 'a> Chain<'q, 'f, 'a> {
    /// Returns `None` if there are too many states.
    pub fn new(question: &'q Question<'q, 'f, 'a>, hosts: Hosts) -> Option<Self> {
        let (costs, alike) = (question.costs, &question.holds.alike);
        let memories = host_memories(costs);
        let rooms: Vec<u64> = match hosts {
            Hosts::Unused => Vec::new(),
            Hosts::Together => vec![memories.values().fold(0, |all, room| all.saturating_add(*room))],
            Hosts::Apart => memories.values().copied().collect(),
        };
        let of_memory = |memory: MemoryId| match hosts {
            Hosts::Unused => None,
            Hosts::Together => Some(0),
            Hosts::Apart => memories.keys().position(|host| *host == memory),
        };
        let hosts_of =
            |device: usize| -> BTreeSet<usize> { hosts_of(costs, device).into_iter().filter_map(of_memory).collect() };
        let mut kinds: Vec<Kind> = Vec::new();
        for device in 0..costs.devices.len() {
            let hosts: Vec<usize> = hosts_of(device).into_iter().collect();
            let like = |kind: &&mut Kind| kind.hosts == hosts && alike[kind.members[0]] == alike[device];
            match kinds.iter_mut().find(like) {
                Some(kind) => kind.members.push(device),
                None => kinds.push(Kind { members: vec![device], hosts }),
            }
        }
        let mut strides = Vec::new();
        let mut states = 1usize;
        for kind in &kinds {
            strides.push(states);
            states = states.checked_mul(kind.members.len() + 1)?;
        }
        states.checked_mul(costs.layers + 1).filter(|pairs| *pairs <= MOST_PAIRS)?;
        Some(Self { question, kinds, strides, states, rooms })
    }

    /// The number of devices of a kind in a state.
    fn count(&self, state: usize, kind: usize) -> usize {
        state / self.strides[kind] % (self.kinds[kind].members.len() + 1)
    }

    /// The number of devices in a state.
    fn devices(&self, state: usize) -> usize {
        (0..self.kinds.len()).map(|kind| self.count(state, kind)).sum()
    }

    /// Computes all labels; `None` if that takes too many steps.
    pub fn ways(&self) -> Option<ChainLabels> {
        let layers = self.question.costs.layers;
        let nothing = ChainLabel { held: [0; HOSTS], kind: 0, to: layers, next: 0 };
        let mut all: ChainLabels = vec![vec![Vec::new(); layers + 1]; self.states];
        all[0][layers].push(nothing);
        let mut steps = 0;
        for state in 1..self.states {
            let behind = self.devices(state) - 1;
            for kind in (0..self.kinds.len()).filter(|kind| self.count(state, *kind) > 0) {
                let (before, here) = all.split_at_mut(state);
                let nonempty = |(_, ways): &(usize, &Vec<ChainLabel>)| !ways.is_empty();
                for (to, ways) in before[state - self.strides[kind]].iter().enumerate().filter(nonempty) {
                    let entries = self.question.holds.ending(self.kinds[kind].members[0], behind, to).iter();
                    for (from, held) in entries.filter_map(|entry| Some((entry.from, self.held(kind, entry)?))) {
                        for (next, way) in ways.iter().enumerate() {
                            // A label is compared with all that are there.
                            steps += 1 + here[0][from].len();
                            if steps > MOST_STEPS {
                                return None;
                            }
                            for held in self.with(way.held, kind, held) {
                                keep(&mut here[0][from], ChainLabel { held, kind, to, next });
                            }
                        }
                    }
                }
            }
        }
        Some(all)
    }

    /// Returns, for all layers on each device, the most host bytes with which all layers may still
    /// fit. Hosts count as one.
    pub fn most(&self, ways: &ChainLabels) -> BTreeMap<HeldStage, u64> {
        let (layers, holds) = (self.question.costs.layers, self.question.holds);
        // By state and layer: the least host bytes of the devices and layers before.
        let mut before: Vec<Vec<Option<u64>>> = vec![vec![None; layers + 1]; self.states];
        let mut most: BTreeMap<HeldStage, u64> = BTreeMap::new();
        for state in (1..self.states).rev() {
            before[state][0] = Some(0);
            let behind = self.devices(state) - 1;
            for kind in (0..self.kinds.len()).filter(|kind| self.count(state, *kind) > 0) {
                let (device, next) = (self.kinds[kind].members[0], state - self.strides[kind]);
                for (to, after) in ways[next].iter().enumerate() {
                    let Some(after) = after.iter().map(|way| way.held[0]).min() else { continue };
                    for entry in holds.ending(device, behind, to) {
                        let Some(ahead) = before[state][entry.from] else { continue };
                        let here = ahead.saturating_add(entry.least);
                        before[next][to] = Some(before[next][to].map_or(here, |least| least.min(here)));
                        let left = self.rooms[0].checked_sub(ahead.saturating_add(after));
                        if let Some(left) = left.filter(|left| entry.least <= *left) {
                            let most = most.entry(holds.at((device, behind), (entry.from, to))).or_default();
                            *most = left.max(*most);
                        }
                    }
                }
            }
        }
        most
    }

    /// The host bytes of layers on a device of a kind; `None` if they are unknown or no host may be
    /// used.
    fn held(&self, kind: usize, entry: &Entry) -> Option<u64> {
        let held = if self.question.sure { entry.found? } else { entry.least };
        let is_cpu = self.question.costs.devices[self.kinds[kind].members[0]].is_cpu;
        (!self.rooms.is_empty() || is_cpu || held == 0).then_some(held)
    }

    /// The bytes with `more` for a device of a kind, once for each host with the room.
    fn with(&self, held: [u64; HOSTS], kind: usize, more: u64) -> Vec<[u64; HOSTS]> {
        let hosts = &self.kinds[kind].hosts;
        if more == 0 || hosts.is_empty() {
            return vec![held];
        }
        let on = |host: &usize| {
            let mut held = held;
            held[*host] = held[*host].saturating_add(more);
            (held[*host] <= self.rooms[*host]).then_some(held)
        };
        hosts.iter().filter_map(on).collect()
    }

    /// The labels of all layers, by state and index, in ascending order of host bytes.
    pub fn complete(&self, ways: &ChainLabels) -> Vec<(usize, usize)> {
        let needs_cpu = SystemSpec::of(self.question.schedule.system).needs_cpu;
        let is_cpu = |kind: &Kind| self.question.costs.devices[kind.members[0]].is_cpu;
        let on_cpu = |state: usize| {
            self.kinds.iter().enumerate().any(|(index, kind)| is_cpu(kind) && self.count(state, index) > 0)
        };
        let mut list: Vec<(u64, usize, usize)> = Vec::new();
        for state in (1..self.states).filter(|state| !needs_cpu || on_cpu(*state)) {
            let ways = ways[state][0].iter().enumerate();
            list.extend(ways.map(|(index, way)| (way.held.iter().copied().fold(0, u64::saturating_add), state, index)));
        }
        list.sort_unstable();
        list.into_iter().map(|(_, state, index)| (state, index)).collect()
    }

    /// The kinds of a label's devices in layer order, each with its stages and host bytes.
    fn groups(&self, ways: &ChainLabels, mut state: usize, mut index: usize) -> Option<Vec<(usize, Hold)>> {
        let (costs, holds) = (self.question.costs, self.question.holds);
        let (mut from, mut groups) = (0, Vec::new());
        while from < costs.layers {
            let way = ways[state][from][index];
            let device = self.kinds[way.kind].members[0];
            groups.push((way.kind, holds.hold(costs, (device, self.devices(state) - 1), (from, way.to))?));
            (state, from, index) = (state - self.strides[way.kind], way.to, way.next);
        }
        Some(groups)
    }

    /// The placement of a label, if it can be packed onto the hosts.
    pub fn place(&self, ways: &ChainLabels, state: usize, index: usize) -> Option<Placement> {
        let groups = self.groups(ways, state, index)?;
        let needs = groups.iter().map(|(kind, hold)| (self.kinds[*kind].members.as_slice(), hold.of_host)).collect();
        let packed = Packing::new(self.question.costs, needs).packed()?;
        let stages: Vec<(PackedStage, &[CutStage])> =
            packed.into_iter().zip(&groups).map(|(packed, (_, hold))| (packed, hold.stages.as_slice())).collect();
        Some(placement(self.question.costs, self.question.schedule, &stages))
    }
}

/// The placement with these stages on each device, and their host data on one of its hosts.
fn placement(costs: &CostSums<'_>, schedule: ScheduleKind, stages: &[(PackedStage, &[CutStage])]) -> Placement {
    let stages = stages.iter().flat_map(|(packed, stages)| stages.iter().map(move |stage| (*packed, stage)));
    let devices: Vec<usize> = stages.clone().map(|(packed, _)| packed.device).collect();
    let mut decided = DecidedPartition::empty(Subproblem::new(costs, &devices, schedule));
    for (packed, stage) in stages {
        let helped = stage.host_offload != HostOffload::NONE;
        let host_offload = HostOffload { host: if helped { packed.host } else { 0 }, ..stage.host_offload };
        decided.push(stage.to, stage.recomputed, host_offload);
    }
    decided.placement(costs)
}

/// Inserts `way` unless one of `ways` dominates it in every sum, and removes those that it
/// dominates.
fn keep(ways: &mut Vec<ChainLabel>, way: ChainLabel) {
    let no_more =
        |one: &ChainLabel, other: &ChainLabel| one.held.iter().zip(&other.held).all(|(one, other)| one <= other);
    if ways.iter().any(|other| no_more(other, &way)) {
        return;
    }
    ways.retain(|other| !no_more(&way, other));
    ways.push(way);
}
