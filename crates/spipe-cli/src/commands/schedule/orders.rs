//! The orders of systems.

use super::times::Times;
use crate::{Failure, args, input, output};
use spipe_base::{Bytes, Diagnostic, Faults, Seconds, SimTime};
use spipe_plan::{System, Vee};
use spipe_schedule::{
    Offloading, Order, Program, Skipped, StageTimes, automatic, bare, bare_offloaded, bare_offloaded_with_stage_times,
    bare_with_stage_times, gis, gis_warning, gpipe, interleaved, offloaded, offloaded_with_stage_times,
    one_forward_one_backward, v_half, v_min, v_of_stages, zb_h1, zb_h2, zb_v,
};

/// The most microbatches of all devices: this number is ordered and simulated within a minute.
const MOST_PASSES: usize = 1 << 20;

/// The most devices: the time to order a schedule grows with their square.
const MOST_DEVICES: usize = 1 << 12;

/// An order, perhaps with copies.
pub enum Chosen {
    /// An order alone.
    Order(Order),
    /// An order with activations offloaded.
    Offloading(Offloading),
}

impl Chosen {
    /// The order in which devices compute.
    pub const fn order(&self) -> &Order {
        match self {
            Self::Order(order) => order,
            Self::Offloading(offloading) => &offloading.order,
        }
    }

    /// The program of the schedule.
    pub fn program(&self, name: &str, times: &Times) -> Result<Program, Failure> {
        // Faults of a file's order come before those of the times beside it.
        self.order().validate()?;
        let each = times.of_stages(self.order().stages())?;
        Ok(match (self, each) {
            (Self::Order(order), None) => bare(name, order, &times.typical)?,
            (Self::Order(order), Some(each)) => bare_with_stage_times(name, order, each)?,
            (Self::Offloading(offloading), None) => bare_offloaded(name, offloading, &times.typical)?,
            (Self::Offloading(offloading), Some(each)) => bare_offloaded_with_stage_times(name, offloading, each)?,
        })
    }
}

/// The schedule of `what.system`, or of a file.
pub fn chosen(what: &args::Schedule, times: &Times) -> Result<Chosen, Failure> {
    if what.system == "custom" {
        let path = what.file.as_deref().ok_or_else(|| {
            Failure::argument("a custom schedule needs a file", "write one line per device, such as 0F0,0B0")
        })?;
        let (order, skipped) = Order::read(path, &input::text(path)?)?;
        say(path, &skipped);
        return Ok(Chosen::Order(order));
    }
    if what.file.is_some() {
        return Err(Failure::argument("only a custom schedule reads a file", "leave the file out"));
    }
    let system = Orderable::named(&what.system)?;
    check_size(what).or(()).map_err(Failure::Arguments)?;
    match system.system {
        System::PoH => offloading(what, times, system.chunks(what).div_ceil(2), system.chunks(what)),
        System::PoF => offloading(what, times, system.chunks(what), system.chunks(what)),
        _ => system.order(what, times).map(Chosen::Order),
    }
}

/// Says which actions of a file were skipped.
fn say(path: &str, skipped: &Skipped) {
    if skipped.is_empty() {
        return;
    }
    let total: usize = skipped.values().sum();
    let counts: Vec<String> = skipped.iter().map(|(name, count)| format!("{count} {name}")).collect();
    output::talk(&format!(
        "{path}: skipped {total} actions that take no compute time ({}); `--latency` is that of a copy",
        counts.join(", ")
    ));
}

/// A system with an order that needs no plan.
pub struct Orderable {
    system: System,
    /// Whether it has twice the memory of its system.
    doubled: bool,
    /// The default number of chunks on each device.
    chunks: usize,
    /// The options that it reads, beside devices, microbatches and times.
    pub options: &'static [&'static str],
}

const SYSTEMS: [Orderable; 16] = [
    Orderable::new(System::Gpipe, 1, &[]),
    Orderable::new(System::OneForwardOneBackward, 1, &[]),
    Orderable::new(System::Hybrid, 1, &["head-start"]),
    Orderable::new(System::Interleaved, 2, &["chunks", "group"]),
    Orderable::new(System::ZbH1, 1, &["weight-grad-memory"]),
    Orderable::new(System::ZbH2, 1, &["weight-grad-memory"]),
    Orderable::new(System::Zb1p, 1, &["memory-limit", "weight-grad-memory"]),
    Orderable::new(System::Zb2p, 1, &["memory-limit", "weight-grad-memory"]),
    Orderable::new(System::ZbV, 2, &["memory-limit", "weight-grad-memory"]),
    Orderable { doubled: true, ..Orderable::new(System::ZbV, 2, &["memory-limit", "weight-grad-memory"]) },
    Orderable::new(System::VHalf, 2, &["weight-grad-memory"]),
    Orderable::new(System::VMin, 2, &["weight-grad-memory"]),
    Orderable::new(System::Gis, 2, &["chunks", "group"]),
    Orderable::new(System::GisH, 2, &["chunks", "group"]),
    Orderable::new(System::PoH, 2, &["chunks", "offload-chunks", "offload-ratio", "weight-grad-memory"]),
    Orderable::new(System::PoF, 2, &["chunks", "offload-chunks", "offload-ratio", "weight-grad-memory"]),
];

impl Orderable {
    const fn new(system: System, chunks: usize, options: &'static [&'static str]) -> Self {
        Self { system, doubled: false, chunks, options }
    }

    /// Its name: that of its system, or `zb-v-2p`, which has the memory of `zb-2p`.
    const fn name(&self) -> &'static str {
        if self.doubled { "zb-v-2p" } else { self.system.name() }
    }

    pub fn named(name: &str) -> Result<&'static Self, Failure> {
        SYSTEMS.iter().find(|system| system.name() == name).ok_or_else(|| {
            let names: Vec<&str> = SYSTEMS.iter().map(Self::name).collect();
            let hint = format!("use {}, spipe, mobius, superpipeline, or custom with a file", names.join(", "));
            Failure::argument(format!("there is no schedule `{name}`"), hint)
        })
    }

    fn chunks(&self, what: &args::Schedule) -> usize {
        what.chunks.unwrap_or(self.chunks)
    }

    fn order(&self, what: &args::Schedule, times: &Times) -> Result<Order, Failure> {
        let (devices, microbatches) = (what.devices, what.microbatches);
        let chunks = self.chunks(what);
        let each = times.of_stages(devices.saturating_mul(chunks))?;
        let times = &times.typical;
        if let Some(order) = self.searched(what, each) {
            return order;
        }
        let order = match self.system {
            System::Gpipe => Ok(gpipe(devices, microbatches)),
            System::OneForwardOneBackward => Ok(one_forward_one_backward(devices, microbatches, &[])),
            System::Hybrid => Ok(one_forward_one_backward(devices, microbatches, &vec![what.head_start; devices])),
            System::Interleaved => interleaved(devices, chunks, microbatches, what.group),
            System::ZbH1 => zb_h1(devices, microbatches),
            System::ZbH2 => zb_h2(devices, microbatches),
            System::Zb1p => return limited(what, &vec![*times; devices], devices),
            System::Zb2p => return limited(what, &vec![*times; devices], 2 * devices),
            System::ZbV => {
                let own = self.doubled.then(|| StageTimes::UNIT * (4 * devices) as u64);
                return zb_v(devices, microbatches, times, memory_limit(what)?.or(own)).map_err(infeasible);
            }
            System::VHalf => v_half(devices, microbatches, times),
            System::VMin => v_min(devices, microbatches, times),
            System::Gis | System::GisH => {
                let default = if self.system == System::Gis { devices } else { devices.div_ceil(2) };
                let group = what.group.unwrap_or(default);
                let order = gis(devices, chunks, microbatches, group);
                if let (Ok(_), Some(warning)) = (&order, gis_warning(microbatches, group)) {
                    output::talk(&warning.to_string());
                }
                order
            }
            other => return Err(Failure::Bug(format!("the order of `{other}` is missing"))),
        };
        order.map_err(Failure::Arguments)
    }

    /// The order that is searched for the times of each stage, where the system has such a search.
    fn searched(&self, what: &args::Schedule, each: Option<&[StageTimes]>) -> Option<Result<Order, Failure>> {
        let each = each?;
        let v = |vee| {
            let orders = v_of_stages(vee, each, what.microbatches);
            orders.map(|(as_equal, own)| own.unwrap_or(as_equal)).map_err(Failure::Arguments)
        };
        match self.system {
            System::Zb1p => Some(limited(what, each, what.devices)),
            System::Zb2p => Some(limited(what, each, 2 * what.devices)),
            System::ZbV if what.memory_limit.is_none() && !self.doubled => Some(v(Vee::Full)),
            System::VHalf => Some(v(Vee::Half)),
            System::VMin => Some(v(Vee::Least)),
            _ => None,
        }
    }
}

/// The faults of devices and microbatches that are zero or too many.
fn check_size(what: &args::Schedule) -> Faults {
    let mut faults = Faults::new();
    for (name, number) in [("devices", what.devices), ("microbatches", what.microbatches)] {
        if number == 0 {
            faults.push(Diagnostic::error(format!("`--{name}` is zero")).hint("use at least one"));
        }
    }
    if what.devices.saturating_mul(what.microbatches) > MOST_PASSES {
        let message = format!("{} devices with {} microbatches each are too many", what.devices, what.microbatches);
        faults.push(Diagnostic::error(message).hint(format!("their product may be {MOST_PASSES} at most")));
    }
    if what.devices > MOST_DEVICES {
        let message = format!("{} devices are too many", what.devices);
        faults.push(Diagnostic::error(message).hint(format!("use {MOST_DEVICES} at most")));
    }
    faults
}

/// PipeOffload's schedule with `chunks` chunks per device. The number of offloaded ones is
/// `default` if none is given.
fn offloading(what: &args::Schedule, times: &Times, default: usize, chunks: usize) -> Result<Chosen, Failure> {
    let each = times.of_stages(what.devices.saturating_mul(chunks))?;
    let times = &times.typical;
    let ratio = what.offload_ratio.unwrap_or(1.0);
    let work = times.forward + times.backward_input + times.backward_weight;
    let copy = Seconds::new(ratio / 2.0 * work.to_seconds().get()).ok_or_else(|| {
        let hint = "it is the time of a round trip over that of forward and backward of one chunk";
        Failure::argument(format!("`--offload-ratio {ratio}` is not a ratio"), hint)
    })?;
    let shape = [what.devices, chunks, what.microbatches];
    let (count, copy) = (what.offload_chunks.unwrap_or(default), SimTime::from_seconds(copy));
    let offloaded = match each {
        Some(each) => offloaded_with_stage_times(shape, each, count, copy),
        None => offloaded(shape, times, count, copy),
    };
    offloaded.map(Chosen::Offloading).map_err(Failure::Arguments)
}

/// The automatic schedule within the given limit, or within `activations`.
fn limited(what: &args::Schedule, times: &[StageTimes], activations: usize) -> Result<Order, Failure> {
    let limit = memory_limit(what)?.unwrap_or(StageTimes::UNIT * activations as u64);
    automatic(times, what.microbatches, limit).map_err(infeasible)
}

/// The given limit, in the units of bare programs.
fn memory_limit(what: &args::Schedule) -> Result<Option<Bytes>, Failure> {
    let Some(units) = what.memory_limit else { return Ok(None) };
    let bytes = (units * StageTimes::UNIT.as_f64()).round();
    if bytes.is_finite() && bytes >= 0.0 {
        return Ok(Some(Bytes::new(bytes as u64)));
    }
    Err(Failure::argument(format!("`--memory-limit {units}` is not an amount"), "give a number of activations"))
}

/// A limit that no schedule keeps is infeasible, not a wrong argument.
fn infeasible(faults: Faults) -> Failure {
    let first = faults.iter().next().cloned();
    first.map_or(Failure::Arguments(faults), Failure::Infeasible)
}
