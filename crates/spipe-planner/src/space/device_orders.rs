//! Device orders, up to symmetry.
//!
//! Two devices are interchangeable if swapping them leaves the machine unchanged: the same times,
//! bytes and capacity, and the same route to every other device once the links that only they use
//! are swapped too. Such swaps generate all permutations of a class of interchangeable devices. So
//! it suffices to try the orders that use the devices of each class in ascending order.
//!
//! Two of these orders are equivalent if they *look* the same: equal devices in the same positions,
//! and equal routes between neighbours that share the same links in the same pattern. If all GPUs
//! reach each other over one switch, for instance, a GPU without a CPU neighbour and without a host
//! offload may be below any root complex.
//!
//! If too many orders remain, the pattern of shared links is ignored. Bounds that leave links out
//! hold for all orders of a class then, simulations only for the simulated one.

use crate::{
    costs::{CostSums, DeviceSums, HostOffload, P2pCost},
    problem::Deadline,
};
use spipe_base::{LinkId, MemoryId};
use std::collections::{BTreeMap, BTreeSet};

/// The most distinct device orders that are searched. Beyond it only the natural ones are, without a
/// claim of optimality.
pub(crate) const MOST: usize = 4000;

/// The most orders that are examined, as a multiple of the most that are listed: most of them look alike
/// on machines of many equal devices.
const LOOKS: usize = 25;

/// The claim that a list of device orders makes about all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// Each is equivalent to one on the list.
    Exact,
    /// Each is equivalent to one on the list, except for the links that its routes share.
    UpToLinks,
    /// None.
    Natural,
}

/// A list of device orders, and its coverage of all others.
pub(crate) struct Sequences {
    pub list: Vec<Vec<usize>>,
    pub coverage: Coverage,
}

/// The device orders of `costs`: as exact as `limit` of them allow, otherwise the natural ones.
pub(crate) fn sequences(costs: &CostSums<'_>, limit: usize, deadline: Option<&Deadline<'_>>) -> Sequences {
    within(costs, (limit, f64::INFINITY), deadline)
}

/// Like [`sequences`], without the orders in which some device would take longer than `iteration`
/// ms for any layer that it may have. Returns the natural ones if the deadline comes first.
pub(crate) fn within(
    costs: &CostSums<'_>,
    (limit, iteration): (usize, f64),
    deadline: Option<&Deadline<'_>>,
) -> Sequences {
    let able = able(costs, iteration);
    for coverage in [Coverage::Exact, Coverage::UpToLinks] {
        let mut walk = OrderWalk {
            costs,
            coverage,
            able: &able,
            classes: classes(costs, coverage),
            seen: BTreeSet::new(),
            list: Vec::new(),
            looks: 0,
            limit,
            deadline,
        };
        if walk.extend(&mut Vec::new()) {
            return Sequences { list: walk.list, coverage };
        }
    }
    Sequences { list: natural(costs), coverage: Coverage::Natural }
}

/// Returns, by device, the layers that it can run within `iteration` ms, their optimizer step
/// included.
fn able(costs: &CostSums<'_>, iteration: f64) -> Vec<Vec<usize>> {
    let m = costs.microbatches as f64;
    let within = |device: &DeviceSums, host_offloads: &[HostOffload], layer: usize| {
        let own = |host_offload: &HostOffload| {
            let times = device.stage_times((layer, layer + 1), 0, *host_offload);
            if costs.training { m * times.busy() + times.stepped() } else { m * times.forward }
        };
        let may = |host_offload: &&HostOffload| device.allows(**host_offload, layer, layer + 1);
        device.able(layer, layer + 1)
            && host_offloads.iter().filter(may).any(|host_offload| own(host_offload) <= iteration)
    };
    let of = |(index, device): (usize, &DeviceSums)| {
        (0..costs.layers).filter(|layer| within(device, costs.host_offloads(index), *layer)).collect()
    };
    costs.devices.iter().enumerate().map(of).collect()
}

struct OrderWalk<'f, 'a> {
    costs: &'f CostSums<'a>,
    coverage: Coverage,
    /// The layers that each device may have.
    able: &'f [Vec<usize>],
    /// The class of each device.
    classes: Vec<usize>,
    seen: BTreeSet<Vec<u64>>,
    list: Vec<Vec<usize>>,
    looks: usize,
    limit: usize,
    deadline: Option<&'f Deadline<'f>>,
}

impl OrderWalk<'_, '_> {
    /// Adds all orders that start with `sequence`; `false` if there are too many or the deadline is
    /// over.
    fn extend(&mut self, sequence: &mut Vec<usize>) -> bool {
        if sequence.len() == self.costs.layers {
            return true;
        }
        for device in 0..self.costs.devices.len() {
            let passed_over = |other: usize| self.classes[other] == self.classes[device] && !sequence.contains(&other);
            let joined = sequence.last().is_none_or(|before| self.costs.p2p(*before, device).is_some());
            if sequence.contains(&device) || (0..device).any(passed_over) || !joined {
                continue;
            }
            sequence.push(device);
            if !self.has_room(sequence) {
                sequence.pop();
                continue;
            }
            self.looks += 1;
            if self.seen.insert(self.look(sequence)) {
                self.list.push(sequence.clone());
            }
            let too_many = self.list.len() > self.limit || self.looks > LOOKS * self.limit;
            if too_many || self.deadline.is_some_and(Deadline::over) || !self.extend(sequence) {
                return false;
            }
            sequence.pop();
        }
        true
    }

    /// Whether every device can have a layer, with at least one layer for each stage before and
    /// after it.
    fn has_room(&self, sequence: &[usize]) -> bool {
        sequence.iter().enumerate().all(|(stage, device)| {
            let last = self.costs.layers - (sequence.len() - stage);
            self.able[*device].iter().any(|layer| (stage..=last).contains(layer))
        })
    }

    /// The part of `sequence` that a schedule can see: the kind of each device, and the memories,
    /// DRAM channels and links that it, its hosts and its neighbours use, numbered by first
    /// appearance, with the size of its hosts' memories.
    fn look(&self, sequence: &[usize]) -> Vec<u64> {
        let mut look = Vec::with_capacity(8 * sequence.len());
        let (mut memories, mut links) = (BTreeMap::<MemoryId, u64>::new(), BTreeMap::<LinkId, u64>::new());
        for (stage, device) in sequence.iter().enumerate() {
            let memory = self.costs.devices[*device].memory;
            let next = memories.len() as u64;
            look.extend([self.costs.models[*device] as u64, *memories.entry(memory).or_insert(next)]);
            let channels = self.costs.context.hardware.dram_channels(memory);
            for host in self.costs.hosts(*device) {
                let next = memories.len() as u64;
                let usable = self.costs.devices[host.socket.index()].usable;
                look.extend([*memories.entry(host.memory).or_insert(next), usable]);
            }
            let pair = sequence.get(stage + 1).map(|next| (*device, *next));
            let p2p_both_ways = pair.into_iter().flat_map(|(from, to)| [(from, to), (to, from)]);
            let mut number = |link: LinkId| {
                let next = links.len() as u64;
                *links.entry(link).or_insert(next)
            };
            let exact = self.coverage == Coverage::Exact;
            look.extend(channels.filter(|_| exact).map(&mut number));
            let helpers = self.costs.hosts(*device).map(|host| host.socket.index());
            let p2p_both_ways = p2p_both_ways.chain(helpers.flat_map(|socket| [(*device, socket), (socket, *device)]));
            for p2p in p2p_both_ways.filter_map(|(from, to)| self.costs.p2p(from, to)) {
                look.extend([p2p.latency.to_bits(), p2p.per_byte.to_bits()]);
                if !exact {
                    continue;
                }
                look.push(p2p.links.len() as u64);
                look.extend(p2p.links.iter().flat_map(|(link, per_byte)| [number(*link), per_byte.to_bits()]));
            }
        }
        look
    }
}

/// The order of all GPUs, or of all sockets of a machine without any: none if no route joins two neighbours.
pub(crate) fn all_gpus(costs: &CostSums<'_>) -> Vec<Vec<usize>> {
    let cpu = costs.devices.iter().all(|device| device.is_cpu);
    let order = (0..costs.devices.len()).filter(|device| costs.devices[*device].is_cpu == cpu);
    let order: Vec<usize> = order.take(costs.layers).collect();
    let joined = order.windows(2).all(|pair| costs.p2p(pair[0], pair[1]).is_some());
    if joined { vec![order] } else { Vec::new() }
}

/// Natural device orders: the first GPUs by several criteria, with the first sockets before them,
/// after them, on both sides, or absent; and sockets alone. On machines of many devices only some
/// counts are taken.
pub(crate) fn natural(costs: &CostSums<'_>) -> Vec<Vec<usize>> {
    let of_kind = |cpu: bool| -> Vec<usize> {
        (0..costs.devices.len()).filter(|device| costs.devices[*device].is_cpu == cpu).collect()
    };
    let (gpus, sockets) = (of_kind(false), of_kind(true));
    let mut list: Vec<Vec<usize>> = Vec::new();
    for gpus in firsts(costs, &gpus) {
        for socket_count in counts(sockets.len()) {
            for before in BTreeSet::from([0, socket_count / 2, socket_count]) {
                let (front, back) = sockets[..socket_count].split_at(before);
                list.push([front, &gpus, back].concat());
            }
        }
    }
    let joined = |sequence: &[usize]| sequence.windows(2).all(|pair| costs.p2p(pair[0], pair[1]).is_some());
    list.retain(|sequence| !sequence.is_empty() && sequence.len() <= costs.layers && joined(sequence));
    let mut seen = BTreeSet::new();
    list.retain(|sequence| seen.insert(sequence.clone()));
    list
}

/// The first n GPUs in the machine's order, for several n. If GPUs differ, also the n that compute
/// fastest, have most memory or the fastest links: these in front, at the end, and in the machine's
/// order.
fn firsts(costs: &CostSums<'_>, gpus: &[usize]) -> Vec<Vec<usize>> {
    let counts = counts(gpus.len());
    let mut list: Vec<Vec<usize>> = counts.iter().map(|count| gpus[..*count].to_vec()).collect();
    let middle = (costs.layers / 2).max(1);
    let time = |gpu: usize| costs.devices[gpu].pass((0, costs.layers), costs.training);
    let memory = |gpu: usize| -(costs.devices[gpu].usable as f64);
    let way = |gpu: usize| {
        let others = gpus.iter().filter(|other| **other != gpu && costs.p2p(gpu, **other).is_some());
        others.map(|other| costs.transfers((gpu, *other), middle).0).fold(f64::INFINITY, f64::min)
    };
    for key in [&time as &dyn Fn(usize) -> f64, &memory, &way] {
        let mut best = gpus.to_vec();
        best.sort_by(|one, other| key(*one).total_cmp(&key(*other)));
        for count in &counts {
            let first = best[..*count].to_vec();
            let (mut last, mut sorted) = (first.clone(), first.clone());
            sorted.sort_unstable();
            // Equal GPUs stay in the machine's order.
            last.sort_by(|one, other| key(*other).total_cmp(&key(*one)).then(one.cmp(other)));
            list.extend([first, last, sorted]);
        }
    }
    list
}

/// All counts from 0 to `most` if that is at most eight; otherwise eighths of it and powers of two.
fn counts(most: usize) -> BTreeSet<usize> {
    let eighths = (0..=8).map(|part| most * part / 8);
    let powers = (0..usize::BITS).map(|power| 1 << power).take_while(|count| *count < most);
    if most <= 8 { (0..=most).collect() } else { eighths.chain(powers).collect() }
}

/// Returns the class of each device: the index of its first member.
pub(crate) fn classes(costs: &CostSums<'_>, coverage: Coverage) -> Vec<usize> {
    let mut classes: Vec<usize> = Vec::new();
    let users = Users::new(costs);
    for device in 0..costs.devices.len() {
        let like = (0..device)
            .find(|other| classes[*other] == *other && interchangeable(costs, &users, (*other, device), coverage));
        classes.push(like.unwrap_or(device));
    }
    classes
}

fn interchangeable(costs: &CostSums<'_>, users: &Users, (a, b): (usize, usize), coverage: Coverage) -> bool {
    let (first, second) = (&costs.devices[a], &costs.devices[b]);
    let helpers = |device: usize| costs.hosts(device).map(|host| host.socket).collect::<Vec<_>>();
    let hosts_a_device = |socket: usize| {
        (0..costs.devices.len()).any(|device| helpers(device).iter().any(|helper| helper.index() == socket))
    };
    // A host is distinguished by the devices that offload to it.
    let alike = costs.models[a] == costs.models[b]
        && first.memory != second.memory
        && helpers(a) == helpers(b)
        && !hosts_a_device(a)
        && !hosts_a_device(b);
    let shares = |device: usize, memory| {
        (0..costs.devices.len()).any(|other| other != device && costs.devices[other].memory == memory)
    };
    if !alike || shares(a, first.memory) || shares(b, second.memory) {
        return false;
    }
    let mut swap = Swap { costs, users, coverage, a, b, partner: BTreeMap::new() };
    (0..costs.devices.len()).filter(|other| *other != a && *other != b).all(|other| {
        swap.maps(costs.p2p(a, other), costs.p2p(b, other)) && swap.maps(costs.p2p(other, a), costs.p2p(other, b))
    }) && swap.maps(costs.p2p(a, b), costs.p2p(b, a))
}

/// A swap of two devices, with the swaps of links that it requires so far.
struct Swap<'f, 'a> {
    costs: &'f CostSums<'a>,
    users: &'f Users,
    coverage: Coverage,
    a: usize,
    b: usize,
    partner: BTreeMap<LinkId, LinkId>,
}

impl Swap<'_, '_> {
    /// Whether the swap maps one route to the other.
    fn maps(&mut self, from: Option<&P2pCost>, to: Option<&P2pCost>) -> bool {
        let (from, to) = match (from, to) {
            (None, None) => return true,
            (Some(from), Some(to)) => (from, to),
            _ => return false,
        };
        let same = |x: f64, y: f64| x.total_cmp(&y).is_eq();
        let equal = same(from.latency, to.latency) && same(from.per_byte, to.per_byte);
        if self.coverage == Coverage::UpToLinks {
            return equal;
        }
        equal
            && from.links.len() == to.links.len()
            && from
                .links
                .iter()
                .zip(&to.links)
                .all(|((one, one_rate), (other, other_rate))| same(*one_rate, *other_rate) && self.pairs(*one, *other))
    }

    fn pairs(&mut self, one: LinkId, other: LinkId) -> bool {
        if one != other && !(self.private(one) && self.private(other)) {
            return false;
        }
        *self.partner.entry(one).or_insert(other) == other && *self.partner.entry(other).or_insert(one) == one
    }

    /// Whether only routes from or to one of the two devices use `link`.
    fn private(&self, link: LinkId) -> bool {
        let between = [(self.a, self.b), (self.b, self.a)];
        let uses = |p2p: &P2pCost| p2p.links.iter().any(|(passed, _)| *passed == link);
        let passes = |pair: &&(usize, usize)| self.costs.p2p(pair.0, pair.1).is_some_and(uses);
        let of = |device: usize| self.users.of_ends.get(&(link, device)).copied().unwrap_or(0);
        let all = self.users.of_all.get(&link).copied().unwrap_or(0);
        all == of(self.a) + of(self.b) - between.iter().filter(passes).count()
    }
}

/// How many routes between two devices use each link: counted once, since classes ask for each pair of devices.
struct Users {
    of_all: BTreeMap<LinkId, usize>,
    /// The same for the routes that begin or end at a device.
    of_ends: BTreeMap<(LinkId, usize), usize>,
}

impl Users {
    fn new(costs: &CostSums<'_>) -> Self {
        let mut users = Self { of_all: BTreeMap::new(), of_ends: BTreeMap::new() };
        let devices = 0..costs.devices.len();
        for (from, to) in devices.clone().flat_map(|from| devices.clone().map(move |to| (from, to))) {
            for link in costs.p2p(from, to).into_iter().filter(|_| from != to).flat_map(passed) {
                *users.of_all.entry(link).or_default() += 1;
                for end in [from, to] {
                    *users.of_ends.entry((link, end)).or_default() += 1;
                }
            }
        }
        users
    }
}

/// The links of a route, each once.
fn passed(p2p: &P2pCost) -> BTreeSet<LinkId> {
    p2p.links.iter().map(|(link, _)| *link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Instance, LayerText, MachineText, machine_text, model_text, workload};
    use crate::problem::Options;
    use spipe_cost::Mode;

    fn on<T>(machine: &MachineText, look: impl Fn(&CostSums<'_>) -> T) -> T {
        with(machine, &Options::default(), look)
    }

    fn with<T>(machine: &MachineText, options: &Options, look: impl Fn(&CostSums<'_>) -> T) -> T {
        look(&CostSums::new(of_layers((12, 0), &machine_text(machine)).context(), options))
    }

    /// `count` equal layers with `parameters` parameters each. Two microbatches of one take 0.6 ms
    /// on a GPU and twice that on a socket.
    fn of_layers((count, parameters): (usize, u64), machine: &str) -> Instance {
        let layer = LayerText { count, times: [1, 1, 1], slowdown: 2, parameters, boundary: 1, saved: 0, workspace: 0 };
        Instance::new(&model_text(&[layer]), machine, &workload(2, Mode::Train))
    }

    #[test]
    fn equal_devices_are_interchangeable() {
        let machine =
            MachineText { gpus: vec![(100, 20), (100, 20), (100, 10), (90, 20)], root: 20, sockets: vec![100, 100] };
        // A socket is distinguished by the GPUs that offload to it.
        assert_eq!(on(&machine, |costs| classes(costs, Coverage::Exact)), [0, 0, 2, 3, 4, 5]);
        let alone = Options { host_help: false, ..Options::default() };
        assert_eq!(with(&machine, &alone, |costs| classes(costs, Coverage::Exact)), [0, 0, 2, 3, 4, 4]);
    }

    #[test]
    fn sequences_of_eight_equal_gpus_and_a_socket_are_words() {
        let machine = MachineText { gpus: vec![(100, 20); 8], root: 20, sockets: vec![100] };
        let found = on(&machine, |costs| sequences(costs, 1000, None));
        // k GPUs alone for k = 1..8, and the socket at any of k + 1 places among k = 0..8.
        assert_eq!((found.list.len(), found.coverage), (8 + 45, Coverage::Exact));
    }

    #[test]
    fn too_many_sequences_leave_the_natural_ones() {
        let gpus = (0..8).map(|index| (100 + index, 20)).collect();
        let machine = MachineText { gpus, root: 20, sockets: vec![100] };
        let found = on(&machine, |costs| sequences(costs, 1000, None));
        assert_eq!(found.coverage, Coverage::Natural);
        assert!(found.list.contains(&vec![8, 0, 1, 2]) && found.list.contains(&(0..9).collect()));
    }

    #[test]
    fn devices_that_are_too_slow_for_any_layer_are_in_no_sequence() {
        let profile = "a100-80g-x8-nvlink";
        let (_, machine) = spipe_hardware::shipped().iter().find(|(name, _)| *name == profile).unwrap();
        let instance = of_layers((82, 0), machine);
        let costs = CostSums::new(instance.context(), &Options::default());
        // With sockets that compute there are too many, until they are known to be too slow.
        assert_eq!(sequences(&costs, 4000, None).coverage, Coverage::Natural);
        let found = within(&costs, (4000, 1.0), None);
        assert_ne!(found.coverage, Coverage::Natural);
        assert!(found.list.iter().flatten().all(|device| !costs.devices[*device].is_cpu));
    }
}
