//! The load of each resource of a sharded placement: the time for which one iteration keeps it
//! busy, a lower bound on the iteration time.

use crate::costs::{bytes_of, ms_of};
use crate::score::lane::{Lane, link_times};
use crate::space::sharded::gathered;
use spipe_base::{Bytes, DeviceId, LayerRange, LinkId, MemoryId};
use spipe_cost::{
    LayerMemory, LayerTime,
    collectives::{self, rings},
};
use spipe_hardware::Hardware;
use spipe_plan::{Context, Placement, Stage, Weights};
use std::collections::BTreeMap;

/// The loads of all resources, in ms per iteration.
///
/// Each of n devices has m ÷ n of the m microbatches. A stage is gathered on each device for each
/// forward and backward that finds it evicted, and its gradients are scattered after each backward.
/// In a ring, each device receives (n − 1)/n of the bytes from the one before it; over several computers, a part of them
/// in each of several rings.
pub(crate) struct Busy<'b, 'a> {
    pub context: &'b Context<'a>,
    pub devices: Vec<DeviceId>,
    /// By device, the memories from which and to which it receives in each ring.
    hops: Vec<Vec<(MemoryId, MemoryId)>>,
    /// The microbatches of each device.
    pub rounds: f64,
    /// Whether optimizer steps are a phase of their own.
    phased: bool,
    pub lanes: BTreeMap<Lane, f64>,
}

/// Returns the load of the busiest resource, in ms. No iteration of `placement` is shorter.
pub(crate) fn busiest(context: &Context<'_>, placement: &Placement) -> f64 {
    let mut busy = Busy::new(context, placement.replicas(), placement.update.is_phase());
    let divided: Vec<LayerRange> = placement.stages.iter().map(|stage| stage.layers).collect();
    let gathers = gathered(context, &divided, (busy.rounds as u64, placement.resident_stages()));
    placement.stages.iter().zip(gathers).for_each(|(stage, gathers)| busy.stage(stage, gathers as f64));
    busy.between();
    busy.lanes.into_values().fold(0.0, f64::max)
}

impl<'b, 'a> Busy<'b, 'a> {
    pub fn new(context: &'b Context<'a>, devices: Vec<DeviceId>, phased: bool) -> Self {
        let rounds = (context.workload().microbatches / devices.len().max(1) as u64) as f64;
        let hops = hops(context.hardware, &devices);
        Self { context, devices, hops, rounds, phased, lanes: BTreeMap::new() }
    }

    fn add(&mut self, lane: Lane, ms: f64) {
        *self.lanes.entry(lane).or_default() += ms;
    }

    /// Adds the work of all devices for a stage that each gathers `gathers` times.
    pub fn stage(&mut self, stage: &Stage, gathers: f64) {
        (0..self.devices.len()).for_each(|at| self.on_device(at, (stage, gathers)));
    }

    /// Adds the time to gather `bytes` of parameters once from the host.
    pub fn gathering(&mut self, bytes: f64) {
        for at in 0..self.devices.len() {
            let (here, count) = (self.devices[at], self.devices.len() as f64);
            let slowest = self.receives(at, bytes * (count - 1.0) / count);
            self.add(Lane::Collecting(here), slowest);
            if let Some(host) = self.context.hardware.host_memory(here) {
                self.moves((host, self.context.hardware.devices()[here].memory), bytes / count);
            }
        }
    }

    /// Adds the time between the last pass of an iteration and the first one of the next: the
    /// gradients of the first layer are scattered and its new parameters gathered.
    pub fn between(&mut self) {
        let Some(first) = self.context.cost.layers().next() else { return };
        let returns = self.context.cost.needs_backward(first);
        for at in 0..self.devices.len() {
            let memory = self.context.cost.memory(first, self.devices[at]);
            let moved = memory.parameters + if returns { memory.gradients } else { Bytes::ZERO };
            let ring = self.ring(moved);
            let each = ring / self.hops[at].len() as f64;
            let slowest = self.hops[at].iter().map(|ends| self.route(*ends, each).0).fold(0.0, f64::max);
            self.add(Lane::Passes(self.devices[at]), slowest);
        }
    }

    fn on_device(&mut self, at: usize, (stage, gathers): (&Stage, f64)) {
        let (context, here) = (self.context, self.devices[at]);
        let returns = context.backward_of(stage.layers).is_some();
        let forward = |layers: LayerRange| ms_of(context, (layers, here), |time| time.forward);
        let again = stage.recomputed_layers().map_or(0.0, forward);
        let backward = ms_of(context, (stage.layers, here), LayerTime::backward);
        let back = if returns { again + backward } else { 0.0 };
        let passes = self.rounds * (forward(stage.layers) + back);
        self.add(Lane::Passes(here), passes);
        self.add(Lane::Compute(here), passes);
        let scatters = if returns { self.rounds } else { 0.0 };
        // A stage that stays sends its gradients to its optimizer once, and gets its parameters
        // back once.
        let of_host = if is_streamed(stage) { (gathers, scatters) } else { (f64::from(u8::from(returns)), 1.0) };
        self.transfers(at, stage, ((gathers, scatters), of_host));
        let memories = context.hardware.memories();
        let socket = context.hardware.host_memory(here).and_then(|host| memories[host].device);
        if let Some(socket) = socket.filter(|_| at == 0) {
            let ends = stage.layers.last().index() + 1 == context.cost.layers().len();
            let first = match (self.phased || ends, context.workload().checks_gradients()) {
                (true, _) => passes / self.rounds,
                (false, true) if self.delays_norm(stage) => back,
                (false, _) => 0.0,
            };
            self.add(Lane::Stepping(socket), passes * (1.0 - 1.0 / self.rounds) + first);
        }
        if returns {
            let (steps, step) = self.step(here, stage);
            self.add(Lane::Compute(steps), step);
            if steps != here {
                self.add(Lane::Stepping(steps), step);
            }
        }
    }

    /// Whether the global norm waits for the backward of a stage: no gradient comes from layers
    /// before the first one with trained parameters.
    fn delays_norm(&self, stage: &Stage) -> bool {
        let cost = self.context.cost;
        let first = cost.layers().find(|layer| cost.trained_parameters(*layer) > 0);
        first.is_some_and(|first| first <= stage.layers.first())
    }

    /// The host memory of a device's shard of a stage; `None` if the device holds both parameters
    /// and optimizer state.
    fn host_of(&self, device: DeviceId, stage: &Stage) -> Option<MemoryId> {
        let host = self.context.hardware.host_memory(device);
        host.filter(|_| is_streamed(stage) || stage.optimizer.is_some())
    }

    /// The device on which a device's shard of a stage is updated, and the time of that, in ms.
    fn step(&self, device: DeviceId, stage: &Stage) -> (DeviceId, f64) {
        let context = self.context;
        let socket = self.host_of(device, stage).and_then(|host| context.hardware.memories()[host].device);
        let steps = socket.unwrap_or(device);
        let trained: u64 = stage.layers.iter().map(|layer| context.cost.trained_parameters(layer)).sum();
        (steps, context.cost.optimizer_time(trained / self.devices.len() as u64, steps).to_ms())
    }

    /// The time for which the busiest device or socket updates its shards of a stage, in ms, and
    /// whether sockets take part.
    pub fn stepping(&self, stage: &Stage) -> (f64, bool) {
        let mut busy: BTreeMap<DeviceId, f64> = BTreeMap::new();
        for device in &self.devices {
            let (steps, time) = self.step(*device, stage);
            *busy.entry(steps).or_default() += time;
        }
        let sockets = busy.keys().any(|device| self.context.is_cpu(*device));
        (busy.into_values().fold(0.0, f64::max), sockets)
    }

    /// Adds the copies of one device for a stage that is gathered `gathers` times and whose
    /// gradients are scattered `scatters` times: in the ring, and to and from its host.
    fn transfers(
        &mut self,
        at: usize,
        stage: &Stage,
        ((gathers, scatters), (from_host, to_host)): ((f64, f64), (f64, f64)),
    ) {
        let (context, here, count) = (self.context, self.devices[at], self.devices.len());
        let bytes = |part: fn(&LayerMemory) -> Bytes| bytes_of(context, (stage.layers, here), part);
        let (parameters, gradients) = (bytes(|memory| memory.parameters), bytes(|memory| memory.gradients));
        let moved = gathers * self.ring(parameters) + scatters * self.ring(gradients);
        let slowest = self.receives(at, moved);
        self.add(Lane::Collecting(here), slowest);
        let Some(host) = self.host_of(here, stage) else { return };
        let memory = context.hardware.devices()[here].memory;
        let part = |bytes: Bytes| bytes.as_f64() / count as f64;
        // A stage that stays on the device gets back what its step has changed.
        let inward = if is_streamed(stage) { parameters } else { bytes(|memory| memory.updated) };
        self.moves((host, memory), from_host * part(inward));
        if context.backward_of(stage.layers).is_some() {
            self.moves((memory, host), to_host * part(gradients));
        }
    }

    /// The time to gather a stage on all devices at once, and that to scatter its gradients, in ms.
    pub fn passing(&mut self, stage: &Stage) -> [f64; 2] {
        let streams = f64::from(u8::from(is_streamed(stage)));
        [(1.0, 0.0), (0.0, 1.0)].map(|(gathers, scatters)| {
            let lanes = std::mem::take(&mut self.lanes);
            for at in 0..self.devices.len() {
                self.transfers(at, stage, ((gathers, scatters), (streams * gathers, streams * scatters)));
            }
            std::mem::replace(&mut self.lanes, lanes).into_values().fold(0.0, f64::max)
        })
    }

    /// The bytes that a device receives of `bytes` in a ring.
    fn ring(&self, bytes: Bytes) -> f64 {
        let count = self.devices.len() as u64;
        (bytes.get() / count * (count - 1)) as f64
    }

    /// Adds `bytes` that a device receives in equal parts in each ring, and returns the time of the slowest link, in ms.
    fn receives(&mut self, at: usize, bytes: f64) -> f64 {
        let count = self.hops[at].len();
        (0..count).map(|hop| self.moves(self.hops[at][hop], bytes / count as f64)).fold(0.0, f64::max)
    }

    /// Adds `bytes` to all links from one memory to another, and returns the time of the slowest
    /// link, in ms.
    fn moves(&mut self, ends: (MemoryId, MemoryId), bytes: f64) -> f64 {
        let (slowest, links) = self.route(ends, bytes);
        for (link, time) in links {
            self.add(Lane::Link(link), time);
        }
        slowest
    }

    /// The time of `bytes` on the slowest link from one memory to another, and on each link, in ms.
    fn route(&self, ends: (MemoryId, MemoryId), bytes: f64) -> (f64, Vec<(LinkId, f64)>) {
        let links = link_times(self.context.hardware, ends, bytes);
        (links.iter().map(|(_, time)| *time).fold(0.0, f64::max), links)
    }
}

/// By device, the memories from which and to which it receives in each ring of all of them.
fn hops(hardware: &Hardware, devices: &[DeviceId]) -> Vec<Vec<(MemoryId, MemoryId)>> {
    let memory = |device: DeviceId| hardware.devices()[device].memory;
    let mut into: BTreeMap<DeviceId, Vec<(MemoryId, MemoryId)>> = BTreeMap::new();
    for [from, to] in rings(hardware, devices).iter().flat_map(|ring| collectives::hops(ring)) {
        into.entry(to).or_default().push((memory(from), memory(to)));
    }
    devices.iter().map(|device| into.remove(device).unwrap_or_default()).collect()
}

fn is_streamed(stage: &Stage) -> bool {
    matches!(stage.weights, Weights::Streamed(_))
}
