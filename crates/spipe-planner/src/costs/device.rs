//! The prefix sums of one device: times and bytes of any range of its layers.

use crate::costs::{HostOffload, StageSlot, StageTimes, p2p, slots_in, slots_out};
use crate::{bisect::first_near, problem::pins::Pins};
use spipe_base::{DeviceId, LayerId, MemoryId};
use spipe_cost::{LayerMemory, Mode};
use spipe_plan::{Boundary, Context, OFFLOAD_SLOTS};

/// The sums of the first 0, 1, 2, … items of a list.
#[derive(PartialEq)]
struct Sums<T>(Vec<T>);

impl<T: Copy + Default + std::ops::Add<Output = T> + std::ops::Sub<Output = T>> Sums<T> {
    fn new(items: impl Iterator<Item = T>) -> Self {
        let mut sums = vec![T::default()];
        for item in items {
            sums.push(sums[sums.len() - 1] + item);
        }
        Self(sums)
    }

    /// The sum of items `from..to`.
    fn over(&self, from: usize, to: usize) -> T {
        self.0[to] - self.0[from]
    }
}

/// A socket with its DRAM, as seen by a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Host {
    pub socket: DeviceId,
    pub memory: MemoryId,
    /// The times to it and back, in ms per byte.
    pub out: f64,
    pub back: f64,
}

/// A host to which a GPU may offload its optimizer, with the prefix sums of all layers' times in
/// ms: gradients out, the optimizer step there, and parameters back.
struct Helper {
    host: Host,
    out: Sums<f64>,
    step: Sums<f64>,
    back: Sums<f64>,
}

impl Helper {
    fn times(&self) -> [&Sums<f64>; 3] {
        [&self.out, &self.step, &self.back]
    }
}

/// The times and bytes of all layers on one device.
pub(crate) struct DeviceSums {
    pub memory: MemoryId,
    /// The usable bytes of its memory.
    pub usable: u64,
    pub is_cpu: bool,
    /// The times of each layer in ms, with an optimizer step on the device; `None` where the layer
    /// cannot run or a pin forbids it.
    pub times: Vec<Option<StageTimes>>,
    pub bytes: Vec<LayerMemory>,
    forward: Sums<f64>,
    backward: Sums<f64>,
    optimizer: Sums<f64>,
    /// By layer: whether a pin demands that it is recomputed, or that it is not.
    wanted: Vec<Option<bool>>,
    /// Whether no layer has such a pin.
    free: bool,
    /// By pinned stage: whether it may be on this device.
    pinned: Vec<bool>,
    /// For each host offload, none first: prefix counts of the layers whose pins forbid it.
    forbidden: Vec<Sums<usize>>,
    /// By layer: whether a pin demands that its parameters are streamed, or that they stay.
    pub streamed: Vec<Option<bool>>,
    /// The number of layers at the front without a backward: all of them in inference.
    without_backward: usize,
    /// The hosts to which it may offload, the nearest first.
    helpers: Vec<Helper>,
    unable: Sums<usize>,
    state: Sums<u64>,
    optimizer_state: Sums<u64>,
    /// Gradients, and the parameters that a step changes.
    gradients: Sums<u64>,
    updated: Sums<u64>,
    saved: Sums<u64>,
    /// Additional bytes where the first and the last layer share parameters and are in different
    /// stages: `lent` in the stage of the first layer, for the gradients from the last one, and
    /// `borrowed` in the stage of the last layer, for these and a copy of the parameters.
    lent: u64,
    borrowed: u64,
    /// The largest workspace of layers `i..i + 2^k`, by k and i.
    workspace: Vec<Vec<u64>>,
}

impl DeviceSums {
    pub fn new(context: &Context<'_>, id: DeviceId, pins: &Pins) -> Self {
        let cost = context.cost;
        let bytes: Vec<LayerMemory> = cost.layers().map(|layer| *cost.memory(layer, id)).collect();
        let times = allowed(context, id, pins);
        let wanted: Vec<Option<bool>> = cost.layers().map(|layer| pins.recompute(layer.index())).collect();
        let device = &context.hardware.devices()[id];
        let memory = &context.hardware.memories()[device.memory];
        let all = || times.iter().map(|times| times.unwrap_or_default());
        let last = bytes.last().copied().unwrap_or_default();
        let helper = |host: Host| {
            let times = |part: fn(&StageTimes) -> f64| {
                Sums::new(cost.layers().map(|layer| part(&assisted(context, layer, (id, host)))))
            };
            let (out, step) = (times(|times| times.out), times(|times| times.step));
            Helper { host, out, step, back: times(|times| times.back) }
        };
        let helpers: Vec<Helper> = hosts(context, id).into_iter().map(helper).collect();
        let allows = |host_offload: HostOffload, layer: usize| {
            let helper = helpers.get(host_offload.host).filter(|_| host_offload != HostOffload::NONE);
            let host = helper.map(|helper| helper.host.socket.index());
            let steps = host.filter(|_| host_offload.optimizer).unwrap_or(id.index());
            let training = context.workload().mode == Mode::Train;
            let chosen = pins.allows_step(layer, steps)
                && pins.offload(layer).is_none_or(|wanted| wanted == host_offload.activations)
                && host.is_none_or(|host| pins.allows_host(layer, host));
            // These stages keep their parameters, so that no layer pinned as streamed is in one.
            (chosen || !training) && pins.streamed(layer) != Some(true)
        };
        let forbids = |host_offload: &HostOffload| {
            Sums::new(cost.layers().map(|layer| usize::from(!allows(*host_offload, layer.index()))))
        };
        Self {
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
            updated: Sums::new(bytes.iter().map(|bytes| bytes.updated.get())),
            optimizer_state: Sums::new(bytes.iter().map(|bytes| bytes.optimizer.get())),
            saved: Sums::new(bytes.iter().map(|bytes| bytes.saved.get())),
            lent: last.tied_gradients.get(),
            borrowed: (last.tied_parameters + last.tied_gradients).get(),
            workspace: largest(&bytes),
            times,
            bytes,
        }
    }

    /// Whether the device can run layers `from..to`.
    pub fn able(&self, from: usize, to: usize) -> bool {
        self.unable.over(from, to) == 0
    }

    /// The times of a stage of layers `from..to`, the first `recomputed` of which are recomputed.
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

    /// Whether pins allow a stage of layers `from..to` with this host offload.
    pub fn allows(&self, host_offload: HostOffload, from: usize, to: usize) -> bool {
        let position = HostOffload::of(self.helpers.len()).iter().position(|other| *other == host_offload);
        position.is_some_and(|position| self.forbidden[position].over(from, to) == 0)
    }

    /// Whether pins leave all host offloads open for all layers.
    pub fn is_indifferent(&self) -> bool {
        self.forbidden.iter().all(|forbidden| forbidden.over(0, self.times.len()) == 0)
    }

    /// The hosts to which it may offload, the nearest first.
    pub fn hosts(&self) -> impl Iterator<Item = Host> {
        self.helpers.iter().map(|helper| helper.host)
    }

    /// The host of a host offload; `None` without one.
    pub fn host(&self, host_offload: HostOffload) -> Option<Host> {
        self.helpers.get(host_offload.host).map(|helper| helper.host).filter(|_| host_offload != HostOffload::NONE)
    }

    /// The time of one microbatch's forward through layers `from..to`, and of its backward in
    /// training, in ms.
    pub fn pass(&self, (from, to): (usize, usize), training: bool) -> f64 {
        self.forward.over(from, to) + if training { self.backward.over(from, to) } else { 0.0 }
    }

    /// Whether a stage that ends before layer `to` has a backward.
    pub const fn returns(&self, to: usize) -> bool {
        to > self.without_backward
    }

    /// The bytes of one microbatch of the input of layer `from`.
    pub fn input(&self, from: usize) -> u64 {
        from.checked_sub(1).map_or(self.bytes[0].input, |before| self.bytes[before].boundary).get()
    }

    /// The bytes of parameters, gradients and optimizer state of layers `from..to` on the device.
    /// An undecided host offload counts without optimizer state if there is a host.
    pub fn state(&self, from: usize, to: usize, host_offload: Option<HostOffload>) -> u64 {
        let leaves = match host_offload {
            Some(host_offload) => host_offload.optimizer,
            None => !self.helpers.is_empty(),
        };
        self.state.over(from, to) - if leaves { self.optimizer_state.over(from, to) } else { 0 }
    }

    /// The additional bytes of a stage that has the first or the last layer of the model, but not
    /// both, if these share parameters.
    pub fn shared(&self, stage_slot: StageSlot) -> u64 {
        match (stage_slot.first, stage_slot.last) {
            (true, false) => self.lent,
            (false, true) => self.borrowed,
            _ => 0,
        }
    }

    /// The bytes that a stage of layers `from..to` needs on its device: the count of
    /// [`spipe_plan::footprint`], in constant time.
    pub fn need(&self, stage_slot: StageSlot, layers: (usize, usize), recomputed: usize) -> u64 {
        let outer = |end: bool| if end { Boundary::End } else { Boundary::Across };
        let (stays, transient) =
            self.parts(stage_slot, layers, recomputed, [outer(stage_slot.first), outer(stage_slot.last)]);
        let (leaving, copies) = self.on_the_way(stage_slot, layers, recomputed);
        stays + leaving * copies + transient + self.shared(stage_slot)
    }

    /// The bytes that a stage offloads per microbatch, and the most microbatches of it that are
    /// being copied. The stages of a device share these copy slots.
    pub fn on_the_way(&self, stage_slot: StageSlot, layers: (usize, usize), recomputed: usize) -> (u64, u64) {
        match stage_slot.host_offload {
            Some(host_offload) if host_offload.activations => {
                (self.leaving(layers, recomputed), stage_slot.in_flight.min(OFFLOAD_SLOTS))
            }
            _ => (0, 0),
        }
    }

    /// The persistent and the transient bytes of a stage. Persistent bytes of a device's stages add
    /// up; of transient bytes only the largest counts. Tied parameters and offload slots come on
    /// top.
    pub fn parts(
        &self,
        stage_slot: StageSlot,
        (from, to): (usize, usize),
        recomputed: usize,
        [before, behind]: [Boundary; 2],
    ) -> (u64, u64) {
        let split = from + recomputed;
        let (input, output) = (self.input(from), self.bytes[to - 1].boundary.get());
        let (returns, passes) = (self.returns(to), self.returns(from));
        let in_flight = if returns { stage_slot.in_flight } else { 1 };
        let slots = if before == Boundary::Across { input * slots_in(passes) } else { 0 }
            + if behind == Boundary::Across { output * slots_out(returns) } else { 0 };
        let leaving = self.leaving((from, to), recomputed);
        let kept = (input + leaving) * in_flight;
        let held = match stage_slot.host_offload {
            Some(host_offload) if host_offload.activations => input * in_flight,
            None if !self.helpers.is_empty() => kept.min(input * in_flight + leaving * in_flight.min(OFFLOAD_SLOTS)),
            _ => kept,
        };
        // Within a device: the arrived gradient and the one that goes on, or the output that the
        // next stage reads.
        let handed = if before == Boundary::Within && (passes || !returns) { input } else { 0 }
            + if behind == Boundary::Within { output * if returns { 2 } else { 1 } } else { 0 };
        let transient = self.saved.over(from, split) + self.workspace(from, to) + handed;
        (self.state(from, to, stage_slot.host_offload) + held + slots, transient)
    }

    /// The additional bytes of a device that has all layers in several stages, if the first and the
    /// last layer share parameters.
    pub const fn shared_within(&self) -> u64 {
        self.lent
    }

    /// The most layers at the front of `from..to` that together save at most `bytes` per
    /// microbatch.
    pub fn within(&self, (from, to): (usize, usize), bytes: u64) -> usize {
        let sums = &self.saved.0[from + 1..=to];
        sums.partition_point(|sum| sum - self.saved.0[from] <= bytes)
    }

    /// The largest workspace of layers `from..to`, in bytes. Two overlapping powers of two cover
    /// the range.
    pub fn workspace(&self, from: usize, to: usize) -> u64 {
        let power = (to - from).ilog2() as usize;
        self.workspace[power][from].max(self.workspace[power][to - (1 << power)])
    }

    /// The bytes that one microbatch saves beside the stage's input, all of which may be offloaded.
    /// Layers without a backward save nothing.
    pub fn leaving(&self, (from, to): (usize, usize), recomputed: usize) -> u64 {
        let (kept, input) = (self.saved.over(from + recomputed, to), self.input(from));
        if recomputed == 0 { kept.saturating_sub(input) } else { kept }
    }

    /// The time for which a host offload occupies the link to the host, in ms per iteration: the
    /// larger of the two directions, or the one stream on which activations go out and come back.
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
        stream.max(with(&self.gradients) * host.out).max(with(&self.updated) * host.back)
    }

    /// The bytes that a stage needs on its host: optimizer state, with transient gradients and
    /// parameters, and activations.
    pub fn need_of_host(
        &self,
        stage_slot: StageSlot,
        host_offload: HostOffload,
        (from, to): (usize, usize),
        recomputed: usize,
    ) -> u64 {
        if !self.returns(to) {
            return 0;
        }
        let stepped = self.optimizer_state.over(from, to) + self.gradients.over(from, to) + self.updated.over(from, to);
        let saved = self.leaving((from, to), recomputed) * stage_slot.in_flight;
        (if host_offload.optimizer { stepped } else { 0 }) + (if host_offload.activations { saved } else { 0 })
    }

    /// The least and the largest number of recomputed layers of a stage of layers `from..to`;
    /// `None` if a layer that must be recomputed comes after one that must not.
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

    /// The least number of recomputed layers with which layers `from..to` fit; `None` if none does.
    ///
    /// Each recomputed layer trades `in_flight` copies of its activations for one. Beyond the first
    /// recomputed layer, which adds the stage's input, the need never grows, so bisection applies;
    /// it starts at `near`.
    pub fn least_recompute(
        &self,
        training: bool,
        stage_slot: StageSlot,
        (from, to): (usize, usize),
        near: usize,
    ) -> Option<usize> {
        let fits = |recomputed| self.need(stage_slot, (from, to), recomputed) <= self.usable;
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

/// The sockets to which a device may offload, the nearest first, up to the first one that is not
/// connected in both directions.
fn hosts(context: &Context<'_>, id: DeviceId) -> Vec<Host> {
    let host = |socket: DeviceId| {
        let (out, back) = (p2p(context, id, socket)?, p2p(context, socket, id)?);
        let memory = context.hardware.devices()[socket].memory;
        Some(Host { socket, memory, out: out.per_byte, back: back.per_byte })
    };
    crate::hosts::sockets(context, id).into_iter().map_while(host).collect()
}

/// The times of an offloaded optimizer step in ms, without latencies: gradients to the host, the
/// step there, and parameters back.
fn assisted(context: &Context<'_>, layer: LayerId, (id, host): (DeviceId, Host)) -> StageTimes {
    let (cost, bytes) = (context.cost, context.cost.memory(layer, id));
    let parameters = cost.trained_parameters(layer);
    if parameters == 0 || context.workload().mode != Mode::Train {
        return StageTimes::default();
    }
    StageTimes {
        out: bytes.gradients.as_f64() * host.out,
        step: cost.optimizer_time(parameters, host.socket).to_ms(),
        back: bytes.updated.as_f64() * host.back,
        ..StageTimes::default()
    }
}

/// The times of the layers on a device; `None` where a pin forbids the device.
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

/// Returns the largest workspace of layers `i..i + 2^k`, by k and i.
fn largest(bytes: &[LayerMemory]) -> Vec<Vec<u64>> {
    let mut levels: Vec<Vec<u64>> = vec![bytes.iter().map(|bytes| bytes.workspace.get()).collect()];
    for power in 0..bytes.len().max(1).ilog2() as usize {
        let (before, half) = (&levels[power], 1 << power);
        let next = before.iter().zip(&before[half..]).map(|(one, other)| *one.max(other)).collect();
        levels.push(next);
    }
    levels
}

/// Whether two devices have equal times, bytes, pins and hosts, wherever they are.
pub(crate) fn alike(first: &DeviceSums, second: &DeviceSums) -> bool {
    first.is_cpu == second.is_cpu
        && first.usable == second.usable
        && first.pinned == second.pinned
        && first.times == second.times
        && first.bytes == second.bytes
        && first.forbidden == second.forbidden
        && first.helpers.iter().map(Helper::times).eq(second.helpers.iter().map(Helper::times))
}
