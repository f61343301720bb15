//! The cost table laid out for search: sums over any range of layers in constant time.

mod device;
mod grouped;
mod stage;

pub(crate) use crate::costs::device::{DeviceSums, Host, alike};
pub(crate) use crate::{
    costs::stage::{HostOffload, StageSlot, StageTimes, slots_in, slots_out},
    hosts::MOST_HOSTS,
};

use crate::problem::{Deadline, Options};
use spipe_base::{DeviceId, LayerId, LinkId};
use spipe_cost::{CostTable, Mode};
use spipe_plan::{Context, Knob, transient_boundaries};
use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

/// A copy from one device's memory to another's, when nothing else moves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct P2pCost {
    /// In ms.
    pub latency: f64,
    /// In ms per byte over its slowest link.
    pub per_byte: f64,
    /// What it passes, each with its ms per byte.
    pub links: Vec<(LinkId, f64)>,
}

impl P2pCost {
    /// Within one memory nothing needs to move.
    const NONE: Self = Self { latency: 0.0, per_byte: 0.0, links: Vec::new() };

    /// How long `bytes` take, in ms.
    pub fn time(&self, bytes: u64) -> f64 {
        self.latency + self.per_byte * bytes as f64
    }
}

/// Everything that the search needs to know.
pub(crate) struct CostSums<'a> {
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
    pub devices: Vec<DeviceSums>,
    /// The first device that is like each device, wherever they are.
    pub models: Vec<usize>,
    /// How many of the first layers no gradient reaches, in training.
    pub frozen: usize,
    /// By device from and device to; none where they are not connected both ways.
    p2p_both_ways: Vec<Vec<Option<P2pCost>>>,
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

impl<'a> CostSums<'a> {
    /// Whether there is no time for another program that bounds iterations, unless it takes next to none.
    pub fn late(&self, deadline: Option<&Deadline<'_>>) -> bool {
        self.runs.len() > FEW_RUNS && deadline.is_some_and(Deadline::over)
    }

    /// How many boundaries pass between stages of one of so many devices at once, where they run in rounds.
    pub fn transient_boundaries(&self, devices: usize) -> u64 {
        transient_boundaries(&self.context, devices).unwrap_or(3 * self.microbatches)
    }

    /// The costs of `context`, as far as `options` leave a choice.
    pub fn new(context: Context<'a>, options: &Options) -> Self {
        Self::of(context, options, &|device| DeviceSums::new(&context, device, &options.pins))
    }

    /// The same where nothing is stepped, saved or recomputed: whatever several stages on a device choose for their layers, one with these
    /// layers takes no longer here and needs no more.
    pub fn ideal(&self, options: &Options) -> Self {
        let device = |device| DeviceSums::ideal(&self.context, device, &options.pins, options.host_help);
        // What hosts could do is left out, and still tells devices apart.
        Self { host_help: false, models: self.models.clone(), ..Self::of(self.context, options, &device) }
    }

    /// The same with the best way between devices that are like each two as the way between these: none takes longer, and devices that are
    /// alike are so wherever they are.
    pub fn blurred(self) -> Self {
        let mut best: BTreeMap<(usize, usize), P2pCost> = BTreeMap::new();
        let like = |from: usize, to: usize| (self.models[from], self.models[to]);
        for (from, p2p_both_ways) in self.p2p_both_ways.iter().enumerate() {
            for (to, p2p) in p2p_both_ways.iter().enumerate().filter(|(to, _)| *to != from) {
                let Some(p2p) = p2p else { continue };
                let known = best.entry(like(from, to)).or_insert_with(|| P2pCost { links: Vec::new(), ..p2p.clone() });
                (known.latency, known.per_byte) = (known.latency.min(p2p.latency), known.per_byte.min(p2p.per_byte));
            }
        }
        let of_pair = |from: usize, (to, p2p): (usize, &Option<P2pCost>)| {
            if from == to { p2p.clone() } else { best.get(&like(from, to)).cloned() }
        };
        let of_device = |(from, p2p_both_ways): (usize, &Vec<Option<P2pCost>>)| {
            p2p_both_ways.iter().enumerate().map(|p2p| of_pair(from, p2p)).collect()
        };
        let p2p_both_ways = self.p2p_both_ways.iter().enumerate().map(of_device).collect();
        Self { p2p_both_ways, ..self }
    }

    fn of(context: Context<'a>, options: &Options, device: &dyn Fn(DeviceId) -> DeviceSums) -> Self {
        let (cost, pins) = (context.cost, &options.pins);
        let runs = runs(cost, &|one, other| pins.same(one, other));
        let training = context.workload().mode == Mode::Train;
        let devices: Vec<DeviceSums> = cost.devices().map(device).collect();
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
            p2p_both_ways: cost
                .devices()
                .map(|from| cost.devices().map(|to| p2p(&context, from, to)).collect())
                .collect(),
            runs,
        }
    }

    /// What the host can do for a stage on a device, nothing first.
    pub fn host_offloads(&self, device: usize) -> &'static [HostOffload] {
        HostOffload::of(self.hosts(device).count())
    }

    /// The same, whoever does it.
    pub fn kinds_of_host_offload(&self, device: usize) -> &'static [HostOffload] {
        HostOffload::of(self.hosts(device).count().min(1))
    }

    /// Who may help a stage on a device, the nearest first.
    pub fn hosts(&self, device: usize) -> impl Iterator<Item = Host> {
        let host_offloads = self.host_help && self.training;
        self.devices[device].hosts().take(if host_offloads { MOST_HOSTS } else { 0 })
    }

    /// The copy between two devices, if they are connected both ways.
    pub fn p2p(&self, from: usize, to: usize) -> Option<&P2pCost> {
        self.p2p_both_ways[from][to].as_ref()
    }

    /// How long activations and gradients take from one device to another if a boundary is before layer `end`.
    pub fn transfers(&self, (from, to): (usize, usize), end: usize) -> (f64, f64) {
        let bytes = self.crossing(end - 1, from, to);
        match (self.p2p(from, to), self.p2p(to, from)) {
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

fn p2p(context: &Context<'_>, from: DeviceId, to: DeviceId) -> Option<P2pCost> {
    let memory = |device: DeviceId| context.hardware.devices()[device].memory;
    if memory(from) == memory(to) {
        return Some(P2pCost::NONE);
    }
    context.hardware.route(memory(to), memory(from))?;
    let route = context.hardware.route(memory(from), memory(to))?;
    let per_byte = |link: LinkId| 1e3 / context.hardware.links()[link].bandwidth.get();
    let links: Vec<(LinkId, f64)> = route.links.iter().map(|link| (*link, per_byte(*link))).collect();
    let slowest = links.iter().fold(0.0, |most: f64, (_, per_byte)| most.max(*per_byte));
    let capped = route.rate_cap.map_or(0.0, |rate| 1e3 / rate.get());
    Some(P2pCost { latency: route.latency.to_ms(), per_byte: slowest.max(capped), links })
}

/// The first device that computes and holds like each device.
fn models(devices: &[DeviceSums]) -> Vec<usize> {
    let first = |device: usize| (0..device).find(|other| alike(&devices[*other], &devices[device]));
    (0..devices.len()).map(|device| first(device).unwrap_or(device)).collect()
}
