//! A stage as the search sees it: its times, its slot in the pipeline, and its host offload.

use crate::hosts::MOST_HOSTS;

/// The times of a stage, in ms: passes per microbatch, the optimizer step per iteration.
///
/// The optimizer step is either `optimizer` alone, or `out`, `step` and `back`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StageTimes {
    pub forward: f64,
    pub recompute: f64,
    pub backward: f64,
    /// The optimizer step on the stage's own device.
    pub optimizer: f64,
    /// The copy of gradients to the host, without latency.
    pub out: f64,
    /// The optimizer step on the host.
    pub step: f64,
    /// The copy of parameters back to the device, without latency.
    pub back: f64,
}

impl StageTimes {
    /// The time for which one microbatch occupies the device, in ms.
    pub fn busy(&self) -> f64 {
        self.forward + self.recompute + self.backward
    }

    /// The time from the last backward to the next forward, in ms.
    pub fn stepped(&self) -> f64 {
        self.optimizer + self.out + self.step + self.back
    }
}

/// The host offload of a stage on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostOffload {
    /// Whether a socket holds the optimizer state and runs the optimizer step.
    pub optimizer: bool,
    /// Whether DRAM holds the activations between forward and backward.
    pub activations: bool,
    /// The index of the host among those of the device, the nearest first; 0 without an offload.
    pub host: usize,
}

impl HostOffload {
    /// The offloads to `hosts` hosts, none first.
    pub const fn of(hosts: usize) -> &'static [Self] {
        let known = if hosts < MOST_HOSTS { hosts } else { MOST_HOSTS };
        Self::ALL.split_at(1 + 3 * known).0
    }

    /// No offload, the three offloads to the nearest host, those to the next one, and so on.
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

    /// No offload.
    pub const NONE: Self = Self::ALL[0];

    /// The optimizer alone, on the nearest host.
    pub const STEP: Self = Self::ALL[1];

    /// The same offload to the nearest host.
    pub const fn nearest(self) -> Self {
        Self { host: 0, ..self }
    }

    /// The same offload without the activations.
    pub const fn without_activations(self) -> Self {
        if self.optimizer { Self { activations: false, ..self } } else { Self::NONE }
    }
}

/// The slot of a stage in the pipeline: everything beside its layers on which its memory depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StageSlot {
    pub device: usize,
    pub in_flight: u64,
    pub first: bool,
    pub last: bool,
    /// Its host offload. `None` is undecided: the stage then counts with the time and the memory of
    /// whichever suits it best.
    pub host_offload: Option<HostOffload>,
}

impl StageSlot {
    /// The slot of a stage of its own, with one microbatch in flight and no host offload.
    pub fn alone(device: usize) -> Self {
        Self { device, in_flight: 1, first: true, last: true, host_offload: Some(HostOffload::NONE) }
    }
}

/// The buffers for inputs of a stage after another one: one arriving input, and two leaving
/// gradients if the stage passes a gradient on.
pub(crate) const fn slots_in(passes: bool) -> u64 {
    if passes { 3 } else { 1 }
}

/// The buffers for outputs of a stage before another one: two leaving outputs, and two arriving
/// gradients if a gradient returns.
pub(crate) const fn slots_out(returns: bool) -> u64 {
    if returns { 4 } else { 2 }
}
