//! Helpers for tests of schedules.

use spipe_base::{Seconds, SimTime};
use spipe_schedule::{Order, StageTimes, bare};
use spipe_sim::{Iterations, Options, simulate};
use spipe_trace::Trace;

pub fn ms(milliseconds: f64) -> SimTime {
    SimTime::from_seconds(Seconds::ms(milliseconds))
}

/// Stage times in milliseconds. The whole activation is held until the backward-weight.
pub fn times(forward: f64, input: f64, weight: f64, latency: f64) -> StageTimes {
    StageTimes {
        forward: ms(forward),
        backward_input: ms(input),
        backward_weight: ms(weight),
        latency: ms(latency),
        weight_gradient_memory: StageTimes::UNIT.get(),
    }
}

/// One iteration from an idle machine.
pub fn run(order: &Order, times: &StageTimes) -> Trace {
    let program = bare("test", order, times).unwrap();
    let simulation = simulate(&program, &Options { iterations: Iterations::One, ..Options::default() });
    assert!(simulation.steady && spipe_sim::is_ok(&simulation));
    simulation.trace
}

/// The peak activations of each device.
pub fn peaks(trace: &Trace) -> Vec<f64> {
    trace.memories.iter().map(|memory| memory.peak.as_f64() / StageTimes::UNIT.as_f64()).collect()
}

/// The longest time of one device from its first start to its last end: the cost in the Zero Bubble
/// paper.
pub fn makespan(trace: &Trace) -> SimTime {
    trace
        .spans
        .chunk_by(|left, right| left.lane == right.lane)
        .map(|spans| spans[spans.len() - 1].end - spans[0].start)
        .max()
        .unwrap()
}

/// A row of Qi et al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241), Table 9, in
/// milliseconds, with heads and hidden size of its model (Table 3).
#[derive(Debug)]
pub struct Profile {
    pub devices: usize,
    pub microbatches: usize,
    pub forward: f64,
    pub input: f64,
    pub weight: f64,
    pub latency: f64,
    pub heads: f64,
    pub hidden: f64,
}

impl Profile {
    const fn new(devices: usize, microbatches: usize, times: [f64; 4], heads: f64, hidden: f64) -> Self {
        let [forward, input, weight, latency] = times;
        Self { devices, microbatches, forward, input, weight, latency, heads, hidden }
    }

    pub fn times(&self) -> StageTimes {
        times(self.forward, self.input, self.weight, self.latency)
    }

    /// The share of an activation that the weight gradient needs: M_W/M_B = 32h/(34h + 5as),
    /// sequences of 1024 tokens.
    pub fn weight_share(&self) -> f64 {
        32.0 * self.hidden / (34.0 * self.hidden + 5.0 * self.heads * 1024.0)
    }
}

pub const ZERO_BUBBLE_PROFILES: [Profile; 6] = [
    Profile::new(8, 24, [18.522, 18.086, 9.337, 0.601], 24.0, 2304.0),
    Profile::new(8, 32, [18.513, 18.086, 9.331, 0.626], 24.0, 2304.0),
    Profile::new(8, 64, [18.546, 18.097, 9.321, 0.762], 24.0, 2304.0),
    Profile::new(16, 48, [11.347, 11.248, 8.132, 0.377], 40.0, 5120.0),
    Profile::new(16, 64, [11.307, 11.254, 8.101, 0.379], 40.0, 5120.0),
    Profile::new(16, 128, [11.325, 11.308, 8.109, 0.378], 40.0, 5120.0),
];

/// (cost − m·ΣT) ÷ cost of one stage per device with the times of `profile`.
pub fn rate(order: &Order, profile: &Profile) -> f64 {
    let cost = makespan(&run(order, &profile.times())).to_ms();
    1.0 - profile.microbatches as f64 * (profile.forward + profile.input + profile.weight) / cost
}
