//! One device's times and bytes, summed.

mod grouped;

use crate::costs::{HostOffload, StageSlot, StageTimes, p2p, slots_in, slots_out};
use crate::{bisect::first_near, problem::pins::Pins};
use spipe_base::{Bytes, DeviceId, LayerId, MemoryId};
use spipe_cost::{LayerMemory, Mode};
use spipe_plan::{Boundary, Context, OFFLOAD_SLOTS};

/// Sums of the first 0, 1, 2, … of a list.
struct Sums<T>(Vec<T>);

impl<T: Copy + Default + std::ops::Add<Output = T> + std::ops::Sub<Output = T>> Sums<T> {
    fn new(items: impl Iterator<Item = T>) -> Self {
        let mut sums = vec![T::default()];
        for item in items {
            sums.push(sums[sums.len() - 1] + item);
        }
        Self(sums)
    }

    /// Of items `from..to`, `to` excluded.
    fn over(&self, from: usize, to: usize) -> T {
        self.0[to] - self.0[from]
    }
}

/// A socket with its DRAM, as a GPU sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Host {
    pub socket: DeviceId,
    pub memory: MemoryId,
    /// ms per byte to it, and back.
    pub out: f64,
    pub back: f64,
}

/// Who may help a GPU, with the times of all layers in ms, one after the other: gradients out, the step, and parameters back.
struct Helper {
    host: Host,
    out: Sums<f64>,
    step: Sums<f64>,
    back: Sums<f64>,
}

/// One device's times and bytes.
pub(crate) struct DeviceSums {
    pub name: String,
    pub memory: MemoryId,
    /// Bytes of its memory that a plan may use.
    pub usable: u64,
    pub is_cpu: bool,
    /// Times of each layer in ms, the optimizer's included; none where the layer cannot run.
    pub times: Vec<Option<StageTimes>>,
    pub bytes: Vec<LayerMemory>,
    forward: Sums<f64>,
    backward: Sums<f64>,
    optimizer: Sums<f64>,
    /// By layer: whether it must be recomputed, or must not.
    pub wanted: Vec<Option<bool>>,
    /// Whether that is so for no layer.
    free: bool,
    /// By pinned stage: whether it may be here.
    pinned: Vec<bool>,
    /// How many of the first layers do not allow each help that hosts may give, nothing first.
    forbidden: Vec<Sums<usize>>,
    /// By layer: whether its parameters must be streamed, or must stay.
    pub streamed: Vec<Option<bool>>,
    /// How many of the first layers no backward runs through: all of them outside of training.
    without_backward: usize,
    /// Who may help it, the nearest first.
    helpers: Vec<Helper>,
    unable: Sums<usize>,
    state: Sums<u64>,
    optimizer_state: Sums<u64>,
    /// Gradients, and the parameters that are trained.
    gradients: Sums<u64>,
    trained: Sums<u64>,
    parameters: Sums<u64>,
    saved: Sums<u64>,
    /// What parameters that the first and the last layer share come to beside their own: their gradients from the last layer
    /// where the first one is, and with a copy of them where the last one is.
    lent: u64,
    borrowed: u64,
    /// The largest workspace of 2^k layers from each one on, by k.
    workspace: Vec<Vec<u64>>,
}

impl DeviceSums {
    pub fn new(context: &Context<'_>, id: DeviceId, pins: &Pins) -> Self {
        let cost = context.cost;
        let bytes: Vec<LayerMemory> = cost.layers().map(|layer| *cost.memory(layer, id)).collect();
        let times = allowed(context, id, pins);
        let wanted = cost.layers().map(|layer| pins.recompute(layer.index())).collect();
        Self::of((context, id, pins), (bytes, times), (wanted, hosts(context, id)))
    }

    /// The same where nothing is stepped, saved or recomputed, and what the host could hold instead of the device takes no room.
    pub fn ideal(context: &Context<'_>, id: DeviceId, pins: &Pins, host_help: bool) -> Self {
        let helped = host_help && !hosts(context, id).is_empty();
        let bare = |layer: LayerId| {
            let bytes = *context.cost.memory(layer, id);
            let optimizer = if helped { Bytes::ZERO } else { bytes.optimizer };
            LayerMemory { saved: Bytes::ZERO, optimizer, ..bytes }
        };
        let bytes: Vec<LayerMemory> = context.cost.layers().map(bare).collect();
        let unstepped = |times: StageTimes| StageTimes { optimizer: 0.0, ..times };
        let times: Vec<Option<StageTimes>> =
            allowed(context, id, pins).into_iter().map(|times| times.map(unstepped)).collect();
        let free = vec![None; times.len()];
        Self::of((context, id, &Pins::default()), (bytes, times), (free, Vec::new()))
    }

    fn of(
        (context, id, pins): (&Context<'_>, DeviceId, &Pins),
        (bytes, times): (Vec<LayerMemory>, Vec<Option<StageTimes>>),
        (wanted, hosts): (Vec<Option<bool>>, Vec<Host>),
    ) -> Self {
        let (cost, device) = (context.cost, &context.hardware.devices()[id]);
        let memory = &context.hardware.memories()[device.memory];
        let trained = |bytes: &LayerMemory| if bytes.gradients.get() > 0 { bytes.parameters.get() } else { 0 };
        let all = || times.iter().map(|times| times.unwrap_or_default());
        let last = bytes.last().copied().unwrap_or_default();
        let helper = |host: Host| {
            let times = |part: fn(&StageTimes) -> f64| {
                Sums::new(cost.layers().map(|layer| part(&assisted(context, layer, (id, host)))))
            };
            Helper {
                host,
                out: times(|times| times.out),
                step: times(|times| times.step),
                back: times(|times| times.back),
            }
        };
        let helpers: Vec<Helper> = hosts.into_iter().map(helper).collect();
        let allows = |host_offload: HostOffload, layer: usize| {
            let host = helpers
                .get(host_offload.host)
                .map(|helper| helper.host.socket.index())
                .filter(|_| host_offload != HostOffload::NONE);
            let steps = host.filter(|_| host_offload.optimizer).unwrap_or(id.index());
            let training = context.workload().mode == Mode::Train;
            let chosen = pins.allows_step(layer, steps)
                && pins.offload(layer).is_none_or(|wanted| wanted == host_offload.activations)
                && host.is_none_or(|host| pins.allows_host(layer, host));
            // Stages that are helped are not streamed.
            (chosen || !training) && pins.streamed(layer) != Some(true)
        };
        let forbids = |host_offload: &HostOffload| {
            Sums::new(cost.layers().map(|layer| usize::from(!allows(*host_offload, layer.index()))))
        };
        Self {
            name: device.name.clone(),
            memory: device.memory,
            usable: memory.usable().get(),
            is_cpu: context.is_cpu(id),
            forward: Sums::new(all().map(|times| times.forward)),
            backward: Sums::new(all().map(|times| times.backward)),
            optimizer: Sums::new(all().map(|times| times.optimizer)),
            forbidden: HostOffload::of(helpers.len()).iter().map(forbids).collect(),
            streamed: cost.layers().map(|layer| pins.streamed(layer.index())).collect(),
            helpers,
            free: wanted.iter().all(Option::is_none),
            pinned: pins.allows_stages(id.index()),
            without_backward: cost.without_backward(),
            wanted,
            unable: Sums::new(times.iter().map(|times| usize::from(times.is_none()))),
            state: Sums::new(bytes.iter().map(|bytes| bytes.state().get())),
            gradients: Sums::new(bytes.iter().map(|bytes| bytes.gradients.get())),
            trained: Sums::new(bytes.iter().map(trained)),
            parameters: Sums::new(bytes.iter().map(|bytes| bytes.parameters.get())),
            optimizer_state: Sums::new(bytes.iter().map(|bytes| bytes.optimizer.get())),
            saved: Sums::new(bytes.iter().map(|bytes| bytes.saved.get())),
            lent: last.tied_gradients.get(),
            borrowed: (last.tied_parameters + last.tied_gradients).get(),
            workspace: largest(&bytes),
            times,
            bytes,
        }
    }

    /// Whether it can run layers `from..to`.
    pub fn able(&self, from: usize, to: usize) -> bool {
        self.unable.over(from, to) == 0
    }

    /// Times of the stage of layers `from..to` of which the first `recomputed` are recomputed.
    pub fn stage_times(&self, (from, to): (usize, usize), recomputed: usize, host_offload: HostOffload) -> StageTimes {
        let again = if self.returns(to) { recomputed } else { 0 };
        let times = StageTimes {
            forward: self.forward.over(from, to),
            recompute: self.forward.over(from, from + again),
            backward: self.backward.over(from, to),
            ..StageTimes::default()
        };
        match self.helpers.get(host_offload.host).filter(|_| host_offload.optimizer) {
            Some(Helper { out, step, back, .. }) => {
                StageTimes { out: out.over(from, to), step: step.over(from, to), back: back.over(from, to), ..times }
            }
            None => StageTimes { optimizer: self.optimizer.over(from, to), ..times },
        }
    }

    /// Whether layers `from..to` may be in a stage that is helped so.
    pub fn allows(&self, host_offload: HostOffload, from: usize, to: usize) -> bool {
        let position = HostOffload::of(self.helpers.len()).iter().position(|other| *other == host_offload);
        position.is_some_and(|position| self.forbidden[position].over(from, to) == 0)
    }

    /// Whether it does not matter to any layer who helps it and how.
    pub fn is_indifferent(&self) -> bool {
        self.forbidden.iter().all(|forbidden| forbidden.over(0, self.times.len()) == 0)
    }

    /// Who may help it, the nearest first.
    pub fn hosts(&self) -> impl Iterator<Item = Host> {
        self.helpers.iter().map(|helper| helper.host)
    }

    /// Who helps it so, if anybody does.
    pub fn host(&self, host_offload: HostOffload) -> Option<Host> {
        self.helpers.get(host_offload.host).map(|helper| helper.host).filter(|_| host_offload != HostOffload::NONE)
    }

    /// What one microbatch takes through layers `from..to`, and back in training.
    pub fn pass(&self, (from, to): (usize, usize), training: bool) -> f64 {
        self.forward.over(from, to) + if training { self.backward.over(from, to) } else { 0.0 }
    }

    /// Whether a backward runs through a stage that ends before layer `to`.
    pub const fn returns(&self, to: usize) -> bool {
        to > self.without_backward
    }

    /// Bytes of one microbatch of the input of a stage that starts at layer `from`.
    pub fn input(&self, from: usize) -> u64 {
        from.checked_sub(1).map_or(self.bytes[0].input, |before| self.bytes[before].boundary).get()
    }

    /// Parameters, gradients and optimizer state of layers `from..to` that stay on the device.
    pub fn state(&self, from: usize, to: usize, host_offload: Option<HostOffload>) -> u64 {
        let leaves = match host_offload {
            Some(host_offload) => host_offload.optimizer,
            None => !self.helpers.is_empty(),
        };
        self.state.over(from, to) - if leaves { self.optimizer_state.over(from, to) } else { 0 }
    }

    /// What a stage holds because the first and the last layer share parameters and are not both in it.
    pub fn shared(&self, seat: StageSlot) -> u64 {
        match (seat.first, seat.last) {
            (true, false) => self.lent,
            (false, true) => self.borrowed,
            _ => 0,
        }
    }

    /// What [`spipe_plan::footprint`] counts for layers `from..to`, in constant time.
    pub fn need(&self, seat: StageSlot, layers: (usize, usize), recomputed: usize) -> u64 {
        let outer = |end: bool| if end { Boundary::End } else { Boundary::Across };
        let (stays, transient) = self.parts(seat, layers, recomputed, [outer(seat.first), outer(seat.last)]);
        let (leaving, copies) = self.on_the_way(seat, layers, recomputed);
        stays + leaving * copies + transient + self.shared(seat)
    }

    /// What a stage offloads of each microbatch, and how many of these it has on their way at most, in slots that the stages of a device
    /// share.
    pub fn on_the_way(&self, seat: StageSlot, layers: (usize, usize), recomputed: usize) -> (u64, u64) {
        match seat.host_offload {
            Some(host_offload) if host_offload.activations => {
                (self.leaving(layers, recomputed), seat.in_flight.min(OFFLOAD_SLOTS))
            }
            _ => (0, 0),
        }
    }

    /// What of that stays and what is transient, of which only the largest of a device's stages counts, without what stages share and what
    /// is on its way to the host.
    pub fn parts(
        &self,
        seat: StageSlot,
        (from, to): (usize, usize),
        recomputed: usize,
        [before, behind]: [Boundary; 2],
    ) -> (u64, u64) {
        let split = from + recomputed;
        let (input, output) = (self.input(from), self.bytes[to - 1].boundary.get());
        let (returns, passes) = (self.returns(to), self.returns(from));
        let in_flight = if returns { seat.in_flight } else { 1 };
        let slots = if before == Boundary::Across { input * slots_in(passes) } else { 0 }
            + if behind == Boundary::Across { output * slots_out(returns) } else { 0 };
        let leaving = self.leaving((from, to), recomputed);
        let kept = (input + leaving) * in_flight;
        let held = match seat.host_offload {
            Some(host_offload) if host_offload.activations => input * in_flight,
            None if !self.helpers.is_empty() => kept.min(input * in_flight + leaving * in_flight.min(OFFLOAD_SLOTS)),
            _ => kept,
        };
        // Within a device, the gradient that came and the one that goes on, or the output that the next stage reads.
        let handed = if before == Boundary::Within && (passes || !returns) { input } else { 0 }
            + if behind == Boundary::Within { output * if returns { 2 } else { 1 } } else { 0 };
        let transient = self.saved.over(from, split) + self.workspace(from, to) + handed;
        (self.state(from, to, seat.host_offload) + held + slots, transient)
    }

    /// What the stages of all layers hold because the first and the last layer share parameters and are in two of them in one memory.
    pub const fn shared_within(&self) -> u64 {
        self.lent
    }

    /// How many of layers `from..to`, counted from the first, save no more than `bytes`.
    pub fn within(&self, (from, to): (usize, usize), bytes: u64) -> usize {
        let sums = &self.saved.0[from + 1..=to];
        sums.partition_point(|sum| sum - self.saved.0[from] <= bytes)
    }

    /// The largest workspace of layers `from..to`, which two overlapping powers of two cover.
    pub fn workspace(&self, from: usize, to: usize) -> u64 {
        let power = (to - from).ilog2() as usize;
        self.workspace[power][from].max(self.workspace[power][to - (1 << power)])
    }

    /// What one microbatch keeps beside its input, and may leave for the host. Layers without a backward save nothing.
    pub fn leaving(&self, (from, to): (usize, usize), recomputed: usize) -> u64 {
        let (kept, input) = (self.saved.over(from + recomputed, to), self.input(from));
        if recomputed == 0 { kept.saturating_sub(input) } else { kept }
    }

    /// How long what the host does for a stage keeps its ways there busy, in ms per iteration: the busier direction of the link, or
    /// the one stream on which activations leave and return.
    pub fn link_time(
        &self,
        host_offload: HostOffload,
        microbatches: u64,
        (from, to): (usize, usize),
        recomputed: usize,
    ) -> f64 {
        let Some(host) = self.host(host_offload) else { return 0.0 };
        let moved = if host_offload.activations { self.leaving((from, to), recomputed) * microbatches } else { 0 };
        let with = |sums: &Sums<u64>| (moved + if host_offload.optimizer { sums.over(from, to) } else { 0 }) as f64;
        let stream = moved as f64 * (host.out + host.back);
        stream.max(with(&self.gradients) * host.out).max(with(&self.trained) * host.back)
    }

    /// What a stage needs of its host: optimizer state, gradients and parameters in passing, and activations.
    pub fn need_of_host(
        &self,
        seat: StageSlot,
        host_offload: HostOffload,
        (from, to): (usize, usize),
        recomputed: usize,
    ) -> u64 {
        if !self.returns(to) {
            return 0;
        }
        let stepped =
            self.optimizer_state.over(from, to) + self.gradients.over(from, to) + self.parameters.over(from, to);
        let saved = self.leaving((from, to), recomputed) * seat.in_flight;
        (if host_offload.optimizer { stepped } else { 0 }) + (if host_offload.activations { saved } else { 0 })
    }

    /// The least and the largest number of layers of `from..to` that may be recomputed, counted from the first; none if what must
    /// be recomputed is behind what must not.
    pub fn recomputes(&self, training: bool, from: usize, to: usize) -> Option<(usize, usize)> {
        if !training {
            return Some((0, 0));
        }
        if self.free {
            return Some((0, to - from));
        }
        let wanted = &self.wanted[from..to];
        let least = wanted.iter().rposition(|wanted| *wanted == Some(true)).map_or(0, |last| last + 1);
        let most = wanted.iter().position(|wanted| *wanted == Some(false)).unwrap_or(to - from);
        (least <= most).then_some((least, most))
    }

    /// The least number of recomputed layers with which layers `from..to` fit, if any.
    ///
    /// Each recomputed layer trades `in_flight` copies of what it saves for one, so that beyond the first, which adds the
    /// stage's input, the need never grows. The search begins at `near`.
    pub fn least_recompute(
        &self,
        training: bool,
        seat: StageSlot,
        (from, to): (usize, usize),
        near: usize,
    ) -> Option<usize> {
        let fits = |recomputed| self.need(seat, (from, to), recomputed) <= self.usable;
        if !self.able(from, to) {
            return None;
        }
        let (least, most) = self.recomputes(training, from, to)?;
        if fits(least) {
            return Some(least);
        }
        if most == 0 || !fits(most) {
            return None;
        }
        Some(first_near((least.max(1), most), near, fits))
    }
}

/// The sockets that may help a device and can be reached both ways, the nearest first.
fn hosts(context: &Context<'_>, id: DeviceId) -> Vec<Host> {
    let host = |socket: DeviceId| {
        let (out, back) = (p2p(context, id, socket)?, p2p(context, socket, id)?);
        let memory = context.hardware.devices()[socket].memory;
        Some(Host { socket, memory, out: out.per_byte, back: back.per_byte })
    };
    crate::hosts::sockets(context, id).into_iter().map_while(host).collect()
}

/// Gradients to the host, the step there, and parameters back, without latencies.
fn assisted(context: &Context<'_>, layer: LayerId, (id, host): (DeviceId, Host)) -> StageTimes {
    let (cost, bytes) = (context.cost, context.cost.memory(layer, id));
    let parameters = cost.trained_parameters(layer);
    if parameters == 0 || context.workload().mode != Mode::Train {
        return StageTimes::default();
    }
    StageTimes {
        out: bytes.gradients.as_f64() * host.out,
        step: cost.optimizer_time(parameters, host.socket).to_ms(),
        back: bytes.parameters.as_f64() * host.back,
        ..StageTimes::default()
    }
}

/// Times of the layers that pins allow on a device.
fn allowed(context: &Context<'_>, id: DeviceId, pins: &Pins) -> Vec<Option<StageTimes>> {
    let allows = |layer: &LayerId| pins.allows_layer(layer.index(), id.index());
    let layers = context.cost.layers();
    layers.map(|layer| Some(layer).filter(allows).and_then(|layer| layer_times(context, layer, id))).collect()
}

fn layer_times(context: &Context<'_>, layer: LayerId, device: DeviceId) -> Option<StageTimes> {
    let time = context.cost.time(layer, device)?;
    let training = context.workload().mode == Mode::Train;
    let step = context.cost.optimizer_time(context.cost.trained_parameters(layer), device).to_ms();
    Some(StageTimes {
        forward: time.forward.to_ms(),
        backward: time.backward().to_ms(),
        optimizer: if training { step } else { 0.0 },
        ..StageTimes::default()
    })
}

/// The largest workspace of 2^k layers from each one on, by k.
fn largest(bytes: &[LayerMemory]) -> Vec<Vec<u64>> {
    let mut levels: Vec<Vec<u64>> = vec![bytes.iter().map(|bytes| bytes.workspace.get()).collect()];
    for power in 0..bytes.len().max(1).ilog2() as usize {
        let (before, half) = (&levels[power], 1 << power);
        let next = before.iter().zip(&before[half..]).map(|(one, other)| *one.max(other)).collect();
        levels.push(next);
    }
    levels
}

/// Whether two devices compute and hold alike, wherever they are.
pub(crate) fn alike(first: &DeviceSums, second: &DeviceSums) -> bool {
    first.is_cpu == second.is_cpu
        && first.usable == second.usable
        && first.pinned == second.pinned
        && first.times == second.times
        && first.bytes == second.bytes
        && first.forbidden.iter().map(|sums| &sums.0).eq(second.forbidden.iter().map(|sums| &sums.0))
        && first.helpers.len() == second.helpers.len()
        && first
            .helpers
            .iter()
            .zip(&second.helpers)
            .all(|(one, other)| (&one.out.0, &one.step.0, &one.back.0) == (&other.out.0, &other.step.0, &other.back.0))
}
