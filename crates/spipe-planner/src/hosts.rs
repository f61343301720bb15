//! The host data of a stage on a GPU: its optimizer state, streamed parameters and offloaded
//! activations.
//!
//! All host data of a stage is on one NUMA node: the one nearest to the GPU, or another one, whose
//! cores and DRAM would be idle where all GPUs are near the first.

use spipe_base::{DeviceId, MemoryId, StageId};
use spipe_plan::{Context, Footprint, Placement, Stage, Weights, check, footprint, needed};
use std::collections::{BTreeMap, BTreeSet};

/// The most hosts among which a GPU has a choice: the NUMA nodes of two sockets of four each.
pub(crate) const MOST_HOSTS: usize = 8;

/// Returns the sockets that may have host data of `device`, the nearest first; none for a socket.
pub(crate) fn sockets(context: &Context<'_>, device: DeviceId) -> Vec<DeviceId> {
    let hardware = context.hardware;
    if context.is_cpu(device) {
        return Vec::new();
    }
    let socket = |memory: &MemoryId| hardware.memories()[*memory].device.filter(|device| context.is_cpu(*device));
    hardware.host_memories(device).iter().filter_map(socket).take(MOST_HOSTS).collect()
}

/// Returns `stage` with all its host data on `socket`.
pub(crate) fn on_socket(context: &Context<'_>, stage: &Stage, socket: DeviceId) -> Stage {
    let home = context.hardware.devices()[socket].memory;
    Stage { state: stage.state, ..stage.moved(stage.lead(), |_| socket, |_| home) }
}

/// Returns the socket with the host data of a stage, if it has any.
pub(crate) fn socket_of(context: &Context<'_>, stage: &Stage) -> Option<DeviceId> {
    let home = match stage.weights {
        Weights::Streamed(home) => Some(home),
        Weights::Resident => stage.offload,
    };
    let at = |memory: MemoryId| {
        let owns = |socket: &DeviceId| context.hardware.devices()[*socket].memory == memory;
        sockets(context, stage.lead()).into_iter().find(owns)
    };
    stage.optimizer.or_else(|| home.and_then(at))
}

/// Returns `stage` once for each other socket that may have its host data.
pub(crate) fn elsewhere(context: &Context<'_>, stage: &Stage) -> Vec<Stage> {
    let Some(here) = socket_of(context, stage) else { return Vec::new() };
    let others = sockets(context, stage.lead()).into_iter().filter(|socket| *socket != here);
    others.map(|socket| on_socket(context, stage, socket)).collect()
}

/// Whether `placement` fits, as it is or with its host data spread over the sockets
/// ([`shared_out`]).
pub(crate) fn fits(context: &Context<'_>, placement: &Placement) -> bool {
    let holds = |placement: &Placement| check(context, placement).is_ok();
    holds(placement) || shared_out(context, placement).is_some_and(|shared| holds(&shared))
}

/// Returns `placement` with host data moved from fuller sockets to emptier ones, so that all are
/// about equally full and run optimizer steps for as long. The stages that move are evenly spaced,
/// so that all sockets work at the same time. `None` if nothing moves.
pub(crate) fn shared_out(context: &Context<'_>, placement: &Placement) -> Option<Placement> {
    let choice = |stage: &Stage| socket_of(context, stage).is_some() && sockets(context, stage.lead()).len() > 1;
    if placement.shards_parameters() || !placement.all_stages().any(choice) {
        return None;
    }
    let mut all: Vec<DeviceId> = context.cost.devices().filter(|device| context.is_cpu(*device)).collect();
    let mut filled = Filled::of(context, placement);
    all.sort_by(|one, other| filled.part(*other).total_cmp(&filled.part(*one)));
    let mut shared = placement.clone();
    all[..all.len() - 1].iter().for_each(|fuller| relieve(&mut shared, &mut filled, *fuller));
    Some(shared).filter(|shared| shared != placement)
}

/// Moves host data from `fuller`, stage by stage, to the emptiest other socket that may have it,
/// until `fuller` is as full as the average of these sockets.
fn relieve(placement: &mut Placement, filled: &mut Filled<'_, '_>, fuller: DeviceId) {
    let context = filled.context;
    let list = if placement.backward.is_empty() { &mut placement.stages } else { &mut placement.backward };
    let here = |(_, stage): &(StageId, &Stage)| socket_of(context, stage) == Some(fuller);
    let here: Vec<(StageId, f64)> =
        list.enumerate().filter(here).map(|(id, _)| (id, filled.of_stage(fuller, id))).collect();
    let may = here.iter().flat_map(|(id, _)| sockets(context, list[*id].lead()));
    let group: BTreeSet<DeviceId> = may.collect();
    let sum = |part: &dyn Fn(DeviceId) -> f64| group.iter().map(|socket| part(*socket)).sum::<f64>();
    let even = sum(&|socket| filled.held(socket)) / sum(&|socket| filled.room(socket));
    let surplus = filled.held(fuller) - even * filled.room(fuller);
    let all: f64 = here.iter().map(|(_, held)| held).sum();
    let mut due = 0.0;
    for (id, held) in here {
        due += held * (surplus / all).clamp(0.0, 1.0);
        let others = sockets(context, list[id].lead()).into_iter().filter(|socket| *socket != fuller);
        let emptiest = others.min_by(|one, other| filled.part(*one).total_cmp(&filled.part(*other)));
        // A stage moves once half of it is due.
        if let Some(emptiest) = emptiest.filter(|_| held > 0.0 && due * 2.0 >= held) {
            list[id] = on_socket(context, &list[id], emptiest);
            filled.move_stage(id, (fuller, emptiest));
            due -= held;
        }
    }
}

/// The bytes that a placement needs in each memory.
struct Filled<'c, 'a> {
    context: &'c Context<'a>,
    needs: Footprint,
    held: BTreeMap<MemoryId, f64>,
}

impl<'c, 'a> Filled<'c, 'a> {
    fn of(context: &'c Context<'a>, placement: &Placement) -> Self {
        let needs = footprint(context, placement);
        let held = needs.keys().map(|memory| (*memory, needed(&needs, *memory).as_f64())).collect();
        Self { context, needs, held }
    }

    fn memory(&self, socket: DeviceId) -> MemoryId {
        self.context.hardware.devices()[socket].memory
    }

    fn room(&self, socket: DeviceId) -> f64 {
        self.context.hardware.memories()[self.memory(socket)].usable().as_f64()
    }

    fn held(&self, socket: DeviceId) -> f64 {
        self.held.get(&self.memory(socket)).copied().unwrap_or(0.0)
    }

    fn part(&self, socket: DeviceId) -> f64 {
        self.held(socket) / self.room(socket)
    }

    fn of_stage(&self, socket: DeviceId, id: StageId) -> f64 {
        let need = self.needs.get(&self.memory(socket)).and_then(|stages| stages.get(&id));
        need.map_or(0.0, |need| need.total().as_f64())
    }

    /// Moves the bytes of a stage from one socket's memory to another's.
    fn move_stage(&mut self, id: StageId, (from, to): (DeviceId, DeviceId)) {
        let bytes = self.of_stage(from, id);
        let (from, to) = (self.memory(from), self.memory(to));
        if let Some(need) = self.needs.get_mut(&from).and_then(|stages| stages.remove(&id)) {
            self.needs.entry(to).or_default().insert(id, need);
        }
        *self.held.entry(from).or_default() -= bytes;
        *self.held.entry(to).or_default() += bytes;
    }
}

/// Returns the GPUs of the machine.
pub(crate) fn gpus(context: &Context<'_>) -> Vec<DeviceId> {
    context.hardware.gpus().collect()
}

/// Returns the CPU socket nearest to `device`.
pub(crate) fn socket(context: &Context<'_>, device: DeviceId) -> Option<DeviceId> {
    let host = context.hardware.host_memory(device)?;
    context.hardware.memories()[host].device.filter(|socket| context.is_cpu(*socket))
}

/// Returns `stage` on another device, with its host data near that.
pub(crate) fn on_device(context: &Context<'_>, stage: &Stage, device: DeviceId) -> Stage {
    let home = context.hardware.host_memory(device);
    Stage {
        offload: stage.offload.and(home),
        optimizer: stage.optimizer.and(socket(context, device)),
        weights: match (stage.weights, home) {
            (Weights::Streamed(_), Some(home)) => Weights::Streamed(home),
            (weights, _) => weights,
        },
        ..stage.on(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Instance, LayerText, MachineText, machine_text, model_text, workload};
    use spipe_base::LayerRange;
    use spipe_cost::Mode;
    use spipe_plan::System;

    const LAYER: LayerText =
        LayerText { count: 6, times: [1, 1, 1], slowdown: 9, parameters: 9, boundary: 1, saved: 1, workspace: 0 };

    /// The layers, two GPUs of `memory` MiB, and sockets.
    fn instance(layers: &[LayerText], memory: u64, sockets: usize) -> Instance {
        let machine = MachineText { gpus: vec![(memory, 20); 2], root: 20, sockets: vec![8000; sockets] };
        Instance::new(&model_text(layers), &machine_text(&machine), &workload(4, Mode::Train))
    }

    /// Four layers of unlike sizes, all updated on the first of three sockets.
    #[test]
    fn what_is_shared_out_is_counted_where_it_goes() {
        let layers = [1, 2, 3, 4].map(|factor| LayerText { parameters: factor * 9_000_000, count: 1, ..LAYER });
        let instance = instance(&layers, 4000, 3);
        let context = instance.context();
        let socket = |index: usize| context.hardware.device(&format!("cpu{index}")).unwrap();
        let stage = |layer: usize| {
            let device = context.hardware.device(&format!("gpu{}", layer / 2)).unwrap();
            Stage::new(device, LayerRange::new(layer.into(), layer.into()).unwrap()).with_optimizer_on(socket(0))
        };
        let mut placement = Placement::new(System::OneForwardOneBackward, (0..4).map(stage));
        let shared = shared_out(&context, &placement).unwrap();
        let parts: Vec<f64> = (0..3).map(|index| Filled::of(&context, &shared).part(socket(index))).collect();
        assert!(parts.iter().all(|part| *part > 0.0), "{parts:?}");
        let mut filled = Filled::of(&context, &placement);
        filled.move_stage(StageId::new(2), (socket(0), socket(1)));
        let moved = &mut placement.stages[StageId::new(2)];
        *moved = on_socket(&context, moved, socket(1));
        let again = Filled::of(&context, &placement);
        for index in 0..3 {
            assert!((filled.held(socket(index)) - again.held(socket(index))).abs() < 0.5);
        }
        assert!((filled.of_stage(socket(1), StageId::new(2)) - again.of_stage(socket(1), StageId::new(2))).abs() < 0.5);
    }
}
