//! What the layers of a device cost at least beside their passes, because its memory does not hold all that they would keep.
//!
//! Of n layers with parameters c are stepped by hosts: the state of those on the device comes to no less than that of the n − c smallest.
//! What is left of its memory, A, is for what layers save, K copies of each, unless they recompute it or leave it to the host: with w for
//! the way there and back, in ms per byte, of which no more than an iteration T is taken, and with any prices λ of a byte and μ of
//! a ms on that way,
//!
//! ```text
//! m R ≥ Σ min(λ K saved, m F + λ K input ÷ s, μ m w (saved − input) + λ K input ÷ s) − λ (A − s saved + input) − μ T
//! ```
//!
//! if none of its stages has more than s layers that save nothing there: each of them keeps its input, and what one of them computes again,
//! or has on its way, is there at once with its workspace. Whatever s, one of these bounds holds. What stages hold in passing is that of one
//! of them: of s saved − input and the largest workspace only the larger one counts.

mod host_step_frontier;
mod host_step_window;

use crate::bounds::partition_dp::memory_pressure::host_step_frontier::{Level, levels};
use crate::bounds::partition_dp::memory_pressure::host_step_window::Ends;
use crate::{
    costs::{CostSums, DeviceSums, HostOffload, StageSlot, StageTimes},
    space::subproblem::Subproblem,
};
use rayon::prelude::*;
use spipe_plan::Boundary;
use std::collections::{BTreeMap, BTreeSet};

/// Beyond so many layers nothing is due.
const MOST_LAYERS: usize = 400;

/// The part of an iteration by which steps on a device are told apart.
const LITTLE: f64 = 1e-3;

/// Intervals of s; the last one has no end.
const SIZES: [(usize, Option<usize>); 7] =
    [(0, Some(0)), (1, Some(1)), (2, Some(2)), (3, Some(4)), (5, Some(8)), (9, Some(16)), (17, None)];

/// How many prices of each kind there are at most, beside none.
const PRICES: usize = 16;

/// Layers that save less than so much of what the median one does are not counted in s.
const LIGHT: f64 = 0.25;

/// What is due for some layers on a device, with some of them stepped by hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Due {
    /// In ms per microbatch.
    pub recompute: f64,
    /// Steps on the device, in ms per iteration.
    pub own: f64,
    pub by_hosts: OnHosts,
}

/// What hosts step: how many layers at least, all of it in ms, and the shortest step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OnHosts {
    pub layers: usize,
    pub all: f64,
    pub least: f64,
}

impl OnHosts {
    pub const NONE: Self = Self { layers: 0, all: 0.0, least: 0.0 };
}

/// Which prices, of a byte and of a ms on the way.
type Prices = (usize, usize);

/// What layers leave of their device's memory beside parameters, gradients and their largest workspace.
#[derive(Clone, Copy)]
struct Room {
    free: u64,
    workspace: u64,
}

/// What the layers of devices that are alike step, whatever is in flight.
struct Steps {
    /// For layers `from..to`, at `from × (layers + 1) + to`; none where they cannot be there.
    room: Vec<Option<Room>>,
    levels: Vec<Vec<Level>>,
    ends: Ends,
}

/// What they recompute with so many microbatches in flight.
struct Recomputes {
    microbatches: f64,
    /// The least input of a stage, in all copies.
    input: f64,
    /// The least that each size holds in passing, its workspace included.
    passing: Vec<f64>,
    /// Of a byte, and of a ms on the way there and back, each from nothing on.
    bytes: Vec<f64>,
    ways: Vec<f64>,
    /// By size and layer, what all layers before it cost at each price of a byte, and for that of a ms on the way.
    sums: Vec<Vec<Vec<f64>>>,
}

/// What is due wherever a case has stages.
pub(crate) struct Dues {
    layers: usize,
    models: Vec<usize>,
    /// By the first device that is like it, and by microbatches in flight as well.
    steps: BTreeMap<usize, Steps>,
    recomputes: BTreeMap<(usize, u64), Recomputes>,
    /// For which part of an iteration activations are on their way at most.
    pub ways: f64,
}

/// What is due at one seat.
#[derive(Clone, Copy)]
pub(crate) struct AtSeat<'d> {
    layers: usize,
    steps: &'d Steps,
    recomputes: &'d Recomputes,
    ways: f64,
}

impl Dues {
    /// For the seats of `cases`; none where there would be too many layers.
    pub fn new(costs: &CostSums<'_>, cases: &[Subproblem]) -> Option<Self> {
        if costs.layers > MOST_LAYERS {
            return None;
        }
        let key = |seat: &StageSlot| (costs.models[seat.device], seat.in_flight);
        let keys: BTreeSet<(usize, u64)> = cases.iter().flat_map(|case| &case.seats).map(key).collect();
        let devices: BTreeSet<usize> = keys.iter().map(|(device, _)| *device).collect();
        let layers = |device: usize| (0..costs.layers).map(|layer| Layer::new(costs, device, layer)).collect();
        let lists: BTreeMap<usize, Vec<Layer>> = devices.into_iter().map(|device| (device, layers(device))).collect();
        let steps = |(device, list): (&usize, &Vec<Layer>)| (*device, Steps::new(costs, (*device, list), &lists));
        let recomputes = |(device, in_flight): (usize, u64)| {
            ((device, in_flight), Recomputes::new(costs, (device, &lists[&device]), in_flight))
        };
        Some(Self {
            layers: costs.layers,
            models: costs.models.clone(),
            steps: lists.par_iter().map(steps).collect(),
            recomputes: keys.into_par_iter().map(recomputes).collect(),
            ways: 1.0,
        })
    }

    /// At one of the seats for which it is known.
    pub fn at(&self, seat: StageSlot) -> Option<AtSeat<'_>> {
        let device = self.models[seat.device];
        let (steps, recomputes) = (self.steps.get(&device)?, self.recomputes.get(&(device, seat.in_flight))?);
        Some(AtSeat { layers: self.layers, steps, recomputes, ways: self.ways })
    }
}

impl AtSeat<'_> {
    /// What is due for layers `from..to` in an iteration of at most `limit` ms of which hosts step for no more than `hosted` ms: whatever is
    /// chosen for them, one of these is no more.
    pub fn each(&self, (from, to): (usize, usize), (limit, hosted): (f64, f64), mut take: impl FnMut(Due)) {
        let index = from * (self.layers + 1) + to;
        let Some(room) = self.steps.room[index] else { return };
        let levels = &self.steps.levels[index];
        let mut levels = levels[..levels.partition_point(|level| level.by_hosts.all <= hosted)].iter();
        // Prices that are best for one level are nearly so for the next.
        let mut prices = self.recomputes.middle();
        for level in levels.by_ref() {
            let Some(free) = room.free.checked_sub(level.state) else { continue };
            let least = self.recomputes.least((from, to), (Room { free, ..room }, self.ways * limit), &mut prices);
            let Some(recompute) = least else { continue };
            take(Due { recompute, own: level.own, by_hosts: level.by_hosts });
            if recompute <= 0.0 {
                break;
            }
        }
        // Where nothing need be recomputed more steps on hosts are fewer on the device. Levels that differ by little become one.
        let mut levels = levels.peekable();
        while let Some(level) = levels.next() {
            let (mut by_hosts, mut own) = (level.by_hosts, level.own);
            while let Some(next) = levels.next_if(|next| level.own - next.own <= limit * LITTLE) {
                own = own.min(next.own);
                by_hosts.layers = by_hosts.layers.min(next.by_hosts.layers);
                by_hosts.least = by_hosts.least.min(next.by_hosts.least);
            }
            take(Due { recompute: 0.0, own, by_hosts });
        }
    }

    /// What one socket waits for at least before and behind what it steps of layers `from..to`, and every other one, in ms: see [`Ends`].
    pub fn ends(&self, layers: (usize, usize), for_all: bool) -> [f64; 2] {
        self.steps.ends.least(layers, for_all)
    }
}

impl Steps {
    fn new(costs: &CostSums<'_>, (index, list): (usize, &Vec<Layer>), lists: &BTreeMap<usize, Vec<Layer>>) -> Self {
        let (device, layers, helped) = (&costs.devices[index], costs.layers, costs.hosts(index).next().is_some());
        let ranges = (0..=layers).flat_map(|from| (0..=layers).map(move |to| (from, to)));
        Self {
            room: ranges.map(|range| room(device, (index, helped, layers), range)).collect(),
            levels: (0..=layers).flat_map(|from| levels(list, from, helped)).collect(),
            ends: Ends::new(list, lists),
        }
    }
}

impl Recomputes {
    fn new(costs: &CostSums<'_>, (index, list): (usize, &[Layer]), in_flight: u64) -> Self {
        let (device, m, copies) = (&costs.devices[index], costs.microbatches as f64, in_flight as f64);
        let way = costs.hosts(index).map(|host| host.out + host.back).reduce(f64::min);
        let inputs = || (0..list.len()).map(|layer| device.input(layer) as f64);
        let input = copies * inputs().skip(1).reduce(f64::min).unwrap_or(0.0);
        let mut saved: Vec<f64> = list.iter().map(|layer| layer.saved).filter(|saved| *saved > 0.0).collect();
        saved.sort_by(f64::total_cmp);
        let heavy = saved.get(saved.len() / 2).map_or(f64::INFINITY, |median| median * LIGHT);
        let least = saved.iter().copied().find(|saved| *saved >= heavy).unwrap_or(0.0);
        let most_input = inputs().fold(0.0, f64::max);
        let workspace = device.bytes.iter().map(|bytes| bytes.workspace.as_f64()).reduce(f64::min).unwrap_or(0.0);
        let weighty = || list.iter().filter(|layer| layer.saved >= heavy);
        let none = || std::iter::once(0.0);
        let bytes = quantiles(weighty().map(|layer| m * layer.forward / (copies * layer.saved)));
        let ways = way.map(|way| quantiles(weighty().map(|layer| layer.forward / (layer.leaves * way))));
        let bytes: Vec<f64> = none().chain(bytes).collect();
        let ways: Vec<f64> = none().chain(ways.into_iter().flatten()).collect();
        let cost = |layer: &Layer, (byte, price): (f64, f64), most: Option<usize>| {
            let kept = byte * copies * layer.saved;
            let beside = match most {
                Some(0) if layer.saved >= heavy => f64::INFINITY,
                Some(most) if layer.saved >= heavy => byte * input / most as f64,
                _ => 0.0,
            };
            let leaves = way.map_or(f64::INFINITY, |way| price * m * way * layer.leaves + beside);
            kept.min(m * layer.forward + beside).min(leaves)
        };
        let of_size = |(_, most): &(usize, Option<usize>)| {
            let mut sums = vec![vec![0.0; bytes.len() * ways.len()]];
            for layer in list {
                let prices = bytes.iter().flat_map(|byte| ways.iter().map(move |way| (*byte, *way)));
                let add = |(sum, prices): (&f64, (f64, f64))| sum + cost(layer, prices, *most);
                let next = sums[sums.len() - 1].iter().zip(prices).map(add).collect();
                sums.push(next);
            }
            sums
        };
        Self {
            microbatches: m,
            input,
            passing: SIZES.iter().map(|(size, _)| workspace + (*size as f64 * least - most_input).max(0.0)).collect(),
            sums: SIZES.iter().map(of_size).collect(),
            bytes,
            ways,
        }
    }

    /// Prices to begin with.
    const fn middle(&self) -> Prices {
        (self.bytes.len() / 2, self.ways.len() / 2)
    }

    /// The least per microbatch, in ms, with so much room and activations on their way for no more than so many ms, as far as prices near
    /// some say; none where what stages need in passing is more.
    fn least(&self, range: (usize, usize), (room, ways): (Room, f64), prices: &mut Prices) -> Option<f64> {
        // A stage that begins with the first layer has another input.
        let credit = if range.0 == 0 { self.input } else { 0.0 };
        let (room, workspace) = (room.free as f64, room.workspace as f64);
        let passing = |(size, passing): (usize, &f64)| (size, (passing - workspace).max(0.0));
        let sizes = self.passing.iter().enumerate().map(passing).take_while(|(_, passing)| *passing <= room);
        let of_size =
            |(size, passing): (usize, f64)| self.climb((size, range), (room - passing + credit, ways), prices);
        sizes.map(of_size).reduce(f64::min).map(|least| least / self.microbatches)
    }

    /// The most that prices say, in ms, from some prices on, which become those: what they say has one summit.
    fn climb(&self, (size, (from, to)): (usize, (usize, usize)), (free, ways): (f64, f64), prices: &mut Prices) -> f64 {
        let (before, sums) = (&self.sums[size][from], &self.sums[size][to]);
        let of = |(byte, way): Prices| {
            let at = byte * self.ways.len() + way;
            sums[at] - before[at] - self.bytes[byte] * free - self.ways[way] * ways
        };
        let mut most = of(*prices);
        loop {
            let (byte, way) = *prices;
            let near = |at: usize, count: usize| at.saturating_sub(1)..=(at + 1).min(count - 1);
            let around =
                near(byte, self.bytes.len()).flat_map(|byte| near(way, self.ways.len()).map(move |way| (byte, way)));
            let next = around.map(|prices| (of(prices), prices)).max_by(|(one, _), (other, _)| one.total_cmp(other));
            match next.filter(|(more, _)| *more > most) {
                Some((more, next)) => (most, *prices) = (more, next),
                None => return most.max(0.0),
            }
        }
    }
}

/// What matters of a layer.
#[derive(Debug)]
struct Layer {
    forward: f64,
    backward: f64,
    /// Bytes, and what of them leaves at least.
    saved: f64,
    leaves: f64,
    optimizer: u64,
    own: f64,
    by_host: f64,
    /// The shortest ways of gradients to hosts and of parameters back, in ms.
    ways: [f64; 2],
}

impl Layer {
    fn new(costs: &CostSums<'_>, index: usize, layer: usize) -> Self {
        let device = &costs.devices[index];
        let times = device.times[layer].unwrap_or_default();
        let saved = device.bytes[layer].saved.get();
        let by = |host: usize| {
            let host_offload = HostOffload { optimizer: true, activations: false, host };
            device.stage_times((layer, layer + 1), 0, host_offload)
        };
        let by_hosts: Vec<StageTimes> = (0..costs.hosts(index).count()).map(by).collect();
        let least = |of: fn(&StageTimes) -> f64| by_hosts.iter().map(of).reduce(f64::min);
        Self {
            forward: times.forward,
            backward: times.backward,
            saved: saved as f64,
            leaves: saved.saturating_sub(device.input(layer)) as f64,
            optimizer: device.bytes[layer].optimizer.get(),
            own: times.optimizer,
            by_host: least(|times| times.step).unwrap_or(0.0),
            ways: [least(|times| times.out), least(|times| times.back)].map(|way| way.unwrap_or(f64::INFINITY)),
        }
    }
}

/// What layers `from..to` leave free but for optimizer state and what they save.
fn room(
    device: &DeviceSums,
    (index, helped, layers): (usize, bool, usize),
    (from, to): (usize, usize),
) -> Option<Room> {
    if from >= to || !device.able(from, to) {
        return None;
    }
    let host_offload = if helped { HostOffload::STEP } else { HostOffload::NONE };
    let seat = StageSlot {
        in_flight: 0,
        first: from == 0,
        last: to == layers,
        host_offload: Some(host_offload),
        ..StageSlot::alone(index)
    };
    let outer = |end: bool| if end { Boundary::End } else { Boundary::Across };
    let (stays, transient) = device.parts(seat, (from, to), 0, [outer(seat.first), outer(seat.last)]);
    let free = device.usable.checked_sub(stays + transient + device.shared(seat))?;
    Some(Room { free, workspace: device.workspace(from, to) })
}

/// The sums of the first 0, 1, 2, … of `values`.
fn sums<T: Copy + Default + std::ops::Add<Output = T>>(values: impl Iterator<Item = T>) -> Vec<T> {
    let add = |sum: &mut T, value: T| {
        *sum = *sum + value;
        Some(*sum)
    };
    std::iter::once(T::default()).chain(values.scan(T::default(), add)).collect()
}

/// At most [`PRICES`] of `values`.
fn quantiles(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
    values.sort_by(f64::total_cmp);
    values.dedup_by(|one, other| *one <= *other * (1.0 + 1e-6));
    if values.len() <= PRICES {
        return values;
    }
    (0..PRICES).map(|part| values[part * (values.len() - 1) / (PRICES - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        common::{Instance, LayerText, MachineText, layer, machine_text, model_text, workload},
        problem::Options,
        runner::for_all,
        space::subproblem::ScheduleKind,
    };
    use proptest::prelude::*;
    use spipe_cost::Mode;
    use spipe_plan::{Placement, Stage, System, check};
    use std::cell::Cell;

    /// The recompute and the updates of the stages on one device, and the time of their copies from and to the host, in ms.
    fn chosen(costs: &CostSums<'_>, stages: &[&Stage]) -> (Due, f64) {
        let (mut due, mut way) = (Due { recompute: 0.0, own: 0.0, by_hosts: OnHosts::NONE }, 0.0);
        for stage in stages {
            let device = &costs.devices[stage.device.index()];
            let layers = (stage.layers.first().index(), stage.layers.last().index() + 1);
            let optimizer = stage.optimizer.is_some();
            let host_offload = HostOffload { optimizer, activations: stage.offload.is_some(), host: 0 };
            let times = device.stage_times(layers, stage.recomputed, host_offload);
            due.recompute += times.recompute;
            due.own += times.optimizer;
            due.by_hosts.all += times.step;
            let trained = |layer: &spipe_base::LayerId| device.bytes[layer.index()].optimizer.get() > 0;
            due.by_hosts.layers += if optimizer { stage.layers.iter().filter(trained).count() } else { 0 };
            let moved = if host_offload.activations {
                device.leaving(layers, stage.recomputed) * costs.microbatches
            } else {
                0
            };
            way += device.host(host_offload).map_or(0.0, |host| moved as f64 * (host.out + host.back));
        }
        (due, way)
    }

    /// Whether one of the bounds for each GPU in `placement` is at most the work of its stages, and whether it is at least half of it.
    fn covered(costs: &CostSums<'_>, dues: &Dues, case: &Subproblem, placement: &Placement) -> (bool, bool) {
        let (mut covered, mut close) = (true, false);
        for seat in case.seats.iter().filter(|seat| !costs.devices[seat.device].is_cpu) {
            let stages: Vec<&Stage> =
                placement.stages.iter().filter(|stage| stage.device.index() == seat.device).collect();
            let [first, .., last] = [&stages[..1], &stages[..], &stages[stages.len() - 1..]];
            let layers = (first[0].layers.first().index(), last[0].layers.last().index() + 1);
            let (chosen, way) = chosen(costs, &stages);
            let mut found = false;
            dues.at(*seat).into_iter().for_each(|dues| {
                dues.each(layers, (way, f64::INFINITY), |due| {
                    let no_more = |due: f64, chosen: f64| due <= chosen * (1.0 + 1e-9) + 1e-9;
                    found |= no_more(due.recompute, chosen.recompute)
                        && no_more(due.own, chosen.own)
                        && no_more(due.by_hosts.all, chosen.by_hosts.all)
                        && due.by_hosts.layers <= chosen.by_hosts.layers;
                    let much = |due: f64, chosen: f64| due > 0.0 && due >= 0.5 * chosen;
                    close |= much(due.recompute, chosen.recompute) || much(due.by_hosts.all, chosen.by_hosts.all);
                });
            });
            covered &= found;
        }
        (covered, close)
    }

    /// Layers of large parameters on one or two GPUs beside a socket.
    fn crowded() -> impl Strategy<Value = Instance> {
        let layers = prop::collection::vec(layer(2), 1..=3);
        (layers, (100u64..500, 2u32..30), 1usize..=2, 1u64..5).prop_map(|(layers, gpu, gpus, microbatches)| {
            let mut left = if gpus == 1 { 4 } else { 3 };
            let few = |layer: LayerText| {
                let count = layer.count.min(left);
                left -= count;
                (count > 0).then_some(LayerText { count, parameters: 3 * layer.parameters, ..layer })
            };
            let layers: Vec<LayerText> = layers.into_iter().map_while(few).collect();
            let machine = MachineText { gpus: vec![gpu; gpus], root: 20, sockets: vec![3000] };
            Instance::new(&model_text(&layers), &machine_text(&machine), &workload(microbatches, Mode::Train))
        })
    }

    #[test]
    fn no_stages_of_a_device_do_less_than_their_bound() {
        let seen = Cell::new((0, 0));
        for_all(60, &crowded(), |instance| {
            let context = instance.context();
            let costs = CostSums::new(context, &Options::default());
            for system in [System::Gpipe, System::OneForwardOneBackward] {
                let mut known: BTreeMap<Vec<usize>, (Subproblem, Dues)> = BTreeMap::new();
                for placement in crate::every(context, system, 60_000).into_iter().flatten() {
                    if check(&context, &placement).is_err() {
                        continue;
                    }
                    let devices: Vec<usize> = placement.devices().iter().map(|device| device.index()).collect();
                    let (case, dues) = known.entry(devices).or_insert_with_key(|devices| {
                        let case = Subproblem::new(&costs, devices, ScheduleKind { system, head_start: 0 });
                        let dues = Dues::new(&costs, std::slice::from_ref(&case));
                        (case, dues.unwrap_or_else(|| unreachable!("there are few layers")))
                    });
                    let (covered, close) = covered(&costs, dues, case, &placement);
                    prop_assert!(covered, "{:?}", placement);
                    seen.set((seen.get().0 + 1, seen.get().1 + u32::from(close)));
                }
            }
            Ok(())
        });
        let (all, close) = seen.get();
        assert!(all > 10_000 && close > all / 20, "{close} of {all}");
    }
}
