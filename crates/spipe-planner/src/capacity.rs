//! Whether stages fit the memories at all, whichever devices they are on, in whichever order, one on each or several.
//!
//! What layers need on a device depends on its kind, on the layers and how they are cut into stages, and on how many microbatches are
//! in flight, which without a head start only the number of devices behind decides. So it does not matter in which order the devices of
//! a kind are, only how many of each are behind:
//!
//! ```text
//! ways(one more of kind k, from) = { way + what layers from..to on k need of its host : way ∈ ways(those behind, to) }
//! ```
//!
//! by dynamic programming from the last layer to the first. Of the ways with the same devices and layers only those are kept of which
//! none needs less of every host. What layers need of the host is looked up ([`hold`]), and found out more and more exactly:
//!
//! ```text
//! a bound            where even that does not fit, nothing does
//! in one stage       where that fits, it is a plan
//! cut into several   exact, but for very many layers on a device ([`cut`])
//! ```
//!
//! Hosts count, one after the other,
//!
//! ```text
//! not at all     nothing leaves the GPUs: where that fits, it is a plan
//! all together   where that does not fit, nothing does; a way that can be spread over the hosts is a plan
//! each by itself exact, where they are few and no stages of one device are on two of them
//! by class      those that are alike told apart only by what they hold ([`spread`])
//! ```

use crate::{
    Pins,
    case::{Case, Discipline, Division},
    figures::{DeviceFigures, Figures, Help, Seat},
};
use spipe_base::MemoryId;
use spipe_plan::{Placement, System, check};
use std::collections::{BTreeMap, BTreeSet};

mod crowd;
mod cut;
mod hold;
mod spread;

use cut::Choice;
use hold::{Entry, Hold, Holds, Place};
use spread::{Class, Measure, Spread, classes};

/// How many hosts are told apart.
const HOSTS: usize = 4;

/// How many sums of what hosts hold are followed.
const SLOTS: usize = 6;

/// Beyond so many pairs of devices behind and a layer, and so many comparisons of ways, nothing is decided.
const MOST_PAIRS: usize = 1 << 21;
const MOST_STEPS: usize = 1 << 27;

/// The same where several sums are followed for hosts that are alike.
const MOST_STEPS_BY_CLASS: usize = 1 << 24;

/// How many ways are tried to be spread over the hosts.
const TRIES: usize = 64;

/// What can be said of a discipline.
#[derive(Debug)]
pub(crate) enum Capacity {
    /// This placement fits.
    Fits(Placement),
    /// No placement fits.
    Never,
    /// Neither is certain, and there is a reason to search.
    Open,
    /// Stages fit all hosts together, but no way is found to spread them over the hosts.
    Unspread,
}

/// How the memories of hosts count.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    Unused,
    Together,
    Apart,
    /// Each class with its measures.
    ByClass(Vec<(usize, Measure)>),
}

/// Devices that hold alike, and the classes of the hosts of which each has one.
struct Kind {
    members: Vec<usize>,
    classes: Vec<usize>,
}

/// A sum of what hosts of a class hold, in one measure.
#[derive(Clone, Copy)]
struct Slot {
    class: usize,
    measure: Measure,
    room: u64,
}

/// The last stages of a chain, with what they need of the hosts.
#[derive(Clone, Copy)]
struct Way {
    held: [u64; SLOTS],
    /// Of the first of them: the kind of its device, the layer after its last one, and the way that goes on there.
    kind: usize,
    to: usize,
    next: usize,
}

/// Whether a placement fits under `discipline`, which has no head start.
pub(crate) fn capacity(figures: &Figures<'_>, discipline: Discipline, pins: &Pins) -> Capacity {
    capacity_with(figures, discipline, (pins, HOSTS))
}

/// The same where no more than so many hosts are told apart.
fn capacity_with(figures: &Figures<'_>, discipline: Discipline, (pins, apart): (&Pins, usize)) -> Capacity {
    if crowd::too_many(figures) {
        return Capacity::Never;
    }
    let few = host_memories(figures).len() <= apart;
    let choice = (0..figures.devices.len()).any(|device| figures.hosts(device).count() > 1);
    let question = |holds: &Holds, sure: bool, cut: bool| {
        let apart = cut && choice;
        Question { figures, discipline, pins, few, holds, sure, apart }.answer()
    };
    let ask = |holds: &Holds, sure: bool| question(holds, sure, true);
    let bounds = Holds::bounds(figures, discipline);
    if figures.training && matches!(ask(&bounds, false), Capacity::Never) {
        return Capacity::Never;
    }
    let whole = question(&Holds::whole(figures, discipline), true, false);
    // Without a backward, several stages need no less than one.
    if !figures.training || matches!(whole, Capacity::Fits(_) | Capacity::Open) {
        return whole;
    }
    let question = Question { figures, discipline, pins, few, holds: &bounds, sure: false, apart: choice };
    let Some(most) = question.most() else { return Capacity::Open };
    let holds = Holds::cut(figures, discipline, &most);
    match ask(&holds, true) {
        Capacity::Never if !holds.exact() => ask(&holds, false),
        answer => answer,
    }
}

/// Whether something fits with what is known of the needs of layers.
struct Question<'q, 'f, 'a> {
    figures: &'f Figures<'a>,
    discipline: Discipline,
    pins: &'q Pins,
    /// Whether hosts are told apart.
    few: bool,
    holds: &'q Holds,
    /// Whether what was found counts, or only bounds of it.
    sure: bool,
    /// Whether stages of one device may be on several hosts.
    apart: bool,
}

/// What one way to count hosts comes to.
enum Answer {
    Certain(Capacity),
    /// Something fits hosts that count so, which other hosts may not have room for.
    Perhaps,
    /// The same, and this is what it breaks.
    Breaks(usize, Measure),
}

impl Question<'_, '_, '_> {
    fn answer(&self) -> Capacity {
        for hosts in [Hosts::Unused, Hosts::Together] {
            if let Answer::Certain(answer) = self.with(&hosts) {
                return answer;
            }
        }
        if self.few {
            return match self.with(&Hosts::Apart) {
                Answer::Certain(Capacity::Never) if self.apart => Capacity::Open,
                Answer::Certain(answer) => answer,
                _ => Capacity::Open,
            };
        }
        // Bounds are no ways that can be spread.
        if !self.sure {
            return Capacity::Unspread;
        }
        let mut measures: Vec<(usize, Measure)> = Vec::new();
        loop {
            match self.with(&Hosts::ByClass(measures.clone())) {
                Answer::Certain(answer) => return answer,
                Answer::Breaks(class, measure) if !measures.contains(&(class, measure)) => {
                    measures.push((class, measure));
                }
                _ => return Capacity::Unspread,
            }
        }
    }

    /// What can be said if hosts count so.
    fn with(&self, hosts: &Hosts) -> Answer {
        // Where there are too many sums to follow, a search would not do better.
        let followed = matches!(hosts, Hosts::ByClass(measures) if !measures.is_empty());
        let chain = Chain::new(self, hosts).and_then(|chain| chain.ways().map(|ways| (chain, ways)));
        let Some((chain, ways)) = chain else {
            return Answer::Certain(if followed { Capacity::Unspread } else { Capacity::Open });
        };
        let complete = chain.complete(&ways);
        if complete.is_empty() {
            return if chain.hosts { Answer::Certain(Capacity::Never) } else { Answer::Perhaps };
        }
        if !self.sure {
            return Answer::Perhaps;
        }
        let fits = |placement: &Placement| {
            self.pins.allow(&self.figures.context, placement) && check(&self.figures.context, placement).is_ok()
        };
        let mut spread = false;
        for (state, index) in complete.iter().take(TRIES) {
            let Some(placement) = chain.place(&ways, *state, *index) else { continue };
            if fits(&placement) {
                return Answer::Certain(Capacity::Fits(placement));
            }
            spread = true;
        }
        let by_class = matches!(hosts, Hosts::ByClass(_));
        match complete.iter().take(TRIES).find_map(|(state, index)| chain.broken(&ways, *state, *index)) {
            // What else the checker or a pin refuses may have other ways.
            _ if by_class && spread => Answer::Certain(Capacity::Open),
            Some((class, measure)) if by_class => Answer::Breaks(class, measure),
            _ => Answer::Perhaps,
        }
    }

    /// For all layers on devices that are part of a placement that may fit, how much they may need of hosts, all hosts together.
    fn most(&self) -> Option<BTreeMap<Place, u64>> {
        let chain = Chain::new(self, &Hosts::Together)?;
        let ways = chain.ways()?;
        Some(chain.most(&ways))
    }
}

/// The ways by state, then by their first layer.
type Ways = Vec<Vec<Vec<Way>>>;

struct Chain<'q, 'f, 'a> {
    question: &'q Question<'q, 'f, 'a>,
    /// Whether hosts may be used.
    hosts: bool,
    kinds: Vec<Kind>,
    /// What one device more of each kind adds to the number of a state, in which the counts of all kinds are digits.
    strides: Vec<usize>,
    states: usize,
    classes: Vec<Class>,
    slots: Vec<Slot>,
}

impl<'q, 'f, 'a> Chain<'q, 'f, 'a> {
    /// None where there is too much to tell apart.
    fn new(question: &'q Question<'q, 'f, 'a>, hosts: &Hosts) -> Option<Self> {
        let (figures, alike) = (question.figures, &question.holds.alike);
        let classes = match hosts {
            Hosts::Unused => Vec::new(),
            Hosts::Together => Class::all(figures),
            Hosts::Apart => Class::each(figures),
            Hosts::ByClass(_) => classes(figures, alike),
        };
        let of_host = |device: usize| -> Vec<usize> {
            let memories = hosts_of(figures, device).into_iter();
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
        for device in 0..figures.devices.len() {
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
        states.checked_mul(figures.layers + 1).filter(|pairs| *pairs <= MOST_PAIRS && slots.len() <= SLOTS)?;
        Some(Self { question, hosts: *hosts != Hosts::Unused, kinds, strides, states, classes, slots })
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
        let layers = self.question.figures.layers;
        let nothing = Way { held: [0; SLOTS], kind: 0, to: layers, next: 0 };
        let mut all: Ways = vec![vec![Vec::new(); layers + 1]; self.states];
        all[0][layers].push(nothing);
        let by_class = self.slots.iter().any(|slot| slot.measure != Measure::Sum);
        let most = if by_class { MOST_STEPS_BY_CLASS } else { MOST_STEPS };
        let mut steps = 0;
        for state in 1..self.states {
            let behind = self.devices(state) - 1;
            for kind in (0..self.kinds.len()).filter(|kind| self.count(state, *kind) > 0) {
                let (before, here) = all.split_at_mut(state);
                let nonempty = |(_, ways): &(usize, &Vec<Way>)| !ways.is_empty();
                for (to, ways) in before[state - self.strides[kind]].iter().enumerate().filter(nonempty) {
                    let entries = self.question.holds.ending(self.kinds[kind].members[0], behind, to).iter();
                    for (from, held) in entries.filter_map(|entry| Some((entry.from, self.held(kind, entry)?))) {
                        for (next, way) in ways.iter().enumerate() {
                            // A way is compared with all that are there.
                            steps += 1 + here[0][from].len();
                            if steps > most {
                                return None;
                            }
                            for held in self.with(way.held, kind, held) {
                                keep(&mut here[0][from], Way { held, kind, to, next });
                            }
                        }
                    }
                }
            }
        }
        Some(all)
    }

    /// How much layers on each device may need of hosts, all of them together, for all layers to fit.
    fn most(&self, ways: &Ways) -> BTreeMap<Place, u64> {
        let (layers, holds) = (self.question.figures.layers, self.question.holds);
        // What the devices and layers before need at least, by those behind.
        let mut before: Vec<Vec<Option<u64>>> = vec![vec![None; layers + 1]; self.states];
        let mut most: BTreeMap<Place, u64> = BTreeMap::new();
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

    /// What layers on a device of a kind need of its host, as far as that counts.
    fn held(&self, kind: usize, entry: &Entry) -> Option<u64> {
        let held = if self.question.sure { entry.found? } else { entry.least };
        let is_cpu = self.question.figures.devices[self.kinds[kind].members[0]].is_cpu;
        (self.hosts || is_cpu || held == 0).then_some(held)
    }

    /// What hosts hold with `more` for a device of a kind on each of those that have the room.
    fn with(&self, held: [u64; SLOTS], kind: usize, more: u64) -> Vec<[u64; SLOTS]> {
        let classes = &self.kinds[kind].classes;
        if more == 0 || classes.is_empty() {
            return vec![held];
        }
        classes.iter().filter_map(|class| self.on(held, (kind, *class), more)).collect()
    }

    /// The same on a host of a class, if it has the room.
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

    /// The ways that begin with the first layer, each by state and index, those that need least of the hosts first.
    fn complete(&self, ways: &Ways) -> Vec<(usize, usize)> {
        let needs_cpu = self.question.discipline.system == System::Hybrid;
        let is_cpu = |kind: &Kind| self.question.figures.devices[kind.members[0]].is_cpu;
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

    /// What hosts hold, all together.
    fn bytes(&self, way: &Way) -> u64 {
        let sums = way.held.iter().zip(&self.slots).filter(|(_, slot)| slot.measure == Measure::Sum);
        sums.fold(0, |sum, (held, _)| sum.saturating_add(*held))
    }

    /// The kinds of a way's devices, the first layers first, each with what it holds and how.
    fn groups(&self, ways: &Ways, mut state: usize, mut index: usize) -> Option<Vec<(usize, Hold)>> {
        let (figures, holds) = (self.question.figures, self.question.holds);
        let (mut from, mut groups) = (0, Vec::new());
        while from < figures.layers {
            let way = ways[state][from][index];
            let device = self.kinds[way.kind].members[0];
            groups.push((way.kind, holds.hold(figures, (device, self.devices(state) - 1), (from, way.to))?));
            (state, from, index) = (state - self.strides[way.kind], way.to, way.next);
        }
        Some(groups)
    }

    /// The placement of a way, if it can be spread over the hosts.
    fn place(&self, ways: &Ways, state: usize, index: usize) -> Option<Placement> {
        let groups = self.groups(ways, state, index)?;
        let kinds = self.kinds.iter().map(|kind| kind.members.as_slice()).collect();
        let needs = groups.iter().map(|(kind, hold)| (*kind, hold.of_host)).collect();
        let seats = Spread::new(self.question.figures, kinds, needs).seats()?;
        let stages: Vec<(spread::Seated, &[Choice])> =
            seats.into_iter().zip(&groups).map(|(seat, (_, hold))| (seat, hold.stages.as_slice())).collect();
        Some(placement(self.question.figures, self.question.discipline, &stages))
    }

    /// What a way breaks that cannot be spread over the hosts of a class.
    fn broken(&self, ways: &Ways, state: usize, index: usize) -> Option<(usize, Measure)> {
        let groups = self.groups(ways, state, index)?;
        (0..self.classes.len()).find_map(|class| {
            let own = groups.iter().filter(|(kind, _)| self.kinds[*kind].classes.contains(&class));
            let alike = |kind: usize| self.question.holds.alike[self.kinds[kind].members[0]];
            let needs: Vec<(usize, u64)> = own.map(|(kind, hold)| (alike(*kind), hold.of_host)).collect();
            Some((class, self.classes[class].broken(&needs)?))
        })
    }
}

/// The placement with those stages on each device, which have what leaves it on one of its hosts.
fn placement(figures: &Figures<'_>, discipline: Discipline, stages: &[(spread::Seated, &[Choice])]) -> Placement {
    let stages = stages.iter().flat_map(|(seated, stages)| stages.iter().map(move |stage| (*seated, stage)));
    let devices: Vec<usize> = stages.clone().map(|(seated, _)| seated.device).collect();
    let mut case = Case::new(figures, &devices, discipline);
    let mut division = Division { ends: Vec::new(), recomputed: Vec::new() };
    for (seat, (seated, stage)) in case.seats.iter_mut().zip(stages) {
        let helped = stage.help != Help::NONE;
        seat.help = Some(if helped { Help { host: seated.host, ..stage.help } } else { Help::NONE });
        division.ends.push(stage.to);
        division.recomputed.push(stage.recomputed);
    }
    case.placement(figures, &division)
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

/// The memory of a socket, or of those that may help a GPU, the nearest first.
fn hosts_of(figures: &Figures<'_>, device: usize) -> Vec<MemoryId> {
    let own = &figures.devices[device];
    if own.is_cpu { vec![own.memory] } else { figures.hosts(device).map(|host| host.memory).collect() }
}

/// The rooms of those that may help a GPU, the nearest first.
fn rooms(figures: &Figures<'_>, device: usize) -> Vec<u64> {
    figures.hosts(device).map(|host| figures.devices[host.socket.index()].usable).collect()
}

/// Whether two devices hold the same layers in the same bytes, and have hosts of the same size or none.
fn hold_alike(figures: &Figures<'_>, one: usize, other: usize) -> bool {
    let (first, second) = (&figures.devices[one], &figures.devices[other]);
    let able = |device: &DeviceFigures| device.times.iter().map(Option::is_some).collect::<Vec<bool>>();
    first.is_cpu == second.is_cpu
        && first.usable == second.usable
        && rooms(figures, one) == rooms(figures, other)
        && first.bytes == second.bytes
        && able(first) == able(second)
}

#[cfg(test)]
mod tests;
