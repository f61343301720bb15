//! Peak memory and bubbles of PipeOffload's schedules at unit times. Memory counts activations of
//! one microbatch of one chunk.

use super::schedules::{Schedule, Shape, simulated};
use crate::{
    reproduction::{Cell, Reproduction},
    rows::{Rows, above_zero},
    source::Source,
};
use serde::Deserialize;
use spipe_base::{Diagnostic, Faults, SimTime};
use spipe_schedule::StageTimes;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Golden {
    shape: Shape,
    /// Microbatches that pass a chunk together (generalised interleaved); without it, one passes at
    /// a time.
    #[serde(default)]
    group: Option<usize>,
    /// Chunks of each device whose activations are offloaded.
    #[serde(default)]
    offloaded: Option<usize>,
    /// The ratio k: the time of both copies over the time to compute.
    #[serde(default)]
    ratio: Option<f64>,
    published: PublishedPeak,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PublishedPeak {
    /// One peak for all devices, or one for each.
    peaks: Vec<f64>,
    /// Idle time of a device, where it is stated.
    #[serde(default)]
    bubble: Option<f64>,
}

impl Golden {
    fn schedule(&self) -> Result<Schedule, Diagnostic> {
        match (self.group, self.offloaded, self.ratio) {
            (Some(group), None, None) => Ok(Schedule::Gis(group)),
            (None, None, None) => Ok(Schedule::Uniform),
            (None, Some(count), Some(ratio)) => Ok(Schedule::Offloaded(count, ratio)),
            _ => {
                let fault = Diagnostic::error("a row has a `group`, or both `offloaded` and `ratio`, or none of them");
                Err(fault.hint("leave out what does not belong to its schedule"))
            }
        }
    }

    fn kind(&self) -> String {
        match (self.group, self.offloaded) {
            (Some(_), _) => "generalised interleaved".into(),
            (None, None) => "uniform".into(),
            (None, Some(count)) => format!("{count} of {} chunks offloaded", self.shape.chunks),
        }
    }

    fn name(&self) -> String {
        let Shape { devices, chunks, microbatches } = self.shape;
        let shape = format!("{devices} devices, {chunks} chunks, {microbatches} microbatches");
        match (self.group, self.offloaded, self.ratio) {
            (Some(group), ..) => format!("groups of {group}, {shape}"),
            (_, Some(count), Some(ratio)) => format!("{count} offloaded at k = {ratio}, {shape}"),
            _ => format!("uniform, {shape}"),
        }
    }
}

pub fn make(source: &Source<'_>) -> Result<Reproduction, Faults> {
    let rows = Rows::<Golden>::read(source)?;
    let unit = StageTimes {
        forward: SimTime::ms(1),
        backward_input: SimTime::ms(1),
        backward_weight: SimTime::ms(1),
        latency: SimTime::ZERO,
        weight_gradient_memory: StageTimes::UNIT.get(),
    };
    let cells = rows.each(|row| {
        let found = simulated(row.schedule()?, row.shape, &unit)?;
        let published = &row.published.peaks;
        above_zero("peak", published.iter().copied().fold(f64::INFINITY, f64::min))?;
        let mut cells = Vec::new();
        if published.len() == 1 {
            let most = found.peaks.iter().copied().fold(0.0, f64::max);
            cells.push(Cell::relative(row.name(), "peak", published[0], most).at("", row.kind(), None));
        } else if published.len() == found.peaks.len() {
            for (device, (published, ours)) in published.iter().zip(&found.peaks).enumerate() {
                let name = format!("{}, device {device}", row.name());
                cells.push(Cell::relative(name, "peak", *published, *ours).at("", row.kind(), None));
            }
        } else {
            let message = format!("{} peaks are published of {} devices", published.len(), found.peaks.len());
            return Err(Diagnostic::error(message).hint("give one for all, or one for each").into());
        }
        if let Some(bubble) = row.published.bubble {
            above_zero("bubble", bubble)?;
            cells.push(Cell::relative(row.name(), "bubble", bubble, found.span - found.work));
        }
        Ok(cells)
    })?;
    let cells = cells.concat();
    let peaks = || cells.iter().filter(|cell| cell.column == "peak");
    let (kept, all) = (peaks().filter(|cell| cell.error.is_some_and(|error| error <= 0.0)).count(), peaks().count());
    let unit = "Activations of one microbatch of one chunk, and units of time where forward, backward-input and backward-weight take \
                one each; errors are relative. Nothing is fitted. The released generator counts memory in the order of its list; here \
                it is counted in time, so that a smaller peak at the same span is right.";
    let mut made = Reproduction::new(&rows.source, unit, cells);
    made.findings.push(format!("{kept} of {all} peaks are at most the published ones."));
    Ok(made)
}
