//! The times of stages: one for all, or those of a file.

use crate::{Failure, args, input};
use spipe_base::{Diagnostic, Faults, Position, Seconds, SimTime};
use spipe_schedule::StageTimes;

/// The columns of a file of stage times.
const COLUMNS: [&str; 3] = ["forward", "backward-input", "backward-weight"];

/// The times of a schedule's stages.
pub struct Times {
    /// The times of every stage; with a file, the mean over its stages.
    pub typical: StageTimes,
    /// The times of each stage, in model order, and the file that they are from.
    each: Option<(String, Vec<StageTimes>)>,
}

impl Times {
    /// The times that the arguments give.
    pub fn given(what: &args::Schedule) -> Result<Self, Failure> {
        let share = what.weight_grad_memory;
        if !(0.0..=1.0).contains(&share) {
            return Err(Failure::argument(
                format!("`--weight-grad-memory {share}` is not between 0 and 1"),
                "it is the share of an activation that is kept until the backward-weight",
            ));
        }
        let uniform = StageTimes {
            forward: SimTime::from_seconds(what.forward),
            backward_input: SimTime::from_seconds(what.backward_input),
            backward_weight: SimTime::from_seconds(what.backward_weight),
            latency: SimTime::from_seconds(what.latency),
            weight_gradient_memory: (share * StageTimes::UNIT.as_f64()).round() as u64,
        };
        let Some(file) = &what.stage_times else { return Ok(Self { typical: uniform, each: None }) };
        let stages = read(file, &input::text(file)?, uniform)?;
        let mean = |part: fn(&StageTimes) -> SimTime| {
            let sum: u128 = stages.iter().map(|stage| u128::from(part(stage).as_ns())).sum();
            SimTime::ns(u64::try_from(sum / stages.len().max(1) as u128).unwrap_or(u64::MAX))
        };
        let typical = StageTimes {
            forward: mean(|times| times.forward),
            backward_input: mean(|times| times.backward_input),
            backward_weight: mean(|times| times.backward_weight),
            ..uniform
        };
        Ok(Self { typical, each: Some((file.clone(), stages)) })
    }

    /// The times of each of `stages` stages if they come from a file.
    pub fn of_stages(&self, stages: usize) -> Result<Option<&[StageTimes]>, Failure> {
        let Some((file, each)) = &self.each else { return Ok(None) };
        if each.len() == stages {
            return Ok(Some(each));
        }
        let message = format!("`{file}` has times for {} stages, the schedule has {stages}", each.len());
        let line = 1 + each.len().min(stages);
        let fault = Diagnostic::error(message).at(Position { file: file.clone(), line, column: 1 });
        Err(Failure::input(fault.hint("write one line per stage, in model order: devices times chunks of a device")))
    }
}

/// Reads a file of stage times; latency and memory are those of `uniform`.
fn read(file: &str, text: &str, uniform: StageTimes) -> Result<Vec<StageTimes>, Faults> {
    let at = |line: usize, column: usize| Position { file: file.into(), line, column };
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let header = COLUMNS.join(",");
    match lines.next() {
        Some((_, line)) if line.split(',').map(str::trim).eq(COLUMNS) => {}
        found => {
            let line = found.map_or(1, |(row, _)| row + 1);
            let fault = Diagnostic::error(format!("the first line is not `{header}`")).at(at(line, 1));
            return Err(fault.hint("write that line, and then one like 1 ms,1 ms,0.5 ms per stage").into());
        }
    }
    let mut faults = Faults::new();
    let mut stages = Vec::new();
    for (row, line) in lines {
        let cells: Vec<&str> = line.split(',').collect();
        let mut times = [SimTime::ZERO; 3];
        if cells.len() != COLUMNS.len() {
            let message = format!("the line has {} cells, not {}", cells.len(), COLUMNS.len());
            faults.push(Diagnostic::error(message).at(at(row + 1, 1)).hint(format!("write {header}")));
        }
        let mut column = 1;
        for (cell, time) in cells.iter().zip(&mut times) {
            match cell.parse::<Seconds>() {
                Ok(seconds) => *time = SimTime::from_seconds(seconds),
                Err(error) => faults.push(Diagnostic::error(error.to_string()).at(at(row + 1, column))),
            }
            column += cell.chars().count() + 1;
        }
        let [forward, backward_input, backward_weight] = times;
        stages.push(StageTimes { forward, backward_input, backward_weight, ..uniform });
    }
    if stages.is_empty() && faults.is_empty() {
        let fault = Diagnostic::error("there are no stages").at(at(1, 1));
        faults.push(fault.hint("write one line per stage, such as 1 ms,1 ms,0.5 ms"));
    }
    faults.or(stages)
}
