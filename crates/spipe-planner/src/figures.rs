//! The cost table laid out for search: sums over any range of layers in constant time.

mod coarse;
mod device;
mod stage;

pub(crate) use device::{DeviceFigures, Host, alike};
pub(crate) use stage::{Help, MOST_HOSTS, Seat, StageTimes, slots_in, slots_out};

use crate::{Options, deadline::Deadline};
use spipe_base::{DeviceId, LayerId, LinkId};
use spipe_cost::{CostTable, Mode};
use spipe_plan::{Context, Knob, boundaries_in_passing};
use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

/// A copy from one device's memory to another's, when nothing else moves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hop {
    /// In ms.
    pub latency: f64,
    /// In ms per byte over its slowest link.
    pub per_byte: f64,
    /// What it passes, each with its ms per byte.
    pub links: Vec<(LinkId, f64)>,
}

impl Hop {
    /// Within one memory nothing needs to move.
    const NONE: Self = Self { latency: 0.0, per_byte: 0.0, links: Vec::new() };

    /// How long `bytes` take, in ms.
    pub fn time(&self, bytes: u64) -> f64 {
        self.latency + self.per_byte * bytes as f64
    }
}

/// Everything that the search needs to know.
pub(crate) struct Figures<'a> {
    pub context: Context<'a>,
    /// How many layers there are, or groups of them.
    pub layers: usize,
    /// The first layer of the model of each of them, and behind the last.
    pub borders: Vec<usize>,
    pub microbatches: u64,
    pub training: bool,
    /// Whether the host may help stages on GPUs.
    pub host_help: bool,
    /// Whether sockets step first what the next iteration needs first, whatever else is chosen.
    pub urgent: bool,
    /// Whether steps are a phase of their own, whatever else is chosen.
    pub phased: bool,
    /// By device.
    pub devices: Vec<DeviceFigures>,
    /// The first device that is like each device, wherever they are.
    pub models: Vec<usize>,
    /// How many of the first layers no gradient reaches, in training.
    pub frozen: usize,
    /// By device from and device to; none where they are not connected both ways.
    hops: Vec<Vec<Option<Hop>>>,
    /// Consecutive layers that cost the same: first layer and count.
    pub runs: Vec<(usize, usize)>,
    /// How long a program may take that bounds iterations.
    pub program_time: Duration,
}

/// Which part of the time limit a program may take that bounds iterations, and how much it may take at least and at most.
const PROGRAMS: u32 = 20;
const PROGRAM_TIMES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(10);

/// Programs of so many runs of layers take next to no time.
const FEW_RUNS: usize = 32;

/// Runs of layers that cost the same, and are the same in other ways: the first, and how many there are.
pub(crate) fn runs(cost: &CostTable, same: &dyn Fn(usize, usize) -> bool) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for layer in cost.layers() {
        match runs.last_mut() {
            Some((first, count))
                if cost.kind(LayerId::from(*first)) == cost.kind(layer) && same(*first, layer.index()) =>
            {
                *count += 1;
            }
            _ => runs.push((layer.index(), 1)),
        }
    }
    runs
}

impl<'a> Figures<'a> {
    /// Whether there is no time for another program that bounds iterations, unless it takes next to none.
    pub fn late(&self, deadline: Option<&Deadline<'_>>) -> bool {
        self.runs.len() > FEW_RUNS && deadline.is_some_and(Deadline::over)
    }

    /// How many boundaries pass between stages of one of so many devices at once, where they run in rounds.
    pub fn boundaries_in_passing(&self, devices: usize) -> u64 {
        boundaries_in_passing(&self.context, devices).unwrap_or(3 * self.microbatches)
    }

    /// The costs of `context`, as far as `options` leave a choice.
    pub fn new(context: Context<'a>, options: &Options) -> Self {
        Self::of(context, options, &|device| DeviceFigures::new(&context, device, &options.pins))
    }

    /// The same where nothing is stepped, saved or recomputed: whatever several stages on a device choose for their layers, one with these
    /// layers takes no longer here and needs no more.
    pub fn ideal(&self, options: &Options) -> Self {
        let device = |device| DeviceFigures::ideal(&self.context, device, &options.pins, options.host_help);
        // What hosts could do is left out, and still tells devices apart.
        Self { host_help: false, models: self.models.clone(), ..Self::of(self.context, options, &device) }
    }

    /// The same with the best way between devices that are like each two as the way between these: none takes longer, and devices that are
    /// alike are so wherever they are.
    pub fn blurred(self) -> Self {
        let mut best: BTreeMap<(usize, usize), Hop> = BTreeMap::new();
        let like = |from: usize, to: usize| (self.models[from], self.models[to]);
        for (from, hops) in self.hops.iter().enumerate() {
            for (to, hop) in hops.iter().enumerate().filter(|(to, _)| *to != from) {
                let Some(hop) = hop else { continue };
                let known = best.entry(like(from, to)).or_insert_with(|| Hop { links: Vec::new(), ..hop.clone() });
                (known.latency, known.per_byte) = (known.latency.min(hop.latency), known.per_byte.min(hop.per_byte));
            }
        }
        let of_pair = |from: usize, (to, hop): (usize, &Option<Hop>)| {
            if from == to { hop.clone() } else { best.get(&like(from, to)).cloned() }
        };
        let of_device =
            |(from, hops): (usize, &Vec<Option<Hop>>)| hops.iter().enumerate().map(|hop| of_pair(from, hop)).collect();
        let hops = self.hops.iter().enumerate().map(of_device).collect();
        Self { hops, ..self }
    }

    fn of(context: Context<'a>, options: &Options, device: &dyn Fn(DeviceId) -> DeviceFigures) -> Self {
        let (cost, pins) = (context.cost, &options.pins);
        let runs = runs(cost, &|one, other| pins.same(one, other));
        let training = context.workload().mode == Mode::Train;
        let devices: Vec<DeviceFigures> = cost.devices().map(device).collect();
        let frozen = cost.layers().take_while(|layer| training && !cost.needs_backward(*layer)).count();
        Self {
            context,
            layers: cost.layers().len(),
            borders: (0..=cost.layers().len()).collect(),
            microbatches: context.workload().microbatches,
            training,
            program_time: (options.time_limit / PROGRAMS).clamp(*PROGRAM_TIMES.start(), *PROGRAM_TIMES.end()),
            models: models(&devices),
            frozen,
            devices,
            host_help: options.host_help,
            urgent: pins.knob(Knob::UrgentSteps) == Some(1),
            phased: pins.knob(Knob::SynchronousOptimizer) == Some(1),
            hops: cost.devices().map(|from| cost.devices().map(|to| hop(&context, from, to)).collect()).collect(),
            runs,
        }
    }

    /// What the host can do for a stage on a device, nothing first.
    pub fn helps(&self, device: usize) -> &'static [Help] {
        Help::of(self.hosts(device).count())
    }

    /// The same, whoever does it.
    pub fn kinds_of_help(&self, device: usize) -> &'static [Help] {
        Help::of(self.hosts(device).count().min(1))
    }

    /// Who may help a stage on a device, the nearest first.
    pub fn hosts(&self, device: usize) -> impl Iterator<Item = Host> {
        let helps = self.host_help && self.training;
        self.devices[device].hosts().take(if helps { MOST_HOSTS } else { 0 })
    }

    /// The copy between two devices, if they are connected both ways.
    pub fn hop(&self, from: usize, to: usize) -> Option<&Hop> {
        self.hops[from][to].as_ref()
    }

    /// How long activations and gradients take from one device to another if a boundary is before layer `end`.
    pub fn transfers(&self, (from, to): (usize, usize), end: usize) -> (f64, f64) {
        let bytes = self.crossing(end - 1, from, to);
        match (self.hop(from, to), self.hop(to, from)) {
            (Some(there), Some(back)) => (there.time(bytes), if self.training { back.time(bytes) } else { 0.0 }),
            _ => (f64::INFINITY, f64::INFINITY),
        }
    }

    /// Bytes that cross from one device to another behind layer `layer`: its boundary in the narrower of the two devices'
    /// precisions.
    pub fn crossing(&self, layer: usize, from: usize, to: usize) -> u64 {
        self.devices[from].bytes[layer].boundary.min(self.devices[to].bytes[layer].boundary).get()
    }
}

fn hop(context: &Context<'_>, from: DeviceId, to: DeviceId) -> Option<Hop> {
    let memory = |device: DeviceId| context.hardware.devices()[device].memory;
    if memory(from) == memory(to) {
        return Some(Hop::NONE);
    }
    context.hardware.route(memory(to), memory(from))?;
    let route = context.hardware.route(memory(from), memory(to))?;
    let per_byte = |link: LinkId| 1e3 / context.hardware.links()[link].bandwidth.get();
    let links: Vec<(LinkId, f64)> = route.links.iter().map(|link| (*link, per_byte(*link))).collect();
    let slowest = links.iter().fold(0.0, |most: f64, (_, per_byte)| most.max(*per_byte));
    let capped = route.rate_cap.map_or(0.0, |rate| 1e3 / rate.get());
    Some(Hop { latency: route.latency.to_ms(), per_byte: slowest.max(capped), links })
}

/// The first device that computes and holds like each device.
fn models(devices: &[DeviceFigures]) -> Vec<usize> {
    let first = |device: usize| (0..device).find(|other| alike(&devices[*other], &devices[device]));
    (0..devices.len()).map(|device| first(device).unwrap_or(device)).collect()
}
