//! A stage as the search sees it: its times, its seat in the pipeline, and what the host does for it.

/// How long one stage takes per microbatch, and its optimizer per iteration, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StageTimes {
    pub forward: f64,
    pub recompute: f64,
    pub backward: f64,
    /// The step on the stage's own device, or …
    pub optimizer: f64,
    /// … gradients to the host,
    pub out: f64,
    /// the step there,
    pub step: f64,
    /// and parameters back, without latencies.
    pub back: f64,
}

impl StageTimes {
    /// What one microbatch occupies the device for.
    pub fn busy(&self) -> f64 {
        self.forward + self.recompute + self.backward
    }

    /// From the last backward to the next forward.
    pub fn stepped(&self) -> f64 {
        self.optimizer + self.out + self.step + self.back
    }
}

/// What the host does for a stage on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Help {
    /// The socket near it keeps its optimizer state and steps it.
    pub optimizer: bool,
    /// The DRAM near it holds its activations between forward and backward.
    pub activations: bool,
}

impl Help {
    /// Everything that the host can do, nothing first.
    pub const ALL: [Self; 4] = [
        Self { optimizer: false, activations: false },
        Self { optimizer: true, activations: false },
        Self { optimizer: false, activations: true },
        Self { optimizer: true, activations: true },
    ];
}

/// Where a stage stands in the pipeline, as far as its memory depends on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seat {
    pub device: usize,
    pub in_flight: u64,
    pub first: bool,
    pub last: bool,
    /// What the host does for it; undecided, it has the time and the memory of whatever suits it best.
    pub help: Option<Help>,
}

impl Seat {
    /// A stage by itself with one microbatch in flight and no help.
    pub fn alone(device: usize) -> Self {
        Self { device, in_flight: 1, first: true, last: true, help: Some(Help::default()) }
    }
}

/// Slots for inputs of a stage that is not the first: one more input arriving, and where it passes a gradient on two of those leaving.
pub(crate) const fn slots_in(passes: bool) -> u64 {
    if passes { 3 } else { 1 }
}

/// Slots for outputs of a stage that is not the last: two outputs leaving, and where a gradient returns two of those arriving.
pub(crate) const fn slots_out(returns: bool) -> u64 {
    if returns { 4 } else { 2 }
}
