//! The footprint of pipelines.

use super::drives::staging;
use super::stage::{
    Boundary, Footprint, StageFootprint, add, input_bytes, offloaded_bytes, recomputed_bytes, stage_footprint,
    tied_state,
};
use crate::{Context, Dealing, FEWEST_OFFLOAD_SLOTS, GradientsLeave, Held, Placement, Stage, Update};
use spipe_base::{Bytes, DeviceId, IdVec, MemoryId, StageId};
use spipe_cost::LayerMemory;
use std::{cmp::Reverse, collections::BTreeMap};

/// The least number of microbatches of offloaded activations for which a device has slots, unless
/// fewer are in flight: on their way out and on their way back, one in computation and one being
/// copied each.
pub const OFFLOAD_SLOTS: u64 = 2 * FEWEST_OFFLOAD_SLOTS;

/// The number of stages whose gradients a device holds while gradients are copied to the host:
/// those of the stage in computation, and those of the stage being copied.
pub const GRADIENT_SLOTS: u64 = 2;

/// The bytes in each memory when the order holds `held(stage)` of each stage.
pub(super) fn footprint(context: &Context<'_>, placement: &Placement, held: &dyn Fn(StageId) -> Held) -> Footprint {
    let held: IdVec<StageId, Held> = placement.stages.ids().map(held).collect();
    let moving = offloads_under_way(context, placement, &held, &|_| true);
    let staged = offloads_under_way(context, placement, &held, &|stage| staging(context, stage).is_some());
    let stage_need = |(id, stage): (StageId, &Stage)| {
        let boundaries = Boundary::around(placement, id);
        let mut need = stage_footprint(context, stage, held[id].in_flight, boundaries);
        need.slots += waiting_slots(context, placement, stage, held[id]);
        need.slots += more_boundary_slots(context, placement, (stage, boundaries), held[id]);
        need.slots += moving.get(&id).copied().unwrap_or_default();
        need.slots += reduced_parts(context, stage);
        need.state += tied_state(context, placement, stage);
        if gradients_leave(context, placement, stage) {
            need.state -= gradient_bytes(context, stage);
        }
        need
    };
    let mut needs: IdVec<StageId, StageFootprint> = placement.stages.enumerate().map(stage_need).collect();
    keep_largest_transient(placement, &mut needs);
    let mut memories = Footprint::new();
    for (id, stage) in placement.stages.enumerate() {
        add(&mut memories, context.hardware.devices()[stage.lead()].memory, (id, needs[id]));
        for (memory, need) in on_the_host(context, placement, stage, held[id].at_most) {
            add(&mut memories, memory, (id, need));
        }
        if let Some((host, slots)) = staging(context, stage).zip(staged.get(&id).copied()) {
            add(&mut memories, host, (id, StageFootprint { slots, ..StageFootprint::default() }));
        }
    }
    add_gradient_slots(context, placement, &mut memories);
    memories
}

/// The part of a stage's gradients that a holder reduces for all, and the part of its parameters that it updates if the
/// optimizer is divided.
fn reduced_parts(context: &Context<'_>, stage: &Stage) -> Bytes {
    let mesh = context.mesh();
    if mesh.holders() == 1 || !context.trains(stage.layers) {
        return Bytes::ZERO;
    }
    let one = |part: fn(&LayerMemory) -> Bytes| mesh.holders_part(context.by_holders(stage, part));
    let updated = if mesh.state_parts() > 1 { one(|memory| memory.updated) } else { Bytes::ZERO };
    one(|memory| memory.gradients) + updated
}

/// Sets the transient part of all stages of a device to zero, but for the first of the largest.
fn keep_largest_transient(placement: &Placement, needs: &mut IdVec<StageId, StageFootprint>) {
    let mut largest: BTreeMap<DeviceId, StageId> = BTreeMap::new();
    for (id, stage) in placement.stages.enumerate() {
        let first = largest.entry(stage.lead()).or_insert(id);
        if needs[id].transient > needs[*first].transient {
            *first = id;
        }
    }
    for (id, stage) in placement.stages.enumerate() {
        if largest[&stage.lead()] != id {
            needs[id].transient = Bytes::ZERO;
        }
    }
}

/// The bytes of microbatches between the two parts of a split backward beside their saved
/// activations: recomputed or reloaded activations, and the incoming gradient.
fn waiting_slots(context: &Context<'_>, placement: &Placement, stage: &Stage, held: Held) -> Bytes {
    if !placement.order.splits_backward() || context.backward_of(stage.layers).is_none() {
        return Bytes::ZERO;
    }
    let reloaded = if stage.offload.is_some() { offloaded_bytes(context, stage) } else { Bytes::ZERO };
    let incoming = context.cost.memory(stage.layers.last(), stage.lead()).boundary;
    (recomputed_bytes(context, stage) + reloaded + incoming) * held.awaiting_weights
}

/// The bytes of boundary slots beyond those of [`stage_footprint`]: more than two slots of a copy,
/// and outputs or gradients that wait for a stage of the same device.
fn more_boundary_slots(
    context: &Context<'_>,
    placement: &Placement,
    (stage, [before, behind]): (&Stage, [Boundary; 2]),
    held: Held,
) -> Bytes {
    let passes = context.passes_gradient(stage.layers);
    let input = input_bytes(context, stage);
    let output = context.cost.memory(stage.layers.last(), stage.lead()).boundary;
    // Adjacent stages of one device that run as one stage pass on a single tensor, which the
    // transient part counts.
    let one = u64::from(placement.order.dealing() == Dealing::Single);
    // Beyond the two slots of double buffering.
    let more = held.slots.saturating_sub(2);
    let slots_in = match before {
        Boundary::Across => input * (more * if passes { 2 } else { 1 }),
        Boundary::Within if passes => input * held.gradients.saturating_sub(one),
        Boundary::Within | Boundary::End => Bytes::ZERO,
    };
    let slots_out = match behind {
        Boundary::Across => output * (more * if context.backward_of(stage.layers).is_some() { 2 } else { 1 }),
        Boundary::Within => output * held.outputs.saturating_sub(one),
        Boundary::End => Bytes::ZERO,
    };
    slots_in + slots_out
}

/// Adds the slots of gradients that are copied to the host after each microbatch:
/// [`GRADIENT_SLOTS`] times the largest of each device, under its first stage.
fn add_gradient_slots(context: &Context<'_>, placement: &Placement, memories: &mut Footprint) {
    let mut largest: BTreeMap<DeviceId, (StageId, Bytes)> = BTreeMap::new();
    for (id, stage) in placement.stages.enumerate() {
        let (_, most) = largest.entry(stage.lead()).or_insert((id, Bytes::ZERO));
        if gradients_leave(context, placement, stage) {
            *most = gradient_bytes(context, stage).max(*most);
        }
    }
    for (device, (id, gradients)) in largest {
        let need = StageFootprint { slots: gradients * GRADIENT_SLOTS, ..StageFootprint::default() };
        add(memories, context.hardware.devices()[device].memory, (id, need));
    }
}

/// Whether the gradients of a stage are copied to the host after each microbatch. Stages with tied
/// layers are excepted, because another stage adds to their gradients.
pub fn gradients_leave(context: &Context<'_>, placement: &Placement, stage: &Stage) -> bool {
    let shares = context.model.borrows(stage.layers).is_some() || context.model.lends(stage.layers).is_some();
    let elsewhere = stage.optimizer.is_some_and(|socket| socket != stage.lead());
    placement.gradients_leave == GradientsLeave::EachMicrobatch && elsewhere && !shares && context.trains(stage.layers)
}

fn gradient_bytes(context: &Context<'_>, stage: &Stage) -> Bytes {
    stage.layers.iter().map(|layer| context.cost.memory(layer, stage.lead()).gradients).sum()
}

/// The bytes of each stage among `chosen` that are on their way to the host or back at once. The
/// stages of a device share its slots; the count gives them to the stages that offload most. Stages
/// whose activations go on to a drive have as many slots in DRAM as on their device.
fn offloads_under_way(
    context: &Context<'_>,
    placement: &Placement,
    held: &IdVec<StageId, Held>,
    chosen: &dyn Fn(&Stage) -> bool,
) -> BTreeMap<StageId, Bytes> {
    let leaves = |stage: &Stage| stage.offload.is_some() && context.backward_of(stage.layers).is_some();
    let offloads = |stage: &Stage| leaves(stage) && chosen(stage);
    let leaving = placement.stages.enumerate().filter(|(_, stage)| offloads(stage));
    let mut leaving: Vec<(StageId, Bytes)> = leaving.map(|(id, stage)| (id, offloaded_bytes(context, stage))).collect();
    leaving.sort_by_key(|(_, bytes)| Reverse(*bytes));
    let mut free: BTreeMap<DeviceId, u64> = BTreeMap::new();
    let mut moving = BTreeMap::new();
    for (id, bytes) in leaving {
        let free = free.entry(placement.stages[id].lead()).or_insert(placement.offload_slots().saturating_mul(2));
        let copies = held[id].at_most.min(*free);
        *free -= copies;
        moving.insert(id, bytes * copies);
    }
    moving
}

/// The needs of a stage in host memories: the optimizer state and gradients of a stage whose
/// optimizer step runs there, and offloaded activations.
fn on_the_host(
    context: &Context<'_>,
    placement: &Placement,
    stage: &Stage,
    in_flight: u64,
) -> Vec<(MemoryId, StageFootprint)> {
    let mut needs = Vec::new();
    if context.backward_of(stage.layers).is_none() {
        return needs;
    }
    if let Some(socket) = stage.optimizer {
        // The updated parameters, in the device's precision, wait here for their copy. A delayed
        // step uses the gradients of the iteration before while those of this one arrive.
        let gradients = if placement.update == Update::Delayed { 2 } else { 1 };
        // Of a divided state, each holder updates its part.
        let held = |layer| {
            let memory = context.cost.memory(layer, stage.lead());
            let part = |bytes| context.cost.state_part(layer, bytes);
            memory.optimizer + part(memory.gradients) * gradients + part(memory.updated)
        };
        let state = stage.layers.iter().map(held).sum();
        let need = StageFootprint { state, ..StageFootprint::default() };
        needs.push((context.hardware.devices()[socket].memory, need));
    }
    if let Some(memory) = stage.offload {
        let per_microbatch = offloaded_bytes(context, stage);
        needs.push((memory, StageFootprint { per_microbatch, in_flight, ..StageFootprint::default() }));
    }
    needs
}
