//! The bytes of one stage, and the sum over stages.

use crate::{Context, InFlight, Placement, Stage};
use spipe_base::{Bytes, LayerId, MemoryId, StageId};
use spipe_cost::LayerMemory;
use std::collections::{BTreeMap, btree_map::Entry};

/// The bytes that one stage needs in one memory, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageFootprint {
    /// Parameters, gradients and optimizer state, held throughout.
    pub state: Bytes,
    /// The input and the saved activations of one microbatch, held between its forward and its
    /// backward.
    pub per_microbatch: Bytes,
    /// The most microbatches held at once.
    pub in_flight: u64,
    /// Slots of the boundaries. Going forward: one more input that arrives, and an output that is
    /// written while the one before it is copied out. Going backward: the same for gradients.
    pub slots: Bytes,
    /// Recomputed activations, and the workspace of a forward or backward.
    pub transient: Bytes,
}

impl StageFootprint {
    /// The sum over all purposes.
    pub fn total(&self) -> Bytes {
        self.state + self.per_microbatch * self.in_flight + self.slots + self.transient
    }
}

/// The bytes needed in each memory, by stage.
pub type Footprint = BTreeMap<MemoryId, BTreeMap<StageId, StageFootprint>>;

/// The bytes that all stages together need in `memory`.
pub fn needed(needs: &Footprint, memory: MemoryId) -> Bytes {
    needs.get(&memory).into_iter().flat_map(BTreeMap::values).map(StageFootprint::total).sum()
}

/// Adds the needs of stages in `memory`.
pub(crate) fn add_all(memories: &mut Footprint, memory: MemoryId, stages: &BTreeMap<StageId, StageFootprint>) {
    match memories.entry(memory) {
        Entry::Vacant(here) => {
            here.insert(stages.clone());
        }
        Entry::Occupied(_) => stages.iter().for_each(|(id, need)| add(memories, memory, (*id, *need))),
    }
}

/// Adds the need of stage `id` in `memory`.
pub(crate) fn add(memories: &mut Footprint, memory: MemoryId, (id, need): (StageId, StageFootprint)) {
    let here = memories.entry(memory).or_default().entry(id).or_default();
    here.state += need.state;
    here.slots += need.slots;
    here.transient += need.transient;
    // At most one of the needs of a stage in a memory has activations: those on the device or those
    // offloaded.
    here.per_microbatch += need.per_microbatch;
    here.in_flight = here.in_flight.max(need.in_flight);
}

/// The size of one of `shards` equal parts of `bytes`, rounded up.
pub const fn shard(bytes: Bytes, shards: usize) -> Bytes {
    Bytes::new(bytes.get().div_ceil(shards as u64))
}

/// The way in which a stage is joined to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// There is no neighbour: an end of the model.
    End,
    /// The neighbour is on the same device and reads what the stage writes.
    Within,
    /// The neighbour is on another device; the copy is double-buffered on both sides.
    Across,
}

impl Boundary {
    /// The boundaries before and after stage `id`.
    pub fn around(placement: &Placement, id: StageId) -> [Self; 2] {
        let stages = placement.stages.as_slice();
        let device = stages[id.index()].lead();
        let towards = |neighbour: Option<&Stage>| match neighbour {
            None => Self::End,
            Some(neighbour) if neighbour.lead() == device => Self::Within,
            Some(_) => Self::Across,
        };
        [towards(id.index().checked_sub(1).map(|before| &stages[before])), towards(stages.get(id.index() + 1))]
    }
}

/// The bytes that one stage needs on its device between the given boundaries.
///
/// Let S(l) be the saved activations of layer l, its input included. A stage of layers a..b whose
/// first r layers are recomputed holds per microbatch its input plus Σ S(l) over the other layers;
/// for r = 0 the input is part of the sum and is not counted twice. A stage that offloads holds
/// only its input; [`footprint_with`](crate::footprint_with) adds the activations under way.
pub fn stage_footprint(
    context: &Context<'_>,
    stage: &Stage,
    in_flight: InFlight,
    [before, behind]: [Boundary; 2],
) -> StageFootprint {
    let memory = |layer| context.cost.memory(layer, stage.lead());
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
    // Within a device: the incoming and the outgoing gradient, or the output that the next stage
    // reads.
    let gradients = if before == Boundary::Within && (passes || !training) { input } else { Bytes::ZERO }
        + if behind == Boundary::Within { output * copies } else { Bytes::ZERO };
    let workspace = stage.layers.iter().map(|layer| memory(layer).workspace).max().unwrap_or_default();
    let state = |memory: &LayerMemory| match stage.optimizer {
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
        transient: recomputed_bytes(context, stage) + workspace + gradients,
    }
}

/// The bytes of one microbatch of the stage's input in the precision of the stage's device: the
/// boundary of the layer before it, or the input of the model.
pub(super) fn input_bytes(context: &Context<'_>, stage: &Stage) -> Bytes {
    match stage.layers.first().index().checked_sub(1) {
        Some(before) => context.cost.memory(before.into(), stage.lead()).boundary,
        None => context.cost.memory(stage.layers.first(), stage.lead()).input,
    }
}

/// The activations of one microbatch that the stage recomputes for its backward.
pub(super) fn recomputed_bytes(context: &Context<'_>, stage: &Stage) -> Bytes {
    let saved = |layer| context.cost.memory(layer, stage.lead()).saved;
    stage.recomputed_layers().iter().flat_map(|layers| layers.iter()).map(saved).sum()
}

/// The bytes of one microbatch that a stage offloads: the saved activations of its layers, without
/// those that are recomputed and without the input of the stage.
pub fn offloaded_bytes(context: &Context<'_>, stage: &Stage) -> Bytes {
    let on_device = Stage { offload: None, ..*stage };
    let need = stage_footprint(context, &on_device, InFlight(1), [Boundary::End; 2]);
    need.per_microbatch.saturating_sub(input_bytes(context, stage))
}

/// The state of a stage because one of its layers is tied to a layer of another stage.
///
/// - The borrowing stage holds a copy of the tied parameters, unless their owner is in the same
///   memory, and the gradients from its own use.
/// - The owning stage holds those gradients once they have arrived, if they come from another
///   memory.
pub(super) fn tied_state(context: &Context<'_>, placement: &Placement, stage: &Stage) -> Bytes {
    let memory = |stage: &Stage| context.hardware.devices()[stage.lead()].memory;
    let together = |layer: LayerId| {
        let other = placement.stages.iter().find(|other| other.layers.contains(layer));
        other.is_some_and(|other| memory(other) == memory(stage))
    };
    let of = |user: LayerId| context.cost.memory(user, stage.lead());
    let borrowed = context.model.borrows(stage.layers).map(|tie| {
        let copy = if together(tie.owner) { Bytes::ZERO } else { of(tie.user).tied_parameters };
        copy + of(tie.user).tied_gradients
    });
    let lent =
        context.model.lends(stage.layers).filter(|tie| !together(tie.user)).map(|tie| of(tie.user).tied_gradients);
    borrowed.unwrap_or_default() + lent.unwrap_or_default()
}
