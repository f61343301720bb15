//! Where on the host a stage on a GPU has what it leaves there: its optimizer state, its streamed parameters, its activations.
//!
//! All of that is on one NUMA node: the one nearest to the GPU, or on machines with two sockets the other one, whose cores and whose DRAM
//! would otherwise have nothing to do where all GPUs are near the first.

use super::socket;
use crate::figures::MOST_HOSTS;
use spipe_base::{DeviceId, MemoryId, StageId};
use spipe_plan::{Context, Family, Placement, Stage, Weights, footprint, needed};

/// The sockets on which a GPU may have something, the nearest first; none for a socket.
pub(crate) fn sockets(context: &Context<'_>, device: DeviceId) -> Vec<DeviceId> {
    let Some(nearest) = socket(context, device).filter(|_| !context.is_cpu(device)) else { return Vec::new() };
    let others = context.cost.devices().filter(|other| context.is_cpu(*other) && *other != nearest);
    let all: Vec<DeviceId> = std::iter::once(nearest).chain(others).collect();
    if all.len() > MOST_HOSTS { vec![nearest] } else { all }
}

/// `stage` with everything that it has on the host on that socket.
pub(crate) fn on_socket(context: &Context<'_>, stage: &Stage, socket: DeviceId) -> Stage {
    let home = context.hardware.devices()[socket].memory;
    Stage {
        optimizer: stage.optimizer.map(|_| socket),
        offload: stage.offload.map(|_| home),
        weights: match stage.weights {
            Weights::Streamed(_) => Weights::Streamed(home),
            Weights::Resident => Weights::Resident,
        },
        ..*stage
    }
}

/// The socket on which a stage has something, if it has anything on the host.
pub(crate) fn socket_of(context: &Context<'_>, stage: &Stage) -> Option<DeviceId> {
    let home = match stage.weights {
        Weights::Streamed(home) => Some(home),
        Weights::Resident => stage.offload,
    };
    let at = |memory: MemoryId| {
        let owns = |socket: &DeviceId| context.hardware.devices()[*socket].memory == memory;
        sockets(context, stage.device).into_iter().find(owns)
    };
    stage.optimizer.or_else(|| home.and_then(at))
}

/// `stage` on each other socket on which it may have what it has on the host.
pub(crate) fn elsewhere(context: &Context<'_>, stage: &Stage) -> Vec<Stage> {
    let Some(here) = socket_of(context, stage) else { return Vec::new() };
    let others = sockets(context, stage.device).into_iter().filter(|socket| *socket != here);
    others.map(|socket| on_socket(context, stage, socket)).collect()
}

/// `placement` with some of what its stages have on the fuller of two sockets on the other one, so that both are as full and step for as
/// long: every so manyth of the stages, for both to step at once. None where there is no choice.
pub(crate) fn shared_out(context: &Context<'_>, placement: &Placement) -> Option<Placement> {
    let choice = |stage: &Stage| socket_of(context, stage).is_some() && sockets(context, stage.device).len() > 1;
    if placement.system.family() == Family::Sharded || !placement.all_stages().any(choice) {
        return None;
    }
    let needs = footprint(context, placement);
    let room = |memory: MemoryId| context.hardware.memories()[memory].usable().as_f64();
    let held = |memory: MemoryId, id: StageId| {
        let need = needs.get(&memory).and_then(|stages| stages.get(&id));
        need.map_or(0.0, |need| need.total().as_f64())
    };
    let memory = |socket: DeviceId| context.hardware.devices()[socket].memory;
    let full = |memory: MemoryId| needed(&needs, memory).as_f64() / room(memory);
    let mut sockets: Vec<DeviceId> = context.cost.devices().filter(|device| context.is_cpu(*device)).collect();
    sockets.sort_by(|one, other| full(memory(*one)).total_cmp(&full(memory(*other))));
    let (emptier, fuller) = (*sockets.first()?, *sockets.last()?);
    let parts = [emptier, fuller].map(|socket| room(memory(socket)));
    let surplus = (full(memory(fuller)) - full(memory(emptier))) * parts[0] * parts[1] / (parts[0] + parts[1]);
    let mut shared = placement.clone();
    let list = if shared.backward.is_empty() { &mut shared.stages } else { &mut shared.backward };
    let here: Vec<(StageId, f64)> = list
        .enumerate()
        .filter(|(_, stage)| socket_of(context, stage) == Some(fuller) && elsewhere(context, stage).len() == 1)
        .map(|(id, _)| (id, held(memory(fuller), id)))
        .collect();
    let all: f64 = here.iter().map(|(_, held)| held).sum();
    let mut due = 0.0;
    for (id, held) in here {
        due += held * (surplus / all).min(1.0);
        // What is due by half of a stage is due.
        if held > 0.0 && due * 2.0 >= held {
            list[id] = on_socket(context, &list[id], emptier);
            due -= held;
        }
    }
    Some(shared).filter(|shared| shared != placement)
}
