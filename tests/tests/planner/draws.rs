//! Random placements and pins. Each function decodes random bytes, `draws`, so that failures
//! shrink.

use super::instances::Instance;
use spipe_base::{DeviceId, LayerRange, MemoryId};
use spipe_plan::{Activations, Context, Knob, Placement, Stage, System};
use spipe_planner::{Named, Pin, Pins};

/// A placement of a streamed system: stages of one or more layers, resident or streamed, on the
/// first GPU or on all GPUs in turn.
pub fn random_streamed(context: &Context<'_>, system: System, draws: &[u8]) -> Option<Placement> {
    let gpus: Vec<DeviceId> = context.cost.devices().filter(|device| !context.is_cpu(*device)).collect();
    let gpus = if draws[10] & 1 == 0 { &gpus[..1] } else { gpus.as_slice() };
    let mut pieces: Vec<(LayerRange, u8)> = Vec::new();
    for (layer, draw) in context.cost.layers().zip(draws) {
        match pieces.last_mut().filter(|_| draw & 3 == 0) {
            Some((piece, _)) => *piece = LayerRange::new(piece.first(), layer)?,
            None => pieces.push((LayerRange::new(layer, layer)?, *draw)),
        }
    }
    let stage = |(index, (layers, draw)): (usize, &(LayerRange, u8))| {
        let stage = Stage::new(gpus[index % gpus.len()], *layers);
        let home = home(context, stage.lead(), draw >> 5)?;
        let socket = socket_at(context, home)?;
        let kept = draw & 12 == 0;
        let stage = if kept { stage } else { stage.with_weights_in(home).with_optimizer_on(socket) };
        let recomputed = system == System::Mobius || draw & 16 == 0;
        Some(if recomputed { stage.with_everything_recomputed() } else { stage })
    };
    let stages: Option<Vec<Stage>> = pieces.iter().enumerate().map(stage).collect();
    let knobs = &[(Knob::Resident, 1 + u64::from(draws[11] % 3)), (Knob::Swap, 1)];
    let placement = Placement::new(system, stages?);
    Some(if system == System::Superpipeline { placement.with_options(knobs) } else { placement })
}

/// The DRAM nearest to a device, or of either socket where the machine has two.
fn home(context: &Context<'_>, device: DeviceId, draw: u8) -> Option<MemoryId> {
    let near = context.hardware.host_memory(device)?;
    let sockets: Vec<DeviceId> = context.cost.devices().filter(|device| context.is_cpu(*device)).collect();
    let memory = |socket: DeviceId| context.hardware.devices()[socket].memory;
    let other = sockets.iter().map(|socket| memory(*socket)).find(|memory| *memory != near);
    Some(other.filter(|_| sockets.len() == 2 && draw & 1 == 0).unwrap_or(near))
}

/// The socket whose DRAM is `memory`.
fn socket_at(context: &Context<'_>, memory: MemoryId) -> Option<DeviceId> {
    let at = |device: &DeviceId| context.is_cpu(*device) && context.hardware.devices()[*device].memory == memory;
    context.cost.devices().find(at)
}

/// A placement of a pipeline: stages of one or more layers, each on the device of the stage before
/// or on the next free device.
pub fn random_stages(context: &Context<'_>, system: System, draws: &[u8]) -> Placement {
    let mut devices: Vec<DeviceId> = context.cost.devices().collect();
    devices.rotate_left(usize::from(draws[11]) % context.cost.devices().len());
    let mut free = devices.into_iter();
    let mut stages: Vec<Stage> = Vec::new();
    for (layer, draw) in context.cost.layers().zip(draws) {
        let before = stages.last().copied();
        let next = if before.is_none() || draw & 3 == 0 { free.next() } else { None };
        let device = next.or(before.map(|stage| stage.lead())).unwrap();
        let joined = before.filter(|stage| stage.lead() == device && draw & 4 == 0);
        let first = joined.map_or(layer, |stage| stage.layers.first());
        let mut stage = Stage::new(device, LayerRange::new(first, layer).unwrap());
        if let Some(home) = home(context, device, draws[9] >> (layer.index() % 8)).filter(|_| !context.is_cpu(device)) {
            let optimizer = socket_at(context, home).filter(|_| draw & 8 == 0);
            stage = Stage { optimizer, offload: Some(home).filter(|_| draw & 48 == 0), ..stage };
        }
        if draw & 192 == 0 {
            stage = stage.with_everything_recomputed();
        }
        if joined.is_some() {
            stages.pop();
        }
        stages.push(stage);
    }
    let head_start = if system == System::Hybrid { u64::from(draws[10] % 3) } else { 0 };
    let offload_slots = Some(2 + u64::from(draws[10] >> 4) % 3).filter(|slots| *slots > 2);
    let urgent_steps = draws[10] & 8 == 0;
    Placement::new(system, stages).with_options(&[
        (Knob::HeadStart, Some(head_start)),
        (Knob::OffloadSlots, offload_slots),
        (Knob::UrgentSteps, Some(u64::from(urgent_steps))),
    ])
}

/// A placement of a sharded system: stages of one or more layers, shared by some of the GPUs.
pub fn random_sharded(context: &Context<'_>, system: System, draws: &[u8]) -> Placement {
    let gpus: Vec<DeviceId> = context.cost.devices().filter(|device| !context.is_cpu(*device)).collect();
    let near = home(context, gpus[0], 1).and_then(|home| Some((home, socket_at(context, home)?)));
    let mut stages: Vec<Stage> = Vec::new();
    for (layer, draw) in context.cost.layers().zip(draws) {
        let joined = stages.last().copied().filter(|_| draw & 3 == 0);
        let first = joined.map_or(layer, |stage| stage.layers.first());
        let stage = Stage::new(gpus[0], LayerRange::new(first, layer).unwrap());
        let stage = match near {
            Some((home, socket)) if draw & 12 == 0 && system == System::ZeroInfinity => {
                stage.with_weights_in(home).with_optimizer_on(socket)
            }
            Some((_, socket)) if draw & 12 == 4 => stage.with_optimizer_on(socket),
            _ => stage,
        };
        if joined.is_some() {
            stages.pop();
        }
        stages.push(stage.with_recomputed(usize::from(draw >> 4) % (stage.layers.count() + 1)));
    }
    let microbatches = context.workload().microbatches;
    let shards: Vec<u64> = (1..=gpus.len() as u64).filter(|shards| microbatches.is_multiple_of(*shards)).collect();
    let shards = shards[usize::from(draws[11]) % shards.len()];
    let urgent_steps = draws[10] & 8 == 0;
    let resident = Some(2 + u64::from(draws[10] >> 4) % 4).filter(|resident| *resident > 2);
    Placement::new(system, stages)
        .over(gpus.into_iter().take(shards as usize))
        .with_options(&[(Knob::Resident, resident), (Knob::UrgentSteps, Some(u64::from(urgent_steps)))])
}

/// One or two pins of the first or the last layer.
pub fn random_pins(instance: &Instance, draws: &[u8]) -> Pins {
    let last = instance.model.layers().len() - 1;
    let devices = instance.hardware.devices();
    let sockets: Vec<usize> = devices.ids().map(|id| id.index()).filter(|id| !devices[(*id).into()].is_gpu()).collect();
    let gpus: Vec<usize> = devices.ids().map(|id| id.index()).filter(|id| devices[(*id).into()].is_gpu()).collect();
    let pin = |draws: &[u8]| {
        let layer = if draws[0] & 1 == 0 { 0 } else { last };
        let layers = LayerRange::new(layer.into(), layer.into()).unwrap();
        let one = |of: &[usize]| [of[usize::from(draws[1]) % of.len()]].into();
        match draws[2] % 7 {
            0 => Pin::Layers(layers, one(&gpus)),
            1 => Pin::Activations(layers, Activations::Saved),
            2 => Pin::Activations(layers, Activations::Recomputed),
            3 => Pin::Activations(layers, Activations::Offloaded),
            4 => Pin::Optimizer(layers, one(&sockets)),
            5 => Pin::Optimizer(layers, gpus.iter().copied().collect()),
            _ => Pin::Host(layers, one(&sockets)),
        }
    };
    let count = 1 + usize::from(draws[6] & 1);
    let named: Vec<Named> =
        draws.chunks(3).take(count).map(|draws| Named { words: "pin".into(), pin: pin(draws) }).collect();
    Pins::new(&named).or_else(|_| Pins::new(&named[..1])).unwrap()
}
