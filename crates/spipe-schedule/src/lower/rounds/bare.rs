//! Rounds from stage times alone.

use super::{Chunk, Links, Rounds, Spec, Stepping, Transfer};
use crate::lower::StageTimes;
use crate::{Program, ProgramBuilder, Shape};
use spipe_base::{Bytes, DeviceId, Diagnostic, Faults, LayerId, LayerRange, MemoryId, SimTime};
use spipe_plan::Exchanging;

/// Copies that take a given time per unit of bytes in either direction; between devices they take none.
struct PerUnit {
    host: MemoryId,
    load: SimTime,
    evict: SimTime,
}

impl Links for PerUnit {
    fn copy(&self, from: MemoryId, to: MemoryId, bytes: Bytes) -> Result<Transfer, Faults> {
        let per_unit = if from == self.host {
            self.load
        } else if to == self.host {
            self.evict
        } else {
            SimTime::ZERO
        };
        let time = u128::from(per_unit.as_ns()) * u128::from(bytes.get()) / u128::from(StageTimes::UNIT.get());
        Ok(Transfer { work: SimTime::ns(time as u64), flows: Vec::new() })
    }
}

/// The times of one forward stage and of one backward stage with its recompute, on one microbatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTimes {
    /// A forward stage.
    pub forward: SimTime,
    /// A backward stage.
    pub backward: SimTime,
    /// The optimizer step of a backward stage on the CPU cores of its device; zero leaves the optimizer out. With decoupled passes
    /// a step starts when its stage has ended, otherwise when the whole backward has.
    pub step: SimTime,
    /// The way in of the parameters of a forward stage, ahead of its first pass by one stage; backward stages take their share of
    /// it. Zero leaves parameters where they are used.
    pub load: SimTime,
}

/// SPipe's or Mobius' passes; between devices copies take no time: `forward` and `backward` stages on each of `devices`
/// devices. Forward stage i·N + r is on device r. With `decoupled` passes backward stage j·N + (N − 1 − r) is, so that both
/// passes go round the same way; otherwise each device computes the backward of its own forward stages.
pub fn bare_rounds(
    (name, decoupled): (&str, bool),
    devices: usize,
    microbatches: usize,
    (forward, backward): (usize, usize),
    times: &RoundTimes,
) -> Result<Program, Faults> {
    for (what, count) in
        [("devices", devices), ("forward stages per device", forward), ("backward stages per device", backward)]
    {
        if count == 0 {
            return Err(Diagnostic::error(format!("there are no {what}")).hint("use at least 1").into());
        }
    }
    if microbatches < devices {
        return Err(Diagnostic::error(format!("{microbatches} microbatches are fewer than the {devices} devices"))
            .hint(format!("a device is back at its next stage after {devices} microbatches: use at least {devices}"))
            .into());
    }
    if !decoupled && forward != backward {
        return Err(Diagnostic::error(format!(
            "{name} has the same stages in both passes, not {forward} and {backward}"
        ))
        .hint(format!("use {forward} backward stages per device"))
        .into());
    }
    // Layers are the phases of which stages of either pass are made.
    let layers = devices * least_common_multiple(forward, backward);
    let mut builder = builder(name, (layers, microbatches, true));
    let host = builder.memory("dram0", None);
    for device in 0..devices {
        let memory = builder.memory(&format!("gpu{device}"), None);
        builder.device(&format!("gpu{device}"), memory, false);
    }
    for device in 0..devices {
        builder.device(&format!("cpu{device}"), host, false);
    }
    let cut = |stages: usize, time: SimTime, device: &dyn Fn(usize) -> usize| -> Vec<Chunk> {
        let length = layers / stages;
        let chunk = |stage: usize| Chunk {
            socket: Some(DeviceId::from(devices + device(stage))),
            step: Transfer { work: times.step, flows: Vec::new() },
            // A unit is a forward stage.
            weights: evenly(Bytes::new(StageTimes::UNIT.get() * (devices * forward) as u64 / stages as u64), length),
            ..unit(DeviceId::from(device(stage)), (stage * length, length), time, host)
        };
        (0..stages).map(chunk).collect()
    };
    let ring = |stage: usize| stage % devices;
    let back = |stage: usize| if decoupled { devices - 1 - stage % devices } else { stage % devices };
    let spec = Spec {
        forward: cut(devices * forward, times.forward, &ring),
        backward: cut(devices * backward, times.backward, &back),
        exchanging: Exchanging { coupled: !decoupled, ..PAIR },
        stepping: match times.step {
            SimTime::ZERO => Stepping::Never,
            _ if decoupled => Stepping::Asynchronous,
            _ => Stepping::Serial,
        },
        streams: times.load > SimTime::ZERO,
        ..spec(microbatches)
    };
    Rounds::build(&spec, &PerUnit { host, load: times.load, evict: SimTime::ZERO }, builder)
}

/// The times of one unit of a Superpipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitTimes {
    /// Its arithmetic.
    pub compute: SimTime,
    /// Its way in.
    pub load: SimTime,
    /// Its way out; zero where what the host has is kept instead.
    pub evict: SimTime,
}

/// One forward of Superpipeline: `units` repeated layers of which `resident` (k) are on the device and `swap` (k′) are
/// exchanged at a time.
pub fn bare_superpipeline(units: usize, resident: usize, swap: usize, times: &UnitTimes) -> Result<Program, Faults> {
    bare_superpipeline_after(0, units, (resident, swap), times)
}

/// The same with the first `there` units on the device when the forward begins, as another left them.
pub fn bare_superpipeline_after(
    there: usize,
    units: usize,
    (resident, swap): (usize, usize),
    times: &UnitTimes,
) -> Result<Program, Faults> {
    if units == 0 {
        return Err(Diagnostic::error("there are no units").hint("use at least 1").into());
    }
    if resident == 0 || resident > units {
        return Err(Diagnostic::error(format!("{resident} of {units} units cannot be resident"))
            .hint(format!("use between 1 and {units}"))
            .into());
    }
    if swap == 0 || swap > resident {
        return Err(Diagnostic::error(format!("{swap} of {resident} resident units cannot be exchanged at a time"))
            .hint(format!("exchange between 1 and {resident}"))
            .into());
    }
    if there > resident {
        return Err(Diagnostic::error(format!("{there} units cannot be on the device where {resident} have room"))
            .hint(format!("begin with at most {resident}"))
            .into());
    }
    let mut builder = builder("superpipeline", (units, 1, false));
    let host = builder.memory("dram0", None);
    let memory = builder.memory("gpu0", None);
    let device = builder.device("gpu0", memory, false);
    let forward = (0..units).map(|index| unit(device, (index, 1), times.compute, host)).collect();
    let write_back = times.evict > SimTime::ZERO;
    let exchanging = Exchanging { resident, swap, ..PAIR };
    let spec = Spec { forward, exchanging, there, write_back, streams: true, ..spec(1) };
    Rounds::build(&spec, &PerUnit { host, load: times.load, evict: times.evict }, builder)
}

/// One chunk computes, the next one arrives.
const PAIR: Exchanging = Exchanging { resident: 2, swap: 1, coupled: true };

fn builder(name: &str, (layers, microbatches, training): (usize, usize, bool)) -> ProgramBuilder {
    ProgramBuilder::new(Shape {
        name: name.into(),
        layers,
        microbatches: microbatches as u64,
        training,
        without_backward: 0,
        feeds_back: false,
        tokens: None,
        notes: Vec::new(),
    })
}

fn spec(microbatches: usize) -> Spec {
    Spec {
        microbatches,
        forward: Vec::new(),
        backward: Vec::new(),
        exchanging: PAIR,
        there: 0,
        sequential: false,
        write_back: false,
        streams: false,
        stepping: Stepping::Never,
        late_checkpoints: false,
        waits_for_norm: false,
        speculates: false,
        redoes: false,
        arithmetic_undo: false,
    }
}

/// A chunk that counts one unit of parameters, and one for what it takes from the chunk before.
fn unit(device: DeviceId, (first, count): (usize, usize), work: SimTime, home: MemoryId) -> Chunk {
    let last = LayerId::from(first + count - 1);
    let layers = LayerRange::new(LayerId::from(first), last);
    let layers = layers.unwrap_or_else(|| unreachable!("a unit has at least one layer"));
    Chunk {
        device,
        layers,
        returns: Some(layers),
        passes_gradient: true,
        recomputed: None,
        work,
        recompute: SimTime::ZERO,
        weights: evenly(StageTimes::UNIT, count),
        gradients: Bytes::ZERO,
        trains: true,
        cache: Bytes::ZERO,
        stays: false,
        input: StageTimes::UNIT,
        output: StageTimes::UNIT,
        saved: Bytes::ZERO,
        again: Bytes::ZERO,
        workspace: Bytes::ZERO,
        home,
        socket: None,
        state: Bytes::ZERO,
        undo: Bytes::ZERO,
        step: Transfer::default(),
        borrowed: None,
        accumulate: Transfer::default(),
        norm: Transfer::default(),
    }
}

/// As many parts of `bytes`, of which none is more than a byte larger than another.
fn evenly(bytes: Bytes, parts: usize) -> Vec<Bytes> {
    let upto = |part: usize| bytes.get() * part as u64 / parts as u64;
    (0..parts).map(|part| Bytes::new(upto(part + 1) - upto(part))).collect()
}

const fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
