//! The cost table laid out for search: sums over any range of layers in constant time.

use spipe_base::{DeviceId, LayerId, LinkId, MemoryId};
use spipe_cost::{LayerMemory, Mode};
use spipe_plan::Context;

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

/// How long one stage takes per microbatch, and its optimizer per iteration, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StageTimes {
    pub forward: f64,
    pub recompute: f64,
    pub backward: f64,
    pub optimizer: f64,
}

impl StageTimes {
    /// What one microbatch occupies the device for.
    pub fn busy(&self) -> f64 {
        self.forward + self.recompute + self.backward
    }
}

/// Where a stage stands in the pipeline, as far as its memory depends on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seat {
    pub device: usize,
    pub in_flight: u64,
    pub first: bool,
    pub last: bool,
}

#[cfg(test)]
impl Seat {
    /// What [`spipe_plan::stage_footprint`] takes.
    pub fn boundaries(self) -> [spipe_plan::Boundary; 2] {
        [self.first, self.last].map(|end| if end { spipe_plan::Boundary::End } else { spipe_plan::Boundary::Across })
    }
}

/// One device's times and bytes.
pub(crate) struct DeviceFigures {
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
    unable: Sums<usize>,
    state: Sums<u64>,
    saved: Sums<u64>,
    /// The largest workspace of layers a..=b at `a × layers + b`.
    workspace: Vec<u64>,
}

impl DeviceFigures {
    fn new(context: &Context<'_>, id: DeviceId) -> Self {
        let (cost, device) = (context.cost, &context.hardware.devices()[id]);
        let memory = &context.hardware.memories()[device.memory];
        let bytes: Vec<LayerMemory> = cost.layers().map(|layer| *cost.memory(layer, id)).collect();
        let times: Vec<Option<StageTimes>> = cost.layers().map(|layer| layer_times(context, layer, id)).collect();
        let all = || times.iter().map(|times| times.unwrap_or_default());
        Self {
            name: device.name.clone(),
            memory: device.memory,
            usable: memory.capacity.saturating_sub(memory.reserved).get(),
            is_cpu: context.is_cpu(id),
            forward: Sums::new(all().map(|times| times.forward)),
            backward: Sums::new(all().map(|times| times.backward)),
            optimizer: Sums::new(all().map(|times| times.optimizer)),
            unable: Sums::new(times.iter().map(|times| usize::from(times.is_none()))),
            state: Sums::new(bytes.iter().map(|bytes| bytes.state().get())),
            saved: Sums::new(bytes.iter().map(|bytes| bytes.saved.get())),
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
    pub fn stage_times(&self, from: usize, to: usize, recomputed: usize) -> StageTimes {
        StageTimes {
            forward: self.forward.over(from, to),
            recompute: self.forward.over(from, from + recomputed),
            backward: self.backward.over(from, to),
            optimizer: self.optimizer.over(from, to),
        }
    }

    /// Bytes of one microbatch of the input of a stage that starts at layer `from`.
    pub fn input(&self, from: usize) -> u64 {
        from.checked_sub(1).map_or(self.bytes[0].input, |before| self.bytes[before].boundary).get()
    }

    /// Parameters, gradients and optimizer state of layers `from..to`.
    pub fn state(&self, from: usize, to: usize) -> u64 {
        self.state.over(from, to)
    }

    /// What [`spipe_plan::stage_footprint`] counts for layers `from..to`, in constant time.
    pub fn need(&self, training: bool, seat: Seat, (from, to): (usize, usize), recomputed: usize) -> u64 {
        let split = from + recomputed;
        let (input, output) = (self.input(from), self.bytes[to - 1].boundary.get());
        let kept = self.saved.over(split, to);
        let per_microbatch = if recomputed == 0 { kept.max(input) } else { kept + input };
        let in_flight = if training { seat.in_flight } else { 1 };
        let workspace = self.workspace[from * self.bytes.len() + to - 1];
        let slots = if seat.first { 0 } else { input * slots_in(training) }
            + if seat.last { 0 } else { output * slots_out(training) };
        self.state(from, to) + per_microbatch * in_flight + slots + self.saved.over(from, split) + workspace
    }

    /// The least number of recomputed layers with which layers `from..to` fit, if any.
    ///
    /// Each recomputed layer trades `in_flight` copies of what it saves for one, so that beyond the first, which adds the
    /// stage's input, the need never grows.
    pub fn least_recompute(&self, training: bool, seat: Seat, from: usize, to: usize) -> Option<usize> {
        let fits = |recomputed| self.need(training, seat, (from, to), recomputed) <= self.usable;
        if !self.able(from, to) {
            return None;
        }
        if fits(0) {
            return Some(0);
        }
        if !training || !fits(to - from) {
            return None;
        }
        let (mut low, mut high) = (1, to - from);
        while low < high {
            let middle = low.midpoint(high);
            if fits(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Some(low)
    }
}

/// Slots for inputs of a stage that is not the first: one more input arriving, and two gradients leaving.
pub(crate) const fn slots_in(training: bool) -> u64 {
    if training { 3 } else { 1 }
}

/// Slots for outputs of a stage that is not the last: two outputs leaving, and two gradients arriving.
pub(crate) const fn slots_out(training: bool) -> u64 {
    if training { 4 } else { 2 }
}

fn layer_times(context: &Context<'_>, layer: LayerId, device: DeviceId) -> Option<StageTimes> {
    let time = context.cost.time(layer, device)?;
    let training = context.workload().mode == Mode::Train;
    let step = context.cost.optimizer_time(context.cost.trained_parameters(layer), device).to_ms();
    Some(StageTimes {
        forward: time.forward.to_ms(),
        recompute: 0.0,
        backward: time.backward().to_ms(),
        optimizer: if training { step } else { 0.0 },
    })
}

fn largest(bytes: &[LayerMemory]) -> Vec<u64> {
    let layers = bytes.len();
    let mut table = vec![0; layers * layers];
    for from in 0..layers {
        let mut most = 0;
        for to in from..layers {
            most = bytes[to].workspace.get().max(most);
            table[from * layers + to] = most;
        }
    }
    table
}

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
    pub layers: usize,
    pub microbatches: u64,
    pub training: bool,
    /// By device.
    pub devices: Vec<DeviceFigures>,
    /// By device from and device to; none where they are not connected both ways.
    hops: Vec<Vec<Option<Hop>>>,
    /// Consecutive layers that cost the same: first layer and count.
    pub runs: Vec<(usize, usize)>,
}

impl<'a> Figures<'a> {
    pub fn new(context: Context<'a>) -> Self {
        let cost = context.cost;
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for layer in cost.layers() {
            match runs.last_mut() {
                Some((first, count)) if cost.kind(LayerId::from(*first)) == cost.kind(layer) => *count += 1,
                _ => runs.push((layer.index(), 1)),
            }
        }
        Self {
            context,
            layers: cost.layers().len(),
            microbatches: context.workload().microbatches,
            training: context.workload().mode == Mode::Train,
            devices: cost.devices().map(|device| DeviceFigures::new(&context, device)).collect(),
            hops: cost.devices().map(|from| cost.devices().map(|to| hop(&context, from, to)).collect()).collect(),
            runs,
        }
    }

    /// The copy between two devices, if they are connected both ways.
    pub fn hop(&self, from: usize, to: usize) -> Option<&Hop> {
        self.hops[from][to].as_ref()
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
