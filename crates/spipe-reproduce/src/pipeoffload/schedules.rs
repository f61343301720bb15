//! PipeOffload's schedules, simulated from stage times.

use serde::Deserialize;
use spipe_base::{Diagnostic, Faults, SimTime};
use spipe_schedule::{
    StageTimes, bare, bare_offloaded, gis, interleaved, offloaded, one_forward_one_backward, uniform,
};
use spipe_sim::{Iterations, Options, simulate};

/// The shape of a schedule: devices, chunks per device, microbatches.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Shape {
    pub devices: usize,
    pub chunks: usize,
    pub microbatches: usize,
}

/// A schedule.
#[derive(Clone, Copy, Debug)]
pub enum Schedule {
    /// 1F1B.
    OneForwardOneBackward,
    /// Interleaved 1F1B.
    Interleaved,
    /// Generalised interleaved, with this number of microbatches in a group.
    Gis(usize),
    /// The building block of generalised interleaved: one microbatch after the other.
    Uniform,
    /// The same with activations offloaded: the number of such chunks per device, and the ratio k.
    Offloaded(usize, f64),
}

/// The result of a simulation.
pub struct Simulated {
    /// The makespan over the computing time of one device.
    pub stretch: f64,
    /// The makespan, in ms.
    pub span: f64,
    /// The computing time of one device, in ms.
    pub work: f64,
    /// The peak of each device, in activations of one microbatch of one chunk.
    pub peaks: Vec<f64>,
}

/// Simulates a schedule whose chunks take `times`.
pub fn simulated(schedule: Schedule, shape: Shape, times: &StageTimes) -> Result<Simulated, Faults> {
    let Shape { devices, chunks, microbatches } = shape;
    if devices == 0 || chunks == 0 || microbatches == 0 {
        return Err(Diagnostic::error("devices, chunks or microbatches are zero").hint("use at least one").into());
    }
    // With one stage per device, a stage is all chunks of the device.
    let whole = StageTimes {
        forward: times.forward * chunks as u64,
        backward_input: times.backward_input * chunks as u64,
        backward_weight: times.backward_weight * chunks as u64,
        ..*times
    };
    let program = match schedule {
        Schedule::OneForwardOneBackward => bare("1f1b", &one_forward_one_backward(devices, microbatches, &[]), &whole)?,
        Schedule::Interleaved => bare("interleaved-1f1b", &interleaved(devices, chunks, microbatches, None)?, times)?,
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
