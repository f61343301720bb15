//! Schedules of PipeOffload from stage times: which one a name stands for, simulated.

use serde::Deserialize;
use spipe_base::{Diagnostic, Faults, SimTime};
use spipe_schedule::{
    StageTimes, bare, bare_offloaded, gis, interleaved, offloaded, one_forward_one_backward, uniform,
};
use spipe_sim::{Iterations, Options, simulate};

/// Devices, the chunks of each, and microbatches.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Shape {
    pub devices: usize,
    pub chunks: usize,
    pub microbatches: usize,
}

/// What devices do.
#[derive(Clone, Copy, Debug)]
pub enum Schedule {
    OneForwardOneBackward,
    Interleaved,
    /// Generalised interleaved, in groups of so many microbatches.
    Gis(usize),
    /// Its building block, one microbatch after the other.
    Uniform,
    /// The same with so many chunks of each device offloaded, and the ratio of an activation's way to and fro over its compute.
    Offloaded(usize, f64),
}

/// What a simulation comes to.
pub struct Simulated {
    /// The time of all devices together, over that in which the busiest computes.
    pub stretch: f64,
    /// Both in ms.
    pub span: f64,
    pub work: f64,
    /// The most activations of one chunk that each device holds.
    pub peaks: Vec<f64>,
}

/// Simulates a schedule whose chunks take `times`.
pub fn simulated(schedule: Schedule, shape: Shape, times: &StageTimes) -> Result<Simulated, Faults> {
    let Shape { devices, chunks, microbatches } = shape;
    if devices == 0 || chunks == 0 || microbatches == 0 {
        return Err(Diagnostic::error("devices, chunks or microbatches are zero").hint("use at least one").into());
    }
    // One stage per device has the chunks of all.
    let whole = StageTimes {
        forward: times.forward * chunks as u64,
        backward_input: times.backward_input * chunks as u64,
        backward_weight: times.backward_weight * chunks as u64,
        ..*times
    };
    let program = match schedule {
        Schedule::OneForwardOneBackward => bare("1f1b", &one_forward_one_backward(devices, microbatches, &[]), &whole)?,
        Schedule::Interleaved => bare("interleaved-1f1b", &interleaved(devices, chunks, microbatches)?, times)?,
        Schedule::Gis(group) => bare("gis", &gis(devices, chunks, microbatches, group)?, times)?,
        Schedule::Uniform => bare("uniform", &uniform(devices, chunks, microbatches)?, times)?,
        Schedule::Offloaded(count, ratio) => {
            let one_way = ratio / 2.0 * (times.forward + times.backward_input + times.backward_weight).to_ms();
            let copy = SimTime::ns((one_way * 1e6).round() as u64);
            bare_offloaded("offloaded", &offloaded([devices, chunks, microbatches], times, count, copy)?, times)?
        }
    };
    let trace = simulate(&program, &Options { iterations: Iterations::One, ..Options::default() }).trace;
    let in_one_stage = if matches!(schedule, Schedule::OneForwardOneBackward) { chunks as f64 } else { 1.0 };
    let peak = |device: &spipe_schedule::Device| {
        let name = &program.memories()[device.memory].name;
        let track = trace.memories.iter().find(|memory| memory.name == *name);
        track.map_or(0.0, |memory| in_one_stage * memory.peak.as_f64() / StageTimes::UNIT.as_f64())
    };
    let peaks = program.devices().iter().map(peak).collect();
    let span = trace.iteration.to_ms();
    let work = (whole.forward + whole.backward_input + whole.backward_weight).to_ms() * microbatches as f64;
    Ok(Simulated { stretch: span / work, span, work, peaks })
}
