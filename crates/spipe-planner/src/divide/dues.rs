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
//! or has on its way, is there at once. Whatever s, one of these bounds holds.

use super::SOCKETS;
use crate::{
    case::Case,
    figures::{DeviceFigures, Figures, Help, Seat},
};
use rayon::prelude::*;
use spipe_plan::Boundary;
use std::collections::BTreeMap;

/// Beyond so many layers nothing is due.
const MOST_LAYERS: usize = 400;

/// In how many steps it is told apart how many layers hosts step.
const LEVELS: usize = 12;

/// Intervals of s; the last one has no end.
const SIZES: [(usize, Option<usize>); 6] =
    [(1, Some(1)), (2, Some(2)), (3, Some(4)), (5, Some(8)), (9, Some(16)), (17, None)];

/// How many prices of each kind there are at most.
const PRICES: usize = 5;

/// Layers that save less than so much of what the median one does are not counted in s.
const LIGHT: f64 = 0.25;

/// What is due for some layers on a device, with some of them stepped by hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Due {
    /// In ms per microbatch.
    pub recompute: f64,
    /// In ms per iteration: steps on the device, and on hosts.
    pub own: f64,
    pub by_hosts: f64,
}

/// Steps of some layers, and what the others' state comes to.
#[derive(Clone, Copy)]
struct Level {
    own: f64,
    by_hosts: f64,
    state: u64,
}

/// Prices, and by size of stages the sums of what the first layers cost.
struct Priced {
    byte: f64,
    way: f64,
    sums: Vec<Vec<f64>>,
}

/// What is due on devices that are alike, with so many microbatches in flight.
pub(crate) struct OfSeat {
    layers: usize,
    microbatches: f64,
    /// The least input of a stage, in all copies.
    input: f64,
    /// What is free for layers `from..to` beside parameters and gradients, at `from × (layers + 1) + to`; none where they cannot be there.
    room: Vec<Option<u64>>,
    levels: Vec<Vec<Level>>,
    /// The least that each size holds in passing.
    passing: Vec<f64>,
    prices: Vec<Priced>,
}

/// What is due wherever a case has stages.
pub(crate) struct Dues {
    seats: BTreeMap<(usize, u64), OfSeat>,
    models: Vec<usize>,
}

impl Dues {
    /// For the seats of `cases`; none where there would be too many layers.
    pub fn new(figures: &Figures<'_>, cases: &[Case]) -> Option<Self> {
        if figures.layers > MOST_LAYERS {
            return None;
        }
        let key = |seat: &Seat| (figures.models[seat.device], seat.in_flight);
        let keys: std::collections::BTreeSet<(usize, u64)> =
            cases.iter().flat_map(|case| &case.seats).map(key).collect();
        let of_seat = |(device, in_flight): (usize, u64)| ((device, in_flight), OfSeat::new(figures, device, in_flight));
        Some(Self { seats: keys.into_par_iter().map(of_seat).collect(), models: figures.models.clone() })
    }

    pub fn at(&self, seat: Seat) -> Option<&OfSeat> {
        self.seats.get(&(self.models[seat.device], seat.in_flight))
    }
}

impl OfSeat {
    fn new(figures: &Figures<'_>, index: usize, in_flight: u64) -> Self {
        let (device, layers, m) = (&figures.devices[index], figures.layers, figures.microbatches as f64);
        let hosts = figures.hosts(index).count();
        let sockets = figures.devices.iter().filter(|device| device.is_cpu).count();
        let way = figures.hosts(index).map(|host| host.out + host.back).reduce(f64::min);
        let of = |layer: usize| Layer::new(figures, (index, if sockets > SOCKETS { 0 } else { hosts }), layer);
        let list: Vec<Layer> = (0..layers).map(of).collect();
        let copies = in_flight as f64;
        let input = (1..layers).map(|layer| device.input(layer)).min().unwrap_or(0) as f64 * copies;
        let mut saved: Vec<f64> = list.iter().map(|layer| layer.saved).filter(|saved| *saved > 0.0).collect();
        saved.sort_by(f64::total_cmp);
        let heavy = saved.get(saved.len() / 2).map_or(f64::INFINITY, |median| median * LIGHT);
        let least = saved.iter().copied().find(|saved| *saved >= heavy).unwrap_or(0.0);
        let most_input = (0..layers).map(|layer| device.input(layer)).max().unwrap_or(0) as f64;
        let passing = SIZES.iter().map(|(size, _)| (*size as f64 * least - most_input).max(0.0)).collect();
        let weighty = || list.iter().filter(|layer| layer.saved >= heavy && layer.forward > 0.0);
        let bytes = quantiles(weighty().map(|layer| m * layer.forward / (copies * layer.saved)));
        let ways = way.map(|way| quantiles(weighty().map(|layer| layer.forward / (layer.leaves * way))));
        let mut pairs = vec![(0.0, 0.0)];
        for byte in bytes {
            pairs.push((byte, 0.0));
            pairs.extend(ways.iter().flatten().filter(|way| way.is_finite()).map(|way| (byte, *way)));
        }
        let cost = |layer: &Layer, (byte, price): (f64, f64), most: Option<usize>| {
            let kept = byte * copies * layer.saved;
            let beside = match most {
                Some(most) if layer.saved >= heavy => byte * input / most as f64,
                _ => 0.0,
            };
            let leaves = way.map_or(f64::INFINITY, |way| price * m * way * layer.leaves + beside);
            kept.min(m * layer.forward + beside).min(leaves)
        };
        let priced = |(byte, price): (f64, f64)| {
            let sums = |(_, most): &(usize, Option<usize>)| {
                let mut sums = vec![0.0];
                for layer in &list {
                    sums.push(sums[sums.len() - 1] + cost(layer, (byte, price), *most));
                }
                sums
            };
            Priced { byte, way: price, sums: SIZES.iter().map(sums).collect() }
        };
        let ranges = || (0..=layers).flat_map(|from| (0..=layers).map(move |to| (from, to)));
        Self {
            layers,
            microbatches: m,
            input,
            room: ranges().map(|range| room(device, (index, hosts > 0, layers), range)).collect(),
            levels: (0..=layers).flat_map(|from| levels(&list, from, hosts > 0)).collect(),
            passing,
            prices: pairs.into_iter().map(priced).collect(),
        }
    }

    /// What is due for layers `from..to` in an iteration of at most `limit` ms: whatever is chosen for them, one of these is no more.
    pub fn each(&self, (from, to): (usize, usize), limit: f64, mut take: impl FnMut(Due)) {
        let index = from * (self.layers + 1) + to;
        let Some(room) = self.room[index] else { return };
        let mut least = f64::INFINITY;
        for level in &self.levels[index] {
            let Some(room) = room.checked_sub(level.state) else { continue };
            let Some(recompute) = self.recompute((from, to), room as f64, limit) else { continue };
            // Whoever steps more on hosts recomputes less.
            if recompute < least {
                least = recompute;
                take(Due { recompute, own: level.own, by_hosts: level.by_hosts });
            }
            if recompute <= 0.0 {
                return;
            }
        }
    }

    /// The least recompute per microbatch, in ms, if so many bytes are free; none where what stages need in passing is more.
    fn recompute(&self, (from, to): (usize, usize), room: f64, limit: f64) -> Option<f64> {
        let mut least: Option<f64> = None;
        for (size, passing) in self.passing.iter().enumerate() {
            // A stage that begins with the first layer has another input.
            let credit = if from == 0 { self.input } else { 0.0 };
            if *passing > room {
                break;
            }
            let free = room - passing + credit;
            let of_prices = |priced: &Priced| {
                priced.sums[size][to] - priced.sums[size][from] - priced.byte * free - priced.way * limit
            };
            let bound = self.prices.iter().map(of_prices).fold(0.0, f64::max);
            least = Some(least.map_or(bound, |least| least.min(bound)));
        }
        least.map(|least| least / self.microbatches)
    }
}

/// What matters of a layer.
struct Layer {
    forward: f64,
    /// Bytes, and what of them leaves at least.
    saved: f64,
    leaves: f64,
    optimizer: u64,
    own: f64,
    by_host: f64,
}

impl Layer {
    fn new(figures: &Figures<'_>, (index, hosts): (usize, usize), layer: usize) -> Self {
        let device = &figures.devices[index];
        let times = device.times[layer].unwrap_or_default();
        let saved = device.bytes[layer].saved.get();
        let step = |host: usize| {
            let help = Help { optimizer: true, activations: false, host };
            device.stage_times((layer, layer + 1), 0, help).step
        };
        Self {
            forward: times.forward,
            saved: saved as f64,
            leaves: saved.saturating_sub(device.input(layer)) as f64,
            optimizer: device.bytes[layer].optimizer.get(),
            own: times.optimizer,
            by_host: (0..hosts).map(step).reduce(f64::min).unwrap_or(0.0),
        }
    }
}

/// What layers `from..to` leave free but for optimizer state and what they save.
fn room(device: &DeviceFigures, (index, helped, layers): (usize, bool, usize), (from, to): (usize, usize)) -> Option<u64> {
    if from >= to || !device.able(from, to) {
        return None;
    }
    let help = if helped { Help::STEP } else { Help::NONE };
    let seat =
        Seat { in_flight: 0, first: from == 0, last: to == layers, help: Some(help), ..Seat::alone(index) };
    let outer = |end: bool| if end { Boundary::End } else { Boundary::Across };
    let (stays, transient) = device.parts(seat, (from, to), 0, [outer(seat.first), outer(seat.last)]);
    device.usable.checked_sub(stays + transient + device.shared(seat))
}

/// By the end of the layers from `from` on, with all of them stepped on the device first.
fn levels(list: &[Layer], from: usize, helped: bool) -> Vec<Vec<Level>> {
    let mut all: Vec<Vec<Level>> = vec![Vec::new(); list.len() + 1];
    let (mut states, mut owns, mut by_hosts): (Vec<u64>, Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new(), Vec::new());
    for to in from + 1..=list.len() {
        let layer = &list[to - 1];
        if layer.optimizer > 0 {
            states.insert(states.partition_point(|other| *other < layer.optimizer), layer.optimizer);
            owns.insert(owns.partition_point(|other| *other < layer.own), layer.own);
            by_hosts.insert(by_hosts.partition_point(|other| *other < layer.by_host), layer.by_host);
        }
        let count = states.len();
        if !helped {
            // Their state is counted with their parameters.
            all[to].push(Level { own: owns.iter().sum(), by_hosts: 0.0, state: 0 });
            continue;
        }
        let step = (count + 1).div_ceil(LEVELS);
        for first in (0..=count).step_by(step) {
            // From so many on, up to those before the next step.
            let last = (first + step - 1).min(count);
            all[to].push(Level {
                own: owns[..count - last].iter().sum(),
                by_hosts: by_hosts[..first].iter().sum(),
                state: states[..count - last].iter().sum(),
            });
        }
    }
    all
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
