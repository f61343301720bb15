//! A stage as the search sees it: its times, its seat in the pipeline, and what the host does for it.

use crate::hosts::MOST_HOSTS;

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
pub(crate) struct HostOffload {
    /// A socket keeps its optimizer state and steps it.
    pub optimizer: bool,
    /// DRAM holds its activations between forward and backward.
    pub activations: bool,
    /// Which of the device's hosts does that, the nearest first; the nearest where nothing is done.
    pub host: usize,
}

impl HostOffload {
    /// Everything that so many hosts can do, nothing first.
    pub const fn of(hosts: usize) -> &'static [Self] {
        let known = if hosts < MOST_HOSTS { hosts } else { MOST_HOSTS };
        Self::ALL.split_at(1 + 3 * known).0
    }

    /// Nothing, everything that the nearest host can do, then the next one.
    const ALL: [Self; 1 + 3 * MOST_HOSTS] = {
        let mut all = [Self { optimizer: false, activations: false, host: 0 }; 1 + 3 * MOST_HOSTS];
        let mut host = 0;
        while host < MOST_HOSTS {
            all[1 + 3 * host] = Self { optimizer: true, activations: false, host };
            all[2 + 3 * host] = Self { optimizer: false, activations: true, host };
            all[3 + 3 * host] = Self { optimizer: true, activations: true, host };
            host += 1;
        }
        all
    };

    /// Nothing.
    pub const NONE: Self = Self::ALL[0];

    /// The step alone, by the nearest host.
    pub const STEP: Self = Self::ALL[1];

    /// The same done by the nearest host.
    pub const fn nearest(self) -> Self {
        Self { host: 0, ..self }
    }

    /// The same without the activations.
    pub const fn without_activations(self) -> Self {
        if self.optimizer { Self { activations: false, ..self } } else { Self::NONE }
    }
}

/// Where a stage stands in the pipeline, as far as its memory depends on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StageSlot {
    pub device: usize,
    pub in_flight: u64,
    pub first: bool,
    pub last: bool,
    /// What the host does for it; undecided, it has the time and the memory of whatever suits it best.
    pub host_offload: Option<HostOffload>,
}

impl StageSlot {
    /// A stage by itself with one microbatch in flight and no help.
    pub fn alone(device: usize) -> Self {
        Self { device, in_flight: 1, first: true, last: true, host_offload: Some(HostOffload::NONE) }
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
