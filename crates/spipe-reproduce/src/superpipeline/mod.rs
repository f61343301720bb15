//! Superpipeline's passes by k and k′: time and memory.
//!
//! A pass begins with its first k units on the device. The next k′ units are copied in while used
//! ones are still being copied out, so the device has room for k + k′ units; the published figures
//! agree with that. A naive swap (load k, run k, put k back) has room for k units, begins with
//! none, and ends when the last units are back.
//!
//! Fitted per machine and model: the times of one unit (arithmetic, copy in, copy out), the memory
//! per unit and the memory beside units. The rest is simulated.

pub mod training;

use crate::{
    fit::{least, line},
    reproduction::{Cell, Reproduction},
    rows::{self, Rows, Usage, above_zero},
    source::Source,
};
use serde::Deserialize;
use spipe_base::{ActionKind, Bytes, BytesPerSecond, Diagnostic, Faults, Seconds, SimTime, Text};
use spipe_schedule::{UnitTimes, bare_superpipeline_after};
use spipe_sim::{Iterations, Options, simulate};
use std::collections::BTreeMap;

/// The system that a row measures.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum System {
    /// Everything stays on the device.
    Standard,
    /// k units are loaded, run and put back, one step after the other.
    Naive,
    /// Copies overlap with arithmetic.
    Superpipeline,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Measured {
    machine: String,
    model: String,
    /// Repeated layers.
    units: usize,
    /// The bytes of one unit.
    unit: Text<Bytes>,
    /// The peak rate of a copy on this machine.
    link: Text<BytesPerSecond>,
    system: System,
    #[serde(default)]
    resident: Option<usize>,
    #[serde(default)]
    swap: Option<usize>,
    #[serde(rename = "use")]
    usage: Usage,
    published: PublishedRun,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PublishedRun {
    time: Text<Seconds>,
    memory: Text<Bytes>,
}

type Row = rows::Row<Measured>;

/// The use of the device by a pass.
struct Pass {
    /// k′, the units copied at a time.
    swap: usize,
    /// The units on the device at the start.
    there: usize,
    /// The units that the device has room for.
    room: usize,
}

impl Measured {
    fn pass(&self) -> Result<Pass, Faults> {
        let refuse = |message: String, hint: String| Err(Diagnostic::error(message).hint(hint).into());
        let units = self.units;
        match (self.system, self.resident, self.swap) {
            _ if units == 0 => refuse("there are no units".into(), "use at least 1".into()),
            (System::Standard, None, None) => Ok(Pass { swap: units, there: units, room: units }),
            (System::Standard, ..) => {
                refuse("a standard pass has no k and no k'".into(), "leave out `resident` and `swap`".into())
            }
            (System::Naive | System::Superpipeline, None, _) => {
                refuse("k is not given".into(), "add `resident`, the units on the device".into())
            }
            (_, Some(resident), _) if resident == 0 || resident > units => {
                refuse(format!("{resident} of {units} units cannot be resident"), format!("use between 1 and {units}"))
            }
            (System::Naive, Some(resident), swap) if swap.is_none_or(|swap| swap == resident) => {
                Ok(Pass { swap: resident, there: 0, room: resident })
            }
            (System::Naive, Some(resident), _) => {
                refuse("a naive pass exchanges all k units".into(), format!("leave out `swap`, or use {resident}"))
            }
            (System::Superpipeline, Some(resident), Some(swap)) if (1..=resident).contains(&swap) => {
                Ok(Pass { swap, there: resident, room: (resident + swap).min(units) })
            }
            (System::Superpipeline, Some(resident), _) => {
                refuse("k' is not among 1 to k".into(), format!("set `swap` between 1 and {resident}"))
            }
        }
    }

    /// The end of a pass in seconds, given the times of one unit: arithmetic, copy in, copy out.
    fn simulated(&self, times: &[f64]) -> Result<f64, Faults> {
        let pass = self.pass()?;
        let time = |index: usize| SimTime::ns((times[index] * 1e9).round() as u64);
        let times = UnitTimes { compute: time(0), load: time(1), evict: time(2) };
        if self.system == System::Standard {
            return Ok(times.compute.to_ms() / 1e3 * self.units as f64);
        }
        let program = bare_superpipeline_after(pass.there, self.units, (pass.room, pass.swap), &times)?;
        let trace = simulate(&program, &Options { iterations: Iterations::One, ..Options::default() }).trace;
        let forwards = trace.spans.iter().filter(|span| span.kind == ActionKind::Forward);
        let end = match self.system {
            System::Naive => Some(trace.iteration),
            _ => forwards.map(|span| span.end).max(),
        };
        Ok(end.unwrap_or_default().to_ms() / 1e3)
    }

    /// The units that are copied in during a pass.
    fn streamed(&self) -> usize {
        match (self.system, self.resident) {
            (System::Standard, _) => 0,
            (System::Naive, _) => self.units,
            (System::Superpipeline, resident) => self.units - resident.unwrap_or(0),
        }
    }

    fn name(&self) -> String {
        let what = match (self.system, self.resident, self.swap) {
            (System::Superpipeline, Some(resident), Some(swap)) => format!("k {resident}, k' {swap}"),
            (System::Naive, Some(resident), _) => format!("naive, k {resident}"),
            _ => "standard".into(),
        };
        format!("{}, {}, {what}", self.machine, self.model)
    }

    /// The remark on a published time that the link of the machine does not allow.
    fn doubt(&self) -> Option<String> {
        let rate = self.streamed() as f64 * self.unit.0.as_f64() / self.published.time.0.get();
        let limit = self.link.0.get();
        (rate > limit)
            .then(|| format!("as published it takes {:.0} GB/s of a link of {:.1} GB/s", rate / 1e9, limit / 1e9))
    }
}

pub fn make(source: &Source<'_>) -> Result<Reproduction, Faults> {
    let read = Rows::<Measured>::read(source)?;
    read.each(|row| {
        above_zero("time", row.published.time.0.get())?;
        above_zero("memory", row.published.memory.0.as_f64())?;
        row.pass().map(|_| ())
    })?;
    let mut groups: BTreeMap<(&str, &str), Vec<&Row>> = BTreeMap::new();
    for row in &read.rows {
        groups.entry((&row.machine, &row.model)).or_default().push(row);
    }
    let mut cells = Vec::new();
    for rows in groups.values() {
        let times = times(&read, rows)?;
        let (beside, per_unit) = memory(rows)?;
        for row in rows {
            let (time, memory) = (row.published.time.0.to_ms(), row.published.memory.0.as_f64() / 1e9);
            let [compute, load, evict] = [0, 1, 2].map(|index| 1e3 * times[index]);
            let fits = row.usage == Usage::Fit;
            let unit_times = format!("{compute:.2} ms per unit, {load:.2} in, {evict:.2} out");
            let cell = Cell::relative(row.name(), "time, ms", time, 1e3 * row.simulated(&times)?);
            let cell = cell.fitted(fits.then_some(unit_times)).note(row.doubt());
            cells.push(cell.at("", format!("{}, {}", row.machine, row.model), None));
            let ours = (beside + per_unit * row.pass()?.room as f64) / 1e9;
            let fitted = (fits && row.system != System::Standard).then(|| {
                let (beside, per_unit, shapes) = (beside / 1e9, per_unit / 1e9, row.unit.0.as_f64() / 1e9);
                format!("{beside:.2} GB and {per_unit:.3} GB per unit, which has {shapes:.3} GB of parameters")
            });
            let cell = Cell::relative(row.name(), "memory, GB", memory, ours).fitted(fitted);
            let naive = if row.system == System::Naive { ", naive" } else { "" };
            let room = if row.system == System::Standard { None } else { Some(row.pass()?.room as f64) };
            cells.push(cell.at(&row.model, format!("{}{naive}", row.machine), room));
        }
    }
    let doubtful = read.rows.iter().filter(|row| row.doubt().is_some()).count();
    let mut made = Reproduction::new(&read.source, "Milliseconds and 10⁹ bytes; errors are relative.", cells);
    if doubtful > 0 {
        made.findings.push(format!(
            "{doubtful} of {} published times stream more bytes than the link of their machine carries in that time; they are \
             compared all the same",
            read.rows.len()
        ));
    }
    Ok(made)
}

/// The times of one unit (arithmetic, copy in, copy out) that minimise the sum of squared relative
/// errors of the fitted rows. A standard pass fixes the arithmetic. Without a naive pass, the two
/// copies are determined only as far as they bound the pass.
fn times(read: &Rows<Measured>, rows: &[&Row]) -> Result<Vec<f64>, Faults> {
    let fitted: Vec<&Row> = rows.iter().copied().filter(|row| row.usage == Usage::Fit).collect();
    let per_unit = |row: &&Row| row.published.time.0.get() / row.units as f64;
    let standard = fitted.iter().find(|row| row.system == System::Standard).map(per_unit);
    let moving: Vec<&Row> = fitted.iter().copied().filter(|row| row.system != System::Standard).collect();
    let slowest = moving.iter().map(per_unit).fold(0.0, f64::max);
    if moving.len() < 2 {
        let message = format!("rows of `{}, {}` cannot be fitted", rows[0].machine, rows[0].model);
        return Err(read.fault(rows[0], message, "mark two or more that swap with use = \"fit\"").into());
    }
    let all = |found: &[f64]| match standard {
        Some(compute) => vec![compute, found[0], found[1]],
        None => vec![found[2], found[0], found[1]],
    };
    let cost = |found: &[f64]| -> Result<f64, Faults> {
        let times = all(found);
        let error = |row: &&Row| Ok((row.simulated(&times)? / row.published.time.0.get() - 1.0).powi(2));
        moving.iter().map(error).sum()
    };
    let constants = if standard.is_some() { 2 } else { 3 };
    let start = [slowest / 2.0, slowest / 4.0, slowest / 4.0];
    Ok(all(&least(&start[..constants], cost)?))
}

/// The bytes beside units and per unit: the line through the fitted rows that swap.
fn memory(rows: &[&Row]) -> Result<(f64, f64), Faults> {
    let mut points = Vec::new();
    for row in rows.iter().filter(|row| row.usage == Usage::Fit && row.system != System::Standard) {
        points.push((row.pass()?.room as f64, row.published.memory.0.as_f64()));
    }
    let (per_unit, beside) = line(&points);
    if per_unit.is_finite() {
        return Ok((beside, per_unit));
    }
    // Rows with a single k and k' do not determine the bytes of a unit: its shapes do.
    let per_unit = rows[0].unit.0.as_f64();
    Ok((points.iter().map(|(units, bytes)| bytes - units * per_unit).sum::<f64>() / points.len() as f64, per_unit))
}
