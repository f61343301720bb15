//! A stage under lowering: its buffers, bytes and work.

use super::gradients::on_host;
use crate::{Content, Lifetime, ProgramBuilder, Stage as ProgramStage, work::StageWork};
use spipe_base::{BufferId, Bytes, LaneId, LaneRole, LayerId, LayerRange, MemoryId, StageId};
use spipe_cost::LayerMemory;
use spipe_plan::{
    Boundary, Context, InFlight, Placement, Stage, Update, gradients_leave, offloaded_bytes, stage_footprint,
};

/// A stage with its buffers, bytes and work.
pub(super) struct Station {
    pub stage: Stage,
    pub lane: LaneId,
    pub memory: MemoryId,
    /// The input of one microbatch, in the precision of the device; zero for the first stage.
    pub input: Bytes,
    /// The output of one microbatch.
    pub output: Bytes,
    pub workspace: Bytes,
    pub recomputed: Bytes,
    /// The activations that stay on the device for the backward, the input included.
    pub kept: Bytes,
    /// The activations that are offloaded in between.
    pub offloaded: Bytes,
    pub parameters: BufferId,
    /// The layers of its backward.
    pub backward: Option<LayerRange>,
    /// Whether its backward passes on a gradient.
    pub passes_gradient: bool,
    /// The accumulated gradients, if it has a backward: on the host if they leave after each
    /// microbatch.
    pub gradients: Option<BufferId>,
    /// The gradients of one microbatch, if they leave.
    pub leaving: Option<Leaving>,
    /// Keys and values, when tokens are generated.
    pub cache: Option<BufferId>,
    pub work: StageWork,
}

/// Gradients that leave after each microbatch.
#[derive(Clone, Copy)]
pub(super) struct Leaving {
    pub host: MemoryId,
    /// The size of the gradients of one microbatch, and of their sum.
    pub bytes: Bytes,
    /// With a delayed optimizer, the sum of the iteration before.
    pub before: Option<BufferId>,
}

impl Station {
    /// The station of stage `id` of a placement as the replica of `stage` has it.
    pub fn new(
        context: &Context<'_>,
        placement: &Placement,
        (id, stage): (StageId, Stage),
        builder: &mut ProgramBuilder,
    ) -> Self {
        let layers = stage.layers;
        let backward = context.backward_of(layers);
        let on_device = Stage { offload: None, ..stage };
        let need = stage_footprint(context, &on_device, InFlight(1), [Boundary::End; 2]);
        let memory = builder.memory_of(stage.lead());
        let recomputed = stage.recomputed_layers();
        builder.stage(ProgramStage { device: stage.lead(), layers, recomputed });
        let of = |layer: LayerId| context.cost.memory(layer, stage.lead());
        let sum = |bytes: fn(&LayerMemory) -> Bytes| layers.iter().map(|layer| bytes(of(layer))).sum();
        let parameters =
            builder.buffer(Content::Parameters(layers), memory, sum(|memory| memory.parameters), Lifetime::Resident);
        let bytes = sum(|memory| memory.gradients);
        let content = Content::Gradients(layers);
        let (gradients, leaving) = match stage.optimizer.filter(|_| gradients_leave(context, placement, &stage)) {
            Some(socket) => {
                let (host, delayed) = (builder.memory_of(socket), placement.update == Update::Delayed);
                let (gradients, before) = on_host(builder, (content, host, bytes), delayed);
                (Some(gradients), Some(Leaving { host, bytes, before }))
            }
            None => (backward.map(|_| builder.buffer(content, memory, bytes, Lifetime::Resident)), None),
        };
        let cached: Bytes = sum(|memory| memory.cache);
        let cache =
            (cached > Bytes::ZERO).then(|| builder.buffer(Content::Cache(layers), memory, cached, Lifetime::Resident));
        let again: Bytes = recomputed.iter().flat_map(|layers| layers.iter()).map(|layer| of(layer).saved).sum();
        let offloaded = match stage.offload {
            Some(_) if backward.is_some() => offloaded_bytes(context, &stage),
            _ => Bytes::ZERO,
        };
        Self {
            stage,
            lane: builder.lane(stage.lead(), LaneRole::Compute.name(), LaneRole::Compute),
            memory,
            input: layers.first().index().checked_sub(1).map_or(Bytes::ZERO, |before| of(before.into()).boundary),
            output: of(layers.last()).boundary,
            workspace: need.transient - again,
            recomputed: again,
            kept: need.per_microbatch - offloaded,
            offloaded,
            parameters,
            gradients,
            leaving,
            backward,
            passes_gradient: context.passes_gradient(layers),
            cache,
            work: StageWork::after_copies(context, &stage, waits(context, placement, id)),
        }
    }
}

/// Whether the host of a stage waits for copies before it and behind it: under a runtime that does, where the neighbour is
/// on another device.
fn waits(context: &Context<'_>, placement: &Placement, id: StageId) -> [bool; 2] {
    let waits = context.hardware.runtime().waits_for_copies();
    Boundary::around(placement, id).map(|boundary| waits && boundary == Boundary::Across)
}
