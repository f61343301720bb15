//! Everything shared by all GPUs: FSDP with everything on them, ZeRO-Infinity with everything in DRAM.

use super::{cuts, gpus, socket};
use spipe_base::{Bytes, DeviceId, LinkId, MemoryId};
use spipe_cost::{LayerMemory, LayerTime};
use spipe_plan::{Context, Knobs, Placement, Stage, System, Weights, check, shard};
use std::collections::BTreeMap;

pub(super) fn candidates(context: &Context<'_>, system: System) -> Option<Vec<Placement>> {
    let gpus = gpus(context);
    let first = *gpus.first()?;
    let mut placements = Vec::new();
    for shards in (1..=gpus.len()).filter(|shards| context.workload().microbatches.is_multiple_of(*shards as u64)) {
        for recompute in [false, true] {
            let stage = |layers| {
                let stage = Stage::new(first, layers);
                let stage = if recompute { stage.with_everything_recomputed() } else { stage };
                match system {
                    System::ZeroInfinity => {
                        let home = context.hardware.host_memory(first)?;
                        Some(stage.with_weights_in(home).with_optimizer_on(socket(context, first)?))
                    }
                    _ => Some(stage),
                }
            };
            let stages: Option<Vec<Stage>> = cuts::single(context).into_iter().map(stage).collect();
            let knobs = Knobs { shards: Some(shards as u64), ..Knobs::default() };
            placements.push(Placement::new(system, stages?).with_knobs(knobs));
        }
    }
    Some(placements)
}

/// The least iteration of those of `placements` that fit, in ms; infinite if none does.
pub(super) fn least(context: &Context<'_>, placements: &[Placement]) -> f64 {
    let fit = placements.iter().filter(|placement| check(context, placement).is_ok());
    fit.map(|placement| Busy::of(context, placement).most()).fold(f64::INFINITY, f64::min)
}

/// For how long an iteration keeps everything busy, in ms. With n devices, each of which has m ÷ n microbatches, every stage is
/// gathered on each of them for each forward and each backward, and its gradients are scattered after the latter; of what a ring moves
/// each device gets (n − 1)/n from the one before it.
struct Busy<'b, 'a> {
    context: &'b Context<'a>,
    devices: Vec<DeviceId>,
    /// How many microbatches each device has.
    rounds: f64,
    computing: BTreeMap<DeviceId, f64>,
    /// By the device that gets something.
    collecting: BTreeMap<DeviceId, f64>,
    links: BTreeMap<LinkId, f64>,
}

impl<'b, 'a> Busy<'b, 'a> {
    fn of(context: &'b Context<'a>, placement: &Placement) -> Self {
        let devices = placement.participants(context.hardware);
        let rounds = (context.workload().microbatches / devices.len().max(1) as u64) as f64;
        let (computing, collecting, links) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut busy = Self { context, devices, rounds, computing, collecting, links };
        for at in 0..busy.devices.len() {
            placement.stages.iter().for_each(|stage| busy.stage(at, stage));
        }
        busy
    }

    /// What is busiest.
    fn most(&self) -> f64 {
        let all = self.computing.values().chain(self.collecting.values()).chain(self.links.values());
        all.fold(0.0, |most, time| most.max(*time))
    }

    /// Adds what one device does for a stage.
    fn stage(&mut self, at: usize, stage: &Stage) {
        let (context, here, count) = (self.context, self.devices[at], self.devices.len());
        let returns = context.backward_of(stage.layers).is_some();
        let time = |part: fn(&LayerTime) -> f64| -> f64 {
            stage.layers.iter().filter_map(|layer| context.cost.time(layer, here)).map(part).sum()
        };
        let again = stage.recomputed_layers().into_iter().flat_map(|layers| layers.iter());
        let again: f64 =
            again.filter_map(|layer| context.cost.time(layer, here)).map(|time| time.forward.to_ms()).sum();
        let back = if returns { again + time(|time| time.backward().to_ms()) } else { 0.0 };
        *self.computing.entry(here).or_default() += self.rounds * (time(|time| time.forward.to_ms()) + back);
        let bytes = |part: fn(&LayerMemory) -> Bytes| -> Bytes {
            stage.layers.iter().map(|layer| part(context.cost.memory(layer, here))).sum()
        };
        let (parameters, gradients) = (bytes(|memory| memory.parameters), bytes(|memory| memory.gradients));
        let (uses, scatters) = if returns { (2.0 * self.rounds, self.rounds) } else { (self.rounds, 0.0) };
        let memory = context.hardware.devices()[here].memory;
        let ring = |bytes: Bytes| (bytes.get() / count as u64 * (count as u64 - 1)) as f64;
        if count > 1 {
            let before = context.hardware.devices()[self.devices[(at + count - 1) % count]].memory;
            let moved = uses * ring(parameters) + scatters * ring(gradients);
            *self.collecting.entry(here).or_default() += self.moves((before, memory), moved);
        }
        let streams = matches!(stage.weights, Weights::Streamed(_));
        let host = context.hardware.host_memory(here).filter(|_| streams || stage.optimizer.is_some());
        if let Some(host) = host.filter(|_| streams) {
            self.moves((host, memory), uses * shard(parameters, count).as_f64());
            self.moves((memory, host), scatters * shard(gradients, count).as_f64());
        }
        if returns {
            let owner = |host| context.hardware.devices().enumerate().find(|(_, device)| device.memory == host);
            let steps = host.and_then(owner).map_or(here, |(device, _)| device);
            let trained: u64 = stage.layers.iter().map(|layer| context.cost.trained_parameters(layer)).sum();
            let step = context.cost.optimizer_time(trained.div_ceil(count as u64), steps).to_ms();
            *self.computing.entry(steps).or_default() += step;
        }
    }

    /// Adds bytes to all links from one memory to another; how long the slowest of them takes.
    fn moves(&mut self, (from, to): (MemoryId, MemoryId), bytes: f64) -> f64 {
        let hardware = self.context.hardware;
        let Some(route) = hardware.route(from, to) else { return 0.0 };
        let mut slowest = 0.0_f64;
        for link in &route.links {
            let time = 1e3 * bytes / hardware.links()[*link].bandwidth.get();
            *self.links.entry(*link).or_default() += time;
            slowest = slowest.max(time);
        }
        slowest
    }
}
