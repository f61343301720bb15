//! Streamed systems from stage times alone.

use super::{Chunk, Links, Spec, StreamedLowering, Transfer, UpdateOrder};
use crate::{Program, ProgramBuilder, Shape, StageTimes};
use spipe_base::{Bytes, DeviceId, Diagnostic, Faults, LayerId, LayerRange, MemoryId, SimTime};
use spipe_plan::ExchangePolicy;

/// Copies that take a given time per unit of bytes to and from the host, and no time between
/// devices.
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

/// The times of a streamed system with equal stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamedTimes {
    /// A forward stage on one microbatch.
    pub forward: SimTime,
    /// A backward stage on one microbatch, recompute included.
    pub backward: SimTime,
    /// The optimizer step of a backward stage on the CPU cores of its device; zero leaves the
    /// optimizer out. With decoupled passes a step starts at the end of its stage, otherwise at the
    /// end of the whole backward.
    pub step: SimTime,
    /// The copy of a forward stage's parameters to the device, one stage ahead of their use; those
    /// of a backward stage take time in proportion to their bytes. Zero makes all parameters
    /// resident.
    pub load: SimTime,
}

/// The program of SPipe or Mobius with `forward` and `backward` stages on each of N = `devices`
/// devices. Copies between devices take no time.
///
/// Forward stage i·N + r is on device r. With `decoupled` passes, backward stage j·N + (N − 1 − r)
/// is on device r, so that both passes visit the devices in the same direction. Otherwise each
/// device runs the backward of its own forward stages.
///
/// # Errors
/// Zero amounts, fewer microbatches than devices, or different numbers of stages in coupled passes.
pub fn bare_streamed(
    (name, decoupled): (&str, bool),
    devices: usize,
    microbatches: usize,
    (forward, backward): (usize, usize),
    times: &StreamedTimes,
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
            .hint(format!("a device returns for its next stage after {devices} microbatches: use at least {devices}"))
            .into());
    }
    if !decoupled && forward != backward {
        return Err(Diagnostic::error(format!(
            "{name} has the same stages in both passes, not {forward} and {backward}"
        ))
        .hint(format!("use {forward} backward stages per device"))
        .into());
    }
    // Stages of both passes consist of whole layers.
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
        // One unit of bytes is the parameters of a forward stage.
        let bytes = evenly(Bytes::new(StageTimes::UNIT.get() * (devices * forward) as u64 / stages as u64), length);
        let chunk = |stage: usize| Chunk {
            socket: Some(DeviceId::from(devices + device(stage))),
            step: Transfer { work: times.step, flows: Vec::new() },
            weights: bytes.clone(),
            streamed: bytes.clone(),
            ..unit(DeviceId::from(device(stage)), (stage * length, length), time, host)
        };
        (0..stages).map(chunk).collect()
    };
    let ring = |stage: usize| stage % devices;
    let back = |stage: usize| if decoupled { devices - 1 - stage % devices } else { stage % devices };
    let spec = Spec {
        forward: cut(devices * forward, times.forward, &ring),
        backward: cut(devices * backward, times.backward, &back),
        exchange: ExchangePolicy { coupled: !decoupled, ..PAIR },
        updates: match times.step {
            SimTime::ZERO => UpdateOrder::Never,
            _ if decoupled => UpdateOrder::Asynchronous,
            _ => UpdateOrder::Serial,
        },
        streams: times.load > SimTime::ZERO,
        ..spec(microbatches)
    };
    StreamedLowering::build(
        std::slice::from_ref(&spec),
        &PerUnit { host, load: times.load, evict: SimTime::ZERO },
        builder,
    )
}

/// The times of one unit of Superpipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitTimes {
    /// The arithmetic.
    pub compute: SimTime,
    /// The copy to the device.
    pub load: SimTime,
    /// The copy back to the host; zero if the host keeps its own copy.
    pub evict: SimTime,
}

/// The program of one forward of Superpipeline: `units` equal layers, with k = `resident` on the
/// device, exchanged k′ = `swap` at a time.
///
/// # Errors
/// Amounts out of range.
pub fn bare_superpipeline(units: usize, resident: usize, swap: usize, times: &UnitTimes) -> Result<Program, Faults> {
    bare_superpipeline_after(0, units, (resident, swap), times)
}

/// The program of one forward of Superpipeline that finds the first `preloaded` units on the
/// device, from the forward before.
///
/// # Errors
/// Amounts out of range.
pub fn bare_superpipeline_after(
    preloaded: usize,
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
    if preloaded > resident {
        return Err(Diagnostic::error(format!(
            "{preloaded} units cannot be on the device, which has room for {resident}"
        ))
        .hint(format!("begin with at most {resident}"))
        .into());
    }
    let mut builder = builder("superpipeline", (units, 1, false));
    let host = builder.memory("dram0", None);
    let memory = builder.memory("gpu0", None);
    let device = builder.device("gpu0", memory, false);
    let forward = (0..units).map(|index| unit(device, (index, 1), times.compute, host)).collect();
    let write_back = times.evict > SimTime::ZERO;
    let exchange = ExchangePolicy { resident, swap, ..PAIR };
    let spec = Spec { forward, exchange, preloaded, write_back, streams: true, ..spec(1) };
    StreamedLowering::build(
        std::slice::from_ref(&spec),
        &PerUnit { host, load: times.load, evict: times.evict },
        builder,
    )
}

/// Double buffering: one chunk computes while the next one arrives.
const PAIR: ExchangePolicy = ExchangePolicy { resident: 2, swap: 1, coupled: true };

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
        exchange: PAIR,
        preloaded: 0,
        sequential: false,
        write_back: false,
        streams: false,
        updates: UpdateOrder::Never,
        late_checkpoints: false,
        waits_for_norm: false,
        speculates: false,
        redoes: false,
        arithmetic_undo: false,
    }
}

/// A chunk with one unit of parameters and boundaries of one unit.
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
        streamed: evenly(StageTimes::UNIT, count),
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
        drive: None,
        shelf: None,
        undo: Bytes::ZERO,
        step: Transfer::default(),
        borrowed: None,
        accumulate: Transfer::default(),
        norm: Transfer::default(),
    }
}

/// `parts` parts of `bytes` that differ by at most one byte.
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
