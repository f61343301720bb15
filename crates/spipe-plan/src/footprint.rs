//! Bytes that a placement needs in every memory.

use crate::{Context, Dealing, FEWEST_OFFLOAD_SLOTS, Family, Held, InFlight, Placement, Stage, System};
use spipe_base::{Bytes, DeviceId, LayerId, MemoryId, StageId};
use std::{cmp::Reverse, collections::BTreeMap};

/// What one stage needs in one memory, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageFootprint {
    /// Parameters, gradients and optimizer state: held throughout.
    pub state: Bytes,
    /// What one microbatch holds between forward and backward: the stage's input and the saved activations.
    pub per_microbatch: Bytes,
    /// How many microbatches are held at once.
    pub in_flight: u64,
    /// Slots of the boundaries: one more input arriving, an output being written while the one before is copied out, and the
    /// same for gradients.
    pub slots: Bytes,
    /// What is recomputed, and what a forward or backward needs for itself.
    pub transient: Bytes,
}

impl StageFootprint {
    /// All of it.
    pub fn total(&self) -> Bytes {
        self.state + self.per_microbatch * self.in_flight + self.slots + self.transient
    }
}

/// The bytes needed in every memory, and by which stage.
pub type Footprint = BTreeMap<MemoryId, BTreeMap<StageId, StageFootprint>>;

/// What all stages together need in one memory.
pub fn needed(needs: &Footprint, memory: MemoryId) -> Bytes {
    needs.get(&memory).into_iter().flat_map(BTreeMap::values).map(StageFootprint::total).sum()
}

/// How a stage is joined to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// It is the end of the model.
    End,
    /// The neighbour is on the same device: what one writes, the other reads.
    Within,
    /// A copy lies between them, double-buffered on both sides.
    Across,
}

impl Boundary {
    /// What lies before and behind stage `id`.
    pub fn around(placement: &Placement, id: StageId) -> [Self; 2] {
        let stages = placement.stages.as_slice();
        let device = stages[id.index()].device;
        let towards = |neighbour: Option<&Stage>| match neighbour {
            None => Self::End,
            Some(neighbour) if neighbour.device == device => Self::Within,
            Some(_) => Self::Across,
        };
        [towards(id.index().checked_sub(1).map(|before| &stages[before])), towards(stages.get(id.index() + 1))]
    }
}

/// How many microbatches of what its stages offload a device holds at least, if there are so many: one that is computed on and one that
/// moves, on their way out and on their way back.
pub const OFFLOAD_SLOTS: u64 = 2 * FEWEST_OFFLOAD_SLOTS;

/// What each memory must hold for `placement`, with the number of microbatches in flight that [`InFlight::of`] knows.
pub fn footprint(context: &Context<'_>, placement: &Placement) -> Footprint {
    let microbatches = context.workload().microbatches;
    footprint_with(context, placement, &|stage| {
        InFlight::of(placement, stage, microbatches, |device| context.is_cpu(device)).into()
    })
}

/// What each memory must hold for `placement` when so many microbatches of each stage are in flight.
///
/// Stages that share a memory add up, transient parts included: lanes of different devices in one memory run at the same
/// time. Of the stages of one device only the largest transient part counts.
pub fn footprint_with(context: &Context<'_>, placement: &Placement, held: &dyn Fn(StageId) -> Held) -> Footprint {
    if placement.system.family() == Family::Sharded {
        return crate::sharded::footprint(context, placement);
    }
    if placement.system.family() == Family::Rounds {
        return crate::rounds::footprint(context, placement);
    }
    let mut memories = Footprint::new();
    let mut largest: BTreeMap<DeviceId, (StageId, Bytes)> = BTreeMap::new();
    let moving = on_their_way(context, placement, held);
    for (id, stage) in placement.stages.enumerate() {
        let memory = context.hardware.devices()[stage.device].memory;
        let held = held(id);
        let mut need = stage_footprint(context, stage, held.in_flight, Boundary::around(placement, id));
        let backward = context.backward_of(stage.layers).is_some();
        if placement.system.splits_backward() && backward {
            need.slots += waiting_for_weights(context, stage) * held.awaiting_weights;
        }
        need.slots += moving.get(&id).copied().unwrap_or_default();
        let [before, behind] = Boundary::around(placement, id);
        // Where adjacent stages take their turn together, the transient part has the one that is handed on.
        let one = u64::from(placement.system.dealing() == Dealing::Single);
        if before == Boundary::Within && context.passes_gradient(stage.layers) {
            need.slots += input_bytes(context, stage) * held.gradients.saturating_sub(one);
        }
        // Beyond the two slots of double buffering.
        let more = held.slots.saturating_sub(2);
        let output = context.cost.memory(stage.layers.last(), stage.device).boundary;
        if before == Boundary::Across {
            need.slots +=
                input_bytes(context, stage) * (more * if context.passes_gradient(stage.layers) { 2 } else { 1 });
        }
        if behind == Boundary::Across {
            need.slots += output * (more * if backward { 2 } else { 1 });
        }
        if behind == Boundary::Within {
            need.slots += output * held.outputs.saturating_sub(one);
        }
        let before = largest.entry(stage.device).or_insert((id, Bytes::ZERO));
        if need.transient > before.1 {
            let other = std::mem::replace(before, (id, need.transient)).0;
            if let Some(other) =
                memories.get_mut(&memory).and_then(|stages: &mut BTreeMap<_, _>| stages.get_mut(&other))
            {
                let other: &mut StageFootprint = other;
                other.transient = Bytes::ZERO;
            }
        } else if before.0 != id {
            need.transient = Bytes::ZERO;
        }
        need.state += shared_state(context, placement, stage);
        if gradients_leave(context, placement, stage) {
            need.state -= gradient_bytes(context, stage);
        }
        add(&mut memories, memory, (id, need));
        let delayed = placement.system == System::ZeroOffloadDelayed;
        for (memory, need) in on_the_host(context, stage, held.at_most, delayed) {
            add(&mut memories, memory, (id, need));
        }
    }
    add_passing_gradients(context, placement, &mut memories);
    memories
}

/// Of gradients that leave, those of two stages of a device at most: one that is computed, and one that is copied out.
fn add_passing_gradients(context: &Context<'_>, placement: &Placement, memories: &mut Footprint) {
    let mut passing: BTreeMap<DeviceId, (StageId, Bytes)> = BTreeMap::new();
    for (id, stage) in placement.stages.enumerate() {
        let (_, most) = passing.entry(stage.device).or_insert((id, Bytes::ZERO));
        if gradients_leave(context, placement, stage) {
            *most = gradient_bytes(context, stage).max(*most);
        }
    }
    for (device, (id, gradients)) in passing {
        let need = StageFootprint { slots: gradients * GRADIENT_SLOTS, ..StageFootprint::default() };
        add(memories, context.hardware.devices()[device].memory, (id, need));
    }
}

/// How many stages' gradients a device holds while they leave.
pub const GRADIENT_SLOTS: u64 = 2;

/// Whether the gradients of a stage leave with each microbatch: not those that another stage adds to.
pub fn gradients_leave(context: &Context<'_>, placement: &Placement, stage: &Stage) -> bool {
    let shares = context.model.borrows(stage.layers).is_some() || context.model.lends(stage.layers).is_some();
    let elsewhere = stage.optimizer.is_some_and(|socket| socket != stage.device);
    placement.knobs.gradients_leave && elsewhere && !shares && context.trains(stage.layers)
}

fn gradient_bytes(context: &Context<'_>, stage: &Stage) -> Bytes {
    stage.layers.iter().map(|layer| context.cost.memory(layer, stage.device).gradients).sum()
}

/// What each stage has on its way to the host and back at once: the stages of a device share its slots, in which those count that offload
/// most.
fn on_their_way(
    context: &Context<'_>,
    placement: &Placement,
    held: &dyn Fn(StageId) -> Held,
) -> BTreeMap<StageId, Bytes> {
    let offloads = |stage: &Stage| stage.offload.is_some() && context.backward_of(stage.layers).is_some();
    let leaving = placement.stages.enumerate().filter(|(_, stage)| offloads(stage));
    let mut leaving: Vec<(StageId, Bytes)> = leaving.map(|(id, stage)| (id, offloaded_bytes(context, stage))).collect();
    leaving.sort_by_key(|(_, bytes)| Reverse(*bytes));
    let mut free: BTreeMap<DeviceId, u64> = BTreeMap::new();
    let mut moving = BTreeMap::new();
    for (id, bytes) in leaving {
        let free = free.entry(placement.stages[id].device).or_insert(placement.offload_slots().saturating_mul(2));
        let copies = held(id).at_most.min(*free);
        *free -= copies;
        moving.insert(id, bytes * copies);
    }
    moving
}

/// What a stage holds because a layer of another stage uses the same parameters: the stage that lacks their owner a copy of them,
/// unless the owner is in the same memory, and their gradients from its own use; the owner's stage those gradients once they
/// have come.
pub(crate) fn shared_state(context: &Context<'_>, placement: &Placement, stage: &Stage) -> Bytes {
    let memory = |stage: &Stage| context.hardware.devices()[stage.device].memory;
    let together = |layer: LayerId| {
        let other = placement.stages.iter().find(|other| other.layers.contains(layer));
        other.is_some_and(|other| memory(other) == memory(stage))
    };
    let of = |user: LayerId| context.cost.memory(user, stage.device);
    let borrowed = context.model.borrows(stage.layers).map(|tie| {
        let copy = if together(tie.owner) { Bytes::ZERO } else { of(tie.user).tied_parameters };
        copy + of(tie.user).tied_gradients
    });
    let lent =
        context.model.lends(stage.layers).filter(|tie| !together(tie.user)).map(|tie| of(tie.user).tied_gradients);
    borrowed.unwrap_or_default() + lent.unwrap_or_default()
}

/// What one microbatch keeps between the two parts of a split backward beside what it saved: what was recomputed or reloaded,
/// and the incoming gradient.
fn waiting_for_weights(context: &Context<'_>, stage: &Stage) -> Bytes {
    let of = |layer| context.cost.memory(layer, stage.device);
    let again: Bytes =
        stage.recomputed_layers().iter().flat_map(|layers| layers.iter()).map(|layer| of(layer).saved).sum();
    let reloaded = if stage.offload.is_some() { offloaded_bytes(context, stage) } else { Bytes::ZERO };
    again + reloaded + of(stage.layers.last()).boundary
}

pub(crate) fn add(memories: &mut Footprint, memory: MemoryId, (id, need): (StageId, StageFootprint)) {
    let here = memories.entry(memory).or_default().entry(id).or_default();
    here.state += need.state;
    here.slots += need.slots;
    here.transient += need.transient;
    // The host holds what leaves the device; the two do not share a memory.
    here.per_microbatch += need.per_microbatch;
    here.in_flight = here.in_flight.max(need.in_flight);
}

/// What a stage holds in host memories: optimizer state and gradients of a stage that is stepped there, and activations that
/// are offloaded.
fn on_the_host(context: &Context<'_>, stage: &Stage, in_flight: u64, delayed: bool) -> Vec<(MemoryId, StageFootprint)> {
    let mut needs = Vec::new();
    if context.backward_of(stage.layers).is_none() {
        return needs;
    }
    let of = |layer| context.cost.memory(layer, stage.device);
    if let Some(socket) = stage.optimizer {
        // The new parameters, in the device's precision, wait here for their way back; a delayed step uses the gradients of
        // the iteration before while those of this one arrive.
        let gradients = if delayed { 2 } else { 1 };
        let held =
            |memory: &spipe_cost::LayerMemory| memory.optimizer + memory.gradients * gradients + memory.parameters;
        let state = stage.layers.iter().map(of).map(held).sum();
        let need = StageFootprint { state, ..StageFootprint::default() };
        needs.push((context.hardware.devices()[socket].memory, need));
    }
    if let Some(memory) = stage.offload {
        let per_microbatch = offloaded_bytes(context, stage);
        needs.push((memory, StageFootprint { per_microbatch, in_flight, ..StageFootprint::default() }));
    }
    needs
}

/// What one microbatch of a stage offloads: what its layers save, except those that are recomputed and the stage's input.
pub fn offloaded_bytes(context: &Context<'_>, stage: &Stage) -> Bytes {
    let need = stage_footprint(context, &stage_without_offload(stage), InFlight(1), [Boundary::End; 2]);
    need.per_microbatch.saturating_sub(input_bytes(context, stage))
}

const fn stage_without_offload(stage: &Stage) -> Stage {
    Stage { offload: None, ..*stage }
}

/// What one stage needs on its device between the given boundaries.
///
/// With saved activations S(l) that include the input of layer l, a stage of layers a..b of which the first r are
/// recomputed holds per microbatch its input plus Σ S(l) over the others, where the input is not counted twice if r = 0. A
/// stage that offloads keeps its input; [`footprint_with`] adds what is on its way.
pub fn stage_footprint(
    context: &Context<'_>,
    stage: &Stage,
    in_flight: InFlight,
    [before, behind]: [Boundary; 2],
) -> StageFootprint {
    let memory = |layer| context.cost.memory(layer, stage.device);
    let (training, passes) = (context.backward_of(stage.layers).is_some(), context.passes_gradient(stage.layers));
    let split = stage.layers.first().index() + stage.recomputed;
    let recomputes = |layer: &LayerId| layer.index() < split;
    let input = input_bytes(context, stage);
    let output = memory(stage.layers.last()).boundary;
    let kept: Bytes = stage.layers.iter().filter(|layer| !recomputes(layer)).map(|layer| memory(layer).saved).sum();
    let per_microbatch = if stage.recomputed == 0 { kept.max(input) } else { kept + input };
    let copies = if training { 2 } else { 1 };
    let slots_in =
        if before == Boundary::Across { input + if passes { input * 2 } else { Bytes::ZERO } } else { Bytes::ZERO };
    let slots_out = if behind == Boundary::Across { output * (2 * copies) } else { Bytes::ZERO };
    // Within a device, the gradient that came and the one that goes on, or the output that the next stage reads.
    let gradients = if before == Boundary::Within && (passes || !training) { input } else { Bytes::ZERO }
        + if behind == Boundary::Within { output * copies } else { Bytes::ZERO };
    let again: Bytes = stage.layers.iter().filter(recomputes).map(|layer| memory(layer).saved).sum();
    let workspace = stage.layers.iter().map(|layer| memory(layer).workspace).max().unwrap_or_default();
    let state = |memory: &spipe_cost::LayerMemory| match stage.optimizer {
        Some(_) => memory.state() - memory.optimizer,
        None => memory.state(),
    };
    let in_flight = if training { in_flight.0 } else { 1 };
    let leaves = stage.offload.is_some() && training;
    StageFootprint {
        state: stage.layers.iter().map(|layer| state(memory(layer))).sum(),
        per_microbatch: if leaves { input.min(per_microbatch) } else { per_microbatch },
        in_flight,
        slots: slots_in + slots_out,
        transient: again + workspace + gradients,
    }
}

/// The bytes of one microbatch of the stage's input in the precision of the stage's device: the boundary of the layer
/// before it, or the first layer's own input.
pub(crate) fn input_bytes(context: &Context<'_>, stage: &Stage) -> Bytes {
    match stage.layers.first().index().checked_sub(1) {
        Some(before) => context.cost.memory(before.into(), stage.device).boundary,
        None => context.cost.memory(stage.layers.first(), stage.device).input,
    }
}
