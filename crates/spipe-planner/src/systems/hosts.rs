//! Where on the host a stage on a GPU has what it leaves there: its optimizer state, its streamed parameters, its activations.
//!
//! All of that is on one NUMA node: the one nearest to the GPU, or on machines with two sockets the other one, whose cores and whose DRAM
//! would otherwise have nothing to do where all GPUs are near the first.

use super::socket;
use crate::figures::MOST_HOSTS;
use spipe_base::{Bytes, DeviceId, MemoryId, StageId};
use spipe_plan::{Context, Family, Placement, Stage, Weights, footprint};
use std::collections::BTreeMap;

/// The sockets on which a GPU may have something, the nearest first; none for a socket.
pub(crate) fn sockets(context: &Context<'_>, device: DeviceId) -> Vec<DeviceId> {
    let Some(nearest) = socket(context, device).filter(|_| !context.is_cpu(device)) else { return Vec::new() };
    let others = context.cost.devices().filter(|other| context.is_cpu(*other) && *other != nearest);
    let all: Vec<DeviceId> = std::iter::once(nearest).chain(others).collect();
    if all.len() > MOST_HOSTS { vec![nearest] } else { all }
}

/// `stage` with everything that it has on the host on that socket.
fn on_socket(context: &Context<'_>, stage: &Stage, socket: DeviceId) -> Stage {
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

/// `placement` with what its stages have on the host shared out, each stage's on the socket that has the most room left, so that both are as
/// full and step for as long; none where there is no choice.
pub(crate) fn shared_out(context: &Context<'_>, placement: &Placement) -> Option<Placement> {
    let choice = |stage: &Stage| socket_of(context, stage).is_some() && sockets(context, stage.device).len() > 1;
    if placement.system.family() == Family::Sharded || !placement.all_stages().any(choice) {
        return None;
    }
    let needs = footprint(context, placement);
    let of_stage = |memory: MemoryId, id: StageId| needs.get(&memory).and_then(|stages| stages.get(&id)).map(|need| need.total());
    let mut left: BTreeMap<MemoryId, Bytes> = BTreeMap::new();
    let memory = |socket: DeviceId| context.hardware.devices()[socket].memory;
    for socket in context.cost.devices().filter(|device| context.is_cpu(*device)) {
        left.insert(memory(socket), context.hardware.memories()[memory(socket)].usable());
    }
    let mut shared = placement.clone();
    let list = if shared.backward.is_empty() { &mut shared.stages } else { &mut shared.backward };
    for (index, stage) in list.iter_mut().enumerate() {
        let Some(here) = socket_of(context, stage) else { continue };
        let need = of_stage(memory(here), StageId::from(index)).unwrap_or(Bytes::ZERO);
        let room = |socket: &DeviceId| left.get(&memory(*socket)).copied().unwrap_or(Bytes::ZERO);
        // Of two with as much room the nearer one.
        let sockets = sockets(context, stage.device);
        let roomiest = sockets.iter().copied().rev().max_by_key(room)?;
        *stage = on_socket(context, stage, roomiest);
        if let Some(left) = left.get_mut(&memory(roomiest)) {
            *left = left.saturating_sub(need);
        }
    }
    Some(shared).filter(|shared| shared != placement)
}
