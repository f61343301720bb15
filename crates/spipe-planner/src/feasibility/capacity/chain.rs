//! The dynamic program over chains of devices: states count the devices of each kind behind, labels
//! the bytes that hosts hold.

use crate::feasibility::capacity::{
    Hosts, Question,
    hold::{Entry, HeldStage, Hold},
    host_packing::{HostClass, HostPacking, Measure, Seated, classes},
    hosts_of,
    way::CutStage,
};
use crate::{
    costs::{CostSums, HostOffload},
    space::subproblem::{Partition, ScheduleKind, Subproblem},
};
use spipe_plan::{Placement, System};
use std::collections::{BTreeMap, BTreeSet};

/// The most sums per label: one for each class of hosts, and one for each measure.
const SLOTS: usize = 6;

/// The most pairs of a state and a layer, and the most comparisons of labels; beyond these nothing
/// is decided.
const MOST_PAIRS: usize = 1 << 21;
const MOST_STEPS: usize = 1 << 27;

/// The most comparisons if measures beside bytes are followed.
const MOST_STEPS_BY_CLASS: usize = 1 << 24;

/// Devices that hold the same layers in the same bytes, and the classes of hosts that each may use.
struct Kind {
    members: Vec<usize>,
    classes: Vec<usize>,
}

/// A sum over the hosts of a class in one measure, with its limit.
#[derive(Clone, Copy)]
struct Slot {
    class: usize,
    measure: Measure,
    room: u64,
}

/// A label: the last stages of a chain, by the sums of the hosts.
#[derive(Clone, Copy)]
pub(crate) struct ChainLabel {
    held: [u64; SLOTS],
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
    /// Whether hosts may be used.
    pub hosts: bool,
    kinds: Vec<Kind>,
    /// The stride of each kind in the number of a state, whose digits are the counts of all kinds.
    strides: Vec<usize>,
    states: usize,
    classes: Vec<HostClass>,
    slots: Vec<Slot>,
}

impl<'q, 'f, 'a> Chain<'q, 'f, 'a> {
    /// Returns `None` if there are too many states or sums.
    pub fn new(question: &'q Question<'q, 'f, 'a>, hosts: &Hosts) -> Option<Self> {
        let (costs, alike) = (question.costs, &question.holds.alike);
        let classes = match hosts {
            Hosts::Unused => Vec::new(),
            Hosts::Together => HostClass::all(costs),
            Hosts::Apart => HostClass::each(costs),
            Hosts::ByClass(_) => classes(costs, alike),
        };
        let of_host = |device: usize| -> Vec<usize> {
            let memories = hosts_of(costs, device).into_iter();
            let of_memory = |memory| classes.iter().position(|class| class.hosts.contains(&memory));
            memories.filter_map(of_memory).collect::<BTreeSet<usize>>().into_iter().collect()
        };
        let sums = (0..classes.len()).map(|class| (class, Measure::Sum));
        let measures = match hosts {
            Hosts::ByClass(measures) => measures.as_slice(),
            _ => &[],
        };
        let slot = |(class, measure): (usize, Measure)| Slot { class, measure, room: classes[class].room(measure) };
        let slots: Vec<Slot> = sums.chain(measures.iter().copied()).map(slot).collect();
        let mut kinds: Vec<Kind> = Vec::new();
        for device in 0..costs.devices.len() {
            let classes = of_host(device);
            let like = |kind: &&mut Kind| kind.classes == classes && alike[kind.members[0]] == alike[device];
            match kinds.iter_mut().find(like) {
                Some(kind) => kind.members.push(device),
                None => kinds.push(Kind { members: vec![device], classes }),
            }
        }
        let mut strides = Vec::new();
        let mut states = 1usize;
        for kind in &kinds {
            strides.push(states);
            states = states.checked_mul(kind.members.len() + 1)?;
        }
        states.checked_mul(costs.layers + 1).filter(|pairs| *pairs <= MOST_PAIRS && slots.len() <= SLOTS)?;
        Some(Self { question, hosts: *hosts != Hosts::Unused, kinds, strides, states, classes, slots })
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
        let nothing = ChainLabel { held: [0; SLOTS], kind: 0, to: layers, next: 0 };
        let mut all: ChainLabels = vec![vec![Vec::new(); layers + 1]; self.states];
        all[0][layers].push(nothing);
        let by_class = self.slots.iter().any(|slot| slot.measure != Measure::Sum);
        let most = if by_class { MOST_STEPS_BY_CLASS } else { MOST_STEPS };
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
                            if steps > most {
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
                        let left = self.slots[0].room.checked_sub(ahead.saturating_add(after));
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
        (self.hosts || is_cpu || held == 0).then_some(held)
    }

    /// The sums with `more` bytes for a device of a kind, once for each class with the room.
    fn with(&self, held: [u64; SLOTS], kind: usize, more: u64) -> Vec<[u64; SLOTS]> {
        let classes = &self.kinds[kind].classes;
        if more == 0 || classes.is_empty() {
            return vec![held];
        }
        classes.iter().filter_map(|class| self.on(held, (kind, *class), more)).collect()
    }

    /// The sums with `more` bytes on a host of a class, if it has the room.
    fn on(&self, mut held: [u64; SLOTS], (kind, class): (usize, usize), more: u64) -> Option<[u64; SLOTS]> {
        let members = &self.kinds[kind].members;
        for (held, slot) in held.iter_mut().zip(&self.slots).filter(|(_, slot)| slot.class == class) {
            let class = &self.classes[slot.class];
            let weight = match slot.measure {
                Measure::Sum => more,
                measure => class.weight(measure, self.question.holds.alike[members[0]], more),
            };
            *held = held.saturating_add(weight);
            if *held > slot.room {
                return None;
            }
        }
        Some(held)
    }

    /// The labels of all layers, by state and index, in ascending order of host bytes.
    pub fn complete(&self, ways: &ChainLabels) -> Vec<(usize, usize)> {
        let needs_cpu = self.question.schedule.system == System::Hybrid;
        let is_cpu = |kind: &Kind| self.question.costs.devices[kind.members[0]].is_cpu;
        let on_cpu = |state: usize| {
            self.kinds.iter().enumerate().any(|(index, kind)| is_cpu(kind) && self.count(state, index) > 0)
        };
        let mut list: Vec<(u64, usize, usize)> = Vec::new();
        for state in (1..self.states).filter(|state| !needs_cpu || on_cpu(*state)) {
            let ways = ways[state][0].iter().enumerate();
            list.extend(ways.map(|(index, way)| (self.bytes(way), state, index)));
        }
        list.sort_unstable();
        list.into_iter().map(|(_, state, index)| (state, index)).collect()
    }

    /// The bytes of all hosts together.
    fn bytes(&self, way: &ChainLabel) -> u64 {
        let sums = way.held.iter().zip(&self.slots).filter(|(_, slot)| slot.measure == Measure::Sum);
        sums.fold(0, |sum, (held, _)| sum.saturating_add(*held))
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
        let kinds = self.kinds.iter().map(|kind| kind.members.as_slice()).collect();
        let needs = groups.iter().map(|(kind, hold)| (*kind, hold.of_host)).collect();
        let seats = HostPacking::new(self.question.costs, kinds, needs).seats()?;
        let stages: Vec<(Seated, &[CutStage])> =
            seats.into_iter().zip(&groups).map(|(seat, (_, hold))| (seat, hold.stages.as_slice())).collect();
        Some(placement(self.question.costs, self.question.schedule, &stages))
    }

    /// The class and the measure that a label exceeds if it cannot be packed onto the hosts of a
    /// class.
    pub fn broken(&self, ways: &ChainLabels, state: usize, index: usize) -> Option<(usize, Measure)> {
        let groups = self.groups(ways, state, index)?;
        (0..self.classes.len()).find_map(|class| {
            let own = groups.iter().filter(|(kind, _)| self.kinds[*kind].classes.contains(&class));
            let alike = |kind: usize| self.question.holds.alike[self.kinds[kind].members[0]];
            let needs: Vec<(usize, u64)> = own.map(|(kind, hold)| (alike(*kind), hold.of_host)).collect();
            Some((class, self.classes[class].broken(&needs)?))
        })
    }
}

/// The placement with these stages on each device, and their host data on one of its hosts.
fn placement(costs: &CostSums<'_>, schedule: ScheduleKind, stages: &[(Seated, &[CutStage])]) -> Placement {
    let stages = stages.iter().flat_map(|(seated, stages)| stages.iter().map(move |stage| (*seated, stage)));
    let devices: Vec<usize> = stages.clone().map(|(seated, _)| seated.device).collect();
    let mut case = Subproblem::new(costs, &devices, schedule);
    let mut partition = Partition { ends: Vec::new(), recomputed: Vec::new() };
    for (seat, (seated, stage)) in case.seats.iter_mut().zip(stages) {
        let helped = stage.host_offload != HostOffload::NONE;
        seat.host_offload =
            Some(if helped { HostOffload { host: seated.host, ..stage.host_offload } } else { HostOffload::NONE });
        partition.ends.push(stage.to);
        partition.recomputed.push(stage.recomputed);
    }
    case.placement(costs, &partition)
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
