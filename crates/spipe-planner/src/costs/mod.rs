//! Prefix sums over the cost table: time and bytes of any range of layers on any device in constant
//! time.
//!
//! - here: [`CostSums`], all devices together, and [`P2pCost`], a copy between two of them
//! - [`device`]: [`DeviceSums`], the sums of one device, with its memory count
//! - [`stage`]: [`StageTimes`], [`HostOffload`] and [`StageSlot`], a stage as the search sees it

mod device;
mod stage;

pub(crate) use crate::costs::device::{DeviceSums, Host};
pub(crate) use crate::{
    costs::stage::{HostOffload, StageSlot, StageTimes, slots_in, slots_out},
    hosts::MOST_HOSTS,
};

use crate::problem::{Effort, Options, budget};
use spipe_base::{Bytes, DeviceId, LayerId, LayerRange, LinkId, Seconds};
use spipe_cost::{CostTable, LayerMemory, LayerTime, Mode};
use spipe_plan::{Context, Knob, Stage, transient_boundaries};
use std::{sync::OnceLock, time::Duration};

/// The cost of a copy from one device's memory to another's without contention.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct P2pCost {
    /// The latency, in ms.
    pub latency: f64,
    /// The time on its slowest link, in ms per byte.
    pub per_byte: f64,
    /// The links on its route, each with its time in ms per byte.
    pub links: Vec<(LinkId, f64)>,
}

impl P2pCost {
    /// The cost within one memory, where nothing moves.
    const NONE: Self = Self { latency: 0.0, per_byte: 0.0, links: Vec::new() };

    /// The time of `bytes`, in ms.
    pub fn time(&self, bytes: u64) -> f64 {
        self.latency + self.per_byte * bytes as f64
    }
}

/// The costs of a problem as prefix sums, with the options that bear on them.
pub(crate) struct CostSums<'a> {
    pub context: Context<'a>,
    /// The number of layers.
    pub layers: usize,
    pub microbatches: u64,
    pub training: bool,
    /// Whether stages on GPUs may offload to the host.
    pub host_help: bool,
    /// Whether a pin demands that optimizer steps are a phase of their own.
    pub phased: bool,
    /// The sums of each device.
    pub devices: Vec<DeviceSums>,
    /// The first device that computes and holds like each device ([`alike`]).
    pub models: Vec<usize>,
    /// The number of layers at the front that no gradient reaches in training; 0 in inference.
    pub frozen: usize,
    /// The copies, by source and destination; `None` where the two are not connected in both
    /// directions. Those of a source are computed when one of them is asked for.
    p2p_both_ways: Vec<OnceLock<Vec<Option<P2pCost>>>>,
    /// The runs of equal layers: first layer and count.
    pub runs: Vec<(usize, usize)>,
    /// The time limit of one linear or integer program that bounds iterations.
    pub program_time: Duration,
    /// Whether one program is to bound a system of stages, where several would bound it better.
    pub one_program: bool,
}

/// Returns the sum of a part of the bytes of `layers` on a device.
pub(crate) fn bytes_of(
    context: &Context<'_>,
    (layers, device): (LayerRange, DeviceId),
    part: impl Fn(&LayerMemory) -> Bytes,
) -> Bytes {
    layers.iter().map(|layer| part(context.cost.memory(layer, device))).sum()
}

/// Returns the sum of a part of the times of `layers` on a device, in ms.
pub(crate) fn ms_of(
    context: &Context<'_>,
    (layers, device): (LayerRange, DeviceId),
    part: impl Fn(&LayerTime) -> Seconds,
) -> f64 {
    layers.iter().filter_map(|layer| context.cost.time(layer, device)).map(|time| part(time).to_ms()).sum()
}

/// Returns the time of one microbatch's recompute and backward in a stage, in ms.
pub(crate) fn back_through(context: &Context<'_>, stage: &Stage) -> f64 {
    let again = |layers| ms_of(context, (layers, stage.lead()), |time| time.forward);
    stage.recomputed_layers().map_or(0.0, again) + ms_of(context, (stage.layers, stage.lead()), LayerTime::backward)
}

/// Returns the runs of consecutive layers of the same kind that `same` does not distinguish, as
/// first layer and count.
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
    /// The most boundary tensors of one microbatch that a device of a streamed system holds at a
    /// time, if `devices` devices take part; 3 per microbatch where [`transient_boundaries`]
    /// depends on the number of chunks.
    pub fn transient_boundaries(&self, devices: usize) -> u64 {
        transient_boundaries(&self.context, devices).unwrap_or(3 * self.microbatches)
    }

    /// The costs of `context` under `options`.
    pub fn new(context: Context<'a>, options: &Options) -> Self {
        let (cost, pins) = (context.cost, &options.pins);
        let runs = runs(cost, &|one, other| pins.same(one, other));
        let training = context.workload().mode == Mode::Train;
        let devices: Vec<DeviceSums> = cost.devices().map(|device| DeviceSums::new(&context, device, pins)).collect();
        let frozen = cost.layers().take_while(|layer| training && !cost.needs_backward(*layer)).count();
        Self {
            context,
            layers: cost.layers().len(),
            microbatches: context.workload().microbatches,
            training,
            program_time: budget::share(options.limit(), budget::BOUND_PROGRAM)
                .clamp(*budget::BOUND_PROGRAM_TIMES.start(), *budget::BOUND_PROGRAM_TIMES.end()),
            one_program: options.effort == Some(Effort::Low),
            models: models(&devices),
            frozen,
            devices,
            host_help: options.host_help,
            phased: pins.knob(Knob::SynchronousOptimizer) == Some(1),
            p2p_both_ways: cost.devices().map(|_| OnceLock::new()).collect(),
            runs,
        }
    }

    /// The host offloads of a stage on `device`, none first.
    pub fn host_offloads(&self, device: usize) -> &'static [HostOffload] {
        HostOffload::of(self.hosts(device).count())
    }

    /// The host offloads of a stage on `device` by its nearest host only, none first.
    pub fn kinds_of_host_offload(&self, device: usize) -> &'static [HostOffload] {
        HostOffload::of(self.hosts(device).count().min(1))
    }

    /// The hosts to which a stage on `device` may offload, the nearest first; none in inference.
    pub fn hosts(&self, device: usize) -> impl Iterator<Item = Host> {
        let helps = self.host_help && self.training;
        self.devices[device].hosts().take(if helps { MOST_HOSTS } else { 0 })
    }

    /// The cost of a copy between two devices; `None` unless they are connected in both directions.
    pub fn p2p(&self, from: usize, to: usize) -> Option<&P2pCost> {
        let all = || self.context.cost.devices().map(|to| p2p(&self.context, from.into(), to)).collect();
        self.p2p_both_ways[from].get_or_init(all)[to].as_ref()
    }

    /// The times of activations and of gradients over a boundary before layer `end`, in ms;
    /// infinite without a connection, and 0 for gradients in inference.
    pub fn transfers(&self, (from, to): (usize, usize), end: usize) -> (f64, f64) {
        let bytes = self.crossing(end - 1, from, to);
        match (self.p2p(from, to), self.p2p(to, from)) {
            (Some(there), Some(back)) => (there.time(bytes), if self.training { back.time(bytes) } else { 0.0 }),
            _ => (f64::INFINITY, f64::INFINITY),
        }
    }

    /// The bytes of one microbatch that cross between two devices after layer `layer`: its boundary
    /// in the narrower of their precisions.
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

/// Returns the first device that computes and holds like each device.
fn models(devices: &[DeviceSums]) -> Vec<usize> {
    let first = |device: usize| (0..device).find(|other| device::alike(&devices[*other], &devices[device]));
    (0..devices.len()).map(|device| first(device).unwrap_or(device)).collect()
}
