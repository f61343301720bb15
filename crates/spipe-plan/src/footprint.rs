//! Bytes that a placement needs in every memory.

use crate::{Context, InFlight, Placement, Stage};
use spipe_base::{Bytes, MemoryId, StageId};
use spipe_cost::Mode;
use std::collections::BTreeMap;

/// What one stage needs in its device's memory, by purpose.
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

/// What each memory must hold for `placement`.
///
/// Stages that share a memory add up, transient parts included: lanes of different devices in one memory run at the same
/// time.
pub fn footprint(context: &Context<'_>, placement: &Placement) -> Footprint {
    let mut memories = Footprint::new();
    for (id, stage) in placement.stages.enumerate() {
        let memory = context.hardware.devices()[stage.device].memory;
        let in_flight = InFlight::of(placement, id, context.workload().microbatches, |device| context.is_cpu(device));
        let ends = (id.index() == 0, id.index() + 1 == placement.stages.len());
        memories.entry(memory).or_default().insert(id, stage_footprint(context, stage, in_flight, ends));
    }
    memories
}

/// What one stage needs; `ends` says whether it is the first and whether it is the last.
///
/// With saved activations S(l) that include the input of layer l, a stage of layers a..b of which the first r are
/// recomputed holds per microbatch its input plus Σ S(l) over the others, where the input is not counted twice if r = 0.
pub fn stage_footprint(
    context: &Context<'_>,
    stage: &Stage,
    in_flight: InFlight,
    (first, last): (bool, bool),
) -> StageFootprint {
    let memory = |layer| context.cost.memory(layer, stage.device);
    let training = context.workload().mode == Mode::Train;
    let split = stage.layers.first().index() + stage.recomputed;
    let (recomputed, saved): (Vec<_>, Vec<_>) = stage.layers.iter().partition(|layer| layer.index() < split);
    let input = input_bytes(context, stage);
    let output = memory(stage.layers.last()).boundary;
    let kept: Bytes = saved.iter().map(|layer| memory(*layer).saved).sum();
    let per_microbatch = if recomputed.is_empty() { kept.max(input) } else { kept + input };
    let copies = if training { 2 } else { 1 };
    let slots_in = if first { Bytes::ZERO } else { input + input * (2 * (copies - 1)) };
    let slots_out = if last { Bytes::ZERO } else { output * (2 * copies) };
    let again: Bytes = recomputed.iter().map(|layer| memory(*layer).saved).sum();
    let workspace = stage.layers.iter().map(|layer| memory(layer).workspace).max().unwrap_or_default();
    StageFootprint {
        state: stage.layers.iter().map(|layer| memory(layer).state()).sum(),
        per_microbatch,
        in_flight: if training { in_flight.0 } else { 1 },
        slots: slots_in + slots_out,
        transient: again + workspace,
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
