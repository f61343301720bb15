//! The load of each resource of a sharded placement: the time for which one iteration keeps it
//! busy, a lower bound on the iteration time.

use crate::costs::{bytes_of, ms_of};
use crate::score::lane::Lane;
use crate::space::sharded::gathered;
use spipe_base::{Bytes, DeviceId, LayerRange, MemoryId};
use spipe_cost::{LayerMemory, LayerTime, SharedLinks};
use spipe_plan::{Context, Placement, ShardGroups, Stage, Weights};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The loads of all resources, in ms per iteration.
///
/// Each of n devices has m ÷ n of the m microbatches. A stage is gathered on each device for each
/// forward and backward that finds it evicted, and its gradients are scattered after each backward.
/// In a ring, each device receives (n − 1)/n of the bytes from the one before it; over several computers, a part of them
/// in each of several rings. Of sockets with equal devices near them, the first one stands for all, and so do its devices.
pub(crate) struct Busy<'b, 'a> {
    pub context: &'b Context<'a>,
    /// The devices, by groups that have a copy of everything.
    pub groups: ShardGroups,
    links: Arc<SharedLinks>,
    /// The devices that stand for all.
    shown: Vec<usize>,
    /// The microbatches of each device.
    pub rounds: f64,
    /// Whether optimizer steps are a phase of their own.
    phased: bool,
    lanes: BTreeMap<Lane, f64>,
    moved: Moved,
}

/// The bytes that each device receives in the rings of its group, that it receives from the host memory near it, that it
/// sends there, and that it receives from other groups.
type Moved = [f64; 4];

/// Returns the load of the busiest resource, in ms. No iteration of `placement` is shorter.
pub(crate) fn busiest(context: &Context<'_>, placement: &Placement) -> f64 {
    let mut busy = Busy::new(context, placement.shard_groups(), placement.update.is_phase());
    let divided: Vec<LayerRange> = placement.stages.iter().map(|stage| stage.layers).collect();
    let gathers = gathered(context, &divided, (busy.rounds as u64, placement.resident_stages()));
    placement.stages.iter().zip(gathers).for_each(|(stage, gathers)| busy.stage(stage, gathers as f64));
    busy.between();
    busy.into_lanes().into_values().fold(0.0, f64::max)
}

impl<'b, 'a> Busy<'b, 'a> {
    pub fn new(context: &'b Context<'a>, groups: ShardGroups, phased: bool) -> Self {
        let devices = groups.devices();
        let rounds = (context.workload().microbatches / devices.len().max(1) as u64) as f64;
        let links = context.cost.shared_links(context.hardware, &groups);
        let shown = unlike(context, devices, &links);
        Self { context, groups, links, shown, rounds, phased, lanes: BTreeMap::new(), moved: [0.0; 4] }
    }

    /// The devices that stand for all.
    pub fn shown(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.shown.iter().map(|at| self.groups.devices()[*at])
    }

    fn add(&mut self, lane: Lane, ms: f64) {
        *self.lanes.entry(lane).or_default() += ms;
    }

    /// The loads by resource.
    pub fn into_lanes(mut self) -> BTreeMap<Lane, f64> {
        let links = self.links.loads.iter().map(|(link, load)| (Lane::Link(*link), sum(load, &self.moved)));
        self.lanes.extend(links.filter(|(_, time)| *time > 0.0));
        self.lanes
    }

    /// Adds the work of all devices for a stage that each gathers `gathers` times.
    pub fn stage(&mut self, stage: &Stage, gathers: f64) {
        let returns = self.context.backward_of(stage.layers).is_some();
        let scatters = if returns { self.rounds } else { 0.0 };
        // A stage that stays sends its gradients to its optimizer once, and gets its parameters
        // back once.
        let of_host = if is_streamed(stage) { (gathers, scatters) } else { (f64::from(u8::from(returns)), 1.0) };
        // Shards that stay are added up over groups once, and those that leave before they do so.
        let sums = if is_streamed(stage) { scatters } else { scatters.min(1.0) };
        self.moves(self.transfers(stage, ((gathers, scatters, sums), of_host)));
        (0..self.shown.len()).for_each(|shown| self.on_device(self.shown[shown], stage));
    }

    /// Adds the time to gather `bytes` of parameters once from the host.
    pub fn gathering(&mut self, bytes: f64) {
        let count = self.groups.size() as f64;
        self.moves([bytes * (count - 1.0) / count, bytes / count, 0.0, 0.0]);
    }

    /// Adds bytes that each device moves.
    fn moves(&mut self, moved: Moved) {
        for shown in 0..self.shown.len() {
            let at = self.shown[shown];
            let here = self.groups.devices()[at];
            self.add(Lane::Collecting(here), moved[0] * self.links.slowest[at]);
            if moved[3] > 0.0 {
                self.add(Lane::Summing(here), moved[3] * self.links.slowest_sums[at]);
            }
        }
        self.moved.iter_mut().zip(moved).for_each(|(all, bytes)| *all += bytes);
    }

    /// Adds the time between the last pass of an iteration and the first one of the next: the
    /// gradients of the first layer are scattered and its new parameters gathered.
    pub fn between(&mut self) {
        let Some(first) = self.context.cost.layers().next() else { return };
        let returns = self.context.cost.needs_backward(first);
        for shown in 0..self.shown.len() {
            let (at, here) = (self.shown[shown], self.groups.devices()[self.shown[shown]]);
            let memory = self.context.cost.memory(first, here);
            let moved = memory.parameters + if returns { memory.gradients } else { Bytes::ZERO };
            self.add(Lane::Passes(here), self.ring(moved) * self.links.slowest[at]);
        }
    }

    fn on_device(&mut self, at: usize, stage: &Stage) {
        let (context, here) = (self.context, self.groups.devices()[at]);
        let returns = context.backward_of(stage.layers).is_some();
        let forward = |layers: LayerRange| ms_of(context, (layers, here), |time| time.forward);
        let again = stage.recomputed_layers().map_or(0.0, forward);
        let backward = ms_of(context, (stage.layers, here), LayerTime::backward);
        let back = if returns { again + backward } else { 0.0 };
        let passes = self.rounds * (forward(stage.layers) + back);
        self.add(Lane::Passes(here), passes);
        self.add(Lane::Compute(here), passes);
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
        (steps, context.cost.optimizer_time(trained / self.groups.size() as u64, steps).to_ms())
    }

    /// The time for which the busiest device or socket updates its shards of a stage, in ms, and
    /// whether sockets take part.
    pub fn stepping(&self, stage: &Stage) -> (f64, bool) {
        let mut busy: BTreeMap<DeviceId, f64> = BTreeMap::new();
        for device in self.shown() {
            let (steps, time) = self.step(device, stage);
            *busy.entry(steps).or_default() += time;
        }
        let sockets = busy.keys().any(|device| self.context.is_cpu(*device));
        (busy.into_values().fold(0.0, f64::max), sockets)
    }

    /// The bytes that each device moves for a stage that is gathered `gathers` times and whose gradients are scattered
    /// `scatters` times: in the rings, and from and to its host; and for `sums` sums over groups. They are the same on all
    /// devices.
    fn transfers(
        &self,
        stage: &Stage,
        ((gathers, scatters, sums), (from_host, to_host)): ((f64, f64, f64), (f64, f64)),
    ) -> Moved {
        let (context, here, count) = (self.context, self.groups.devices()[0], self.groups.size());
        let bytes = |part: fn(&LayerMemory) -> Bytes| bytes_of(context, (stage.layers, here), part);
        let (parameters, gradients) = (bytes(|memory| memory.parameters), bytes(|memory| memory.gradients));
        let received = gathers * self.ring(parameters) + scatters * self.ring(gradients);
        let part = |bytes: Bytes| bytes.as_f64() / count as f64;
        let groups = self.groups.count() as f64;
        let summed = sums * 2.0 * (groups - 1.0) / groups * part(gradients);
        if self.host_of(here, stage).is_none() {
            return [received, 0.0, 0.0, summed];
        }
        // A stage that stays on the device gets back what its step has changed.
        let inward = if is_streamed(stage) { parameters } else { bytes(|memory| memory.updated) };
        let returns = context.backward_of(stage.layers).is_some();
        [received, from_host * part(inward), if returns { to_host * part(gradients) } else { 0.0 }, summed]
    }

    /// The time to gather a stage on all devices at once, and that to scatter its gradients, in ms, with the sum over
    /// groups where they leave; then that of the sum where they stay.
    pub fn passing(&self, stage: &Stage) -> [f64; 3] {
        let leaves = f64::from(u8::from(is_streamed(stage)));
        let most = |slowest: &[f64]| slowest.iter().copied().fold(0.0, f64::max);
        let (slowest, slowest_sum) = (most(&self.links.slowest), most(&self.links.slowest_sums));
        let [gather, scatter, sum] = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)].map(|rings| {
            let moved = self.transfers(stage, (rings, (leaves * rings.0, leaves * rings.1)));
            let links = self.links.loads.iter().map(|(_, load)| sum(load, &moved));
            links.fold((moved[0] * slowest).max(moved[3] * slowest_sum), f64::max)
        });
        [gather, scatter + leaves * sum, (1.0 - leaves) * sum]
    }

    /// The bytes that a device receives of `bytes` in a ring.
    fn ring(&self, bytes: Bytes) -> f64 {
        let count = self.groups.size() as u64;
        (bytes.get() / count * (count - 1)) as f64
    }
}

/// The load of a link, in ms, given that by bytes.
fn sum(load: &Moved, moved: &Moved) -> f64 {
    load.iter().zip(moved).map(|(load, bytes)| load * bytes).sum()
}

/// The devices near the first of all sockets that have equal devices near them, and of devices without a host those that
/// are unlike.
fn unlike(context: &Context<'_>, devices: &[DeviceId], links: &SharedLinks) -> Vec<usize> {
    let (cost, hardware) = (context.cost, context.hardware);
    let mut kinds: Vec<(DeviceId, u64)> = Vec::new();
    let mut kind = |device: DeviceId, slowest: u64| {
        let known = kinds.iter().position(|(of, as_slow)| *as_slow == slowest && cost.alike(*of, device));
        known.unwrap_or_else(|| {
            kinds.push((device, slowest));
            kinds.len() - 1
        })
    };
    let mut near: BTreeMap<Result<MemoryId, usize>, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (at, device) in devices.iter().enumerate() {
        let (places, kinds) = near.entry(hardware.host_memory(*device).ok_or(at)).or_default();
        places.push(at);
        kinds.push(kind(*device, links.slowest[at].to_bits()));
    }
    let (mut seen, mut shown) = (BTreeSet::new(), Vec::new());
    for (host, (places, mut kinds)) in near {
        let socket = host.ok().and_then(|host| hardware.memories()[host].device);
        kinds.extend(socket.map(|socket| kind(socket, 0)));
        if seen.insert(kinds) {
            shown.extend(places);
        }
    }
    shown.sort_unstable();
    shown
}

fn is_streamed(stage: &Stage) -> bool {
    matches!(stage.weights, Weights::Streamed(_))
}
