//! What every action of a stage uses.

use super::gradients::on_host;
use crate::{Content, Lifetime, ProgramBuilder, Stage as ProgramStage};
use spipe_base::{BufferId, Bytes, LaneId, LaneRole, LayerId, LayerRange, MemoryId, Seconds, StageId};
use spipe_cost::{LayerMemory, LayerTime};
use spipe_model::Recompute;
use spipe_plan::{
    Boundary, Context, InFlight, Placement, Stage, System, gradients_leave, offloaded_bytes, stage_footprint,
};

/// A stage with its buffers, bytes and times.
pub(super) struct Station {
    pub stage: Stage,
    pub lane: LaneId,
    pub memory: MemoryId,
    /// Bytes of one microbatch of its input and of its output, in the precision of its device.
    pub input: Bytes,
    pub output: Bytes,
    pub workspace: Bytes,
    pub recomputed: Bytes,
    /// What the forward keeps on the device for the backward, its input included.
    pub kept: Bytes,
    /// What goes to the host in between.
    pub offloaded: Bytes,
    pub parameters: BufferId,
    /// The layers that its backward runs through, and whether it hands on a gradient.
    pub backward: Option<LayerRange>,
    pub passes_gradient: bool,
    /// Gradients, if it has a backward: on the host where they leave with each microbatch.
    pub gradients: Option<BufferId>,
    pub leaving: Option<Leaving>,
    /// Keys and values, when tokens are generated.
    pub cache: Option<BufferId>,
    pub times: Times,
}

/// How gradients leave with each microbatch.
#[derive(Clone, Copy)]
pub(super) struct Leaving {
    pub host: MemoryId,
    /// Of one microbatch, and of their sum.
    pub bytes: Bytes,
    /// Where a step is delayed, those that the iteration before has left.
    pub before: Option<BufferId>,
}

/// Work and memory traffic of one microbatch in a stage.
#[derive(Clone, Copy)]
pub(in crate::lower) struct Times {
    pub forward: (Seconds, Bytes),
    pub recompute: (Seconds, Bytes),
    pub backward_input: (Seconds, Bytes),
    pub backward_weight: (Seconds, Bytes),
}

impl Times {
    /// The whole backward.
    pub fn backward(&self) -> (Seconds, Bytes) {
        (self.backward_input.0 + self.backward_weight.0, self.backward_input.1 + self.backward_weight.1)
    }
}

impl Station {
    pub fn new(context: &Context<'_>, placement: &Placement, id: StageId, builder: &mut ProgramBuilder) -> Self {
        let stage = placement.stages[id];
        let layers = stage.layers;
        let backward = context.backward_of(layers);
        let on_device = Stage { offload: None, ..stage };
        let need = stage_footprint(context, &on_device, InFlight(1), [Boundary::End; 2]);
        let memory = builder.memory_of(stage.device);
        let recomputed = stage.recomputed_layers();
        builder.stage(ProgramStage { device: stage.device, layers, recomputed });
        let of = |layer: LayerId| context.cost.memory(layer, stage.device);
        let sum = |bytes: fn(&LayerMemory) -> Bytes| layers.iter().map(|layer| bytes(of(layer))).sum();
        let parameters =
            builder.buffer(Content::Parameters(layers), memory, sum(|memory| memory.parameters), Lifetime::Resident);
        let bytes = sum(|memory| memory.gradients);
        let content = Content::Gradients(layers);
        let (gradients, leaving) = match stage.optimizer.filter(|_| gradients_leave(context, placement, &stage)) {
            Some(socket) => {
                let (host, delayed) = (builder.memory_of(socket), placement.system == System::ZeroOffloadDelayed);
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
            lane: builder.lane(stage.device, LaneRole::Compute.name(), LaneRole::Compute),
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
            times: times(context, &stage),
        }
    }
}

/// Work and traffic of `stage` on one microbatch.
pub(in crate::lower) fn times(context: &Context<'_>, stage: &Stage) -> Times {
    let sum = |layers: Vec<LayerId>, part: &dyn Fn(&LayerTime) -> (Seconds, Bytes)| {
        layers
            .into_iter()
            .filter_map(|layer| context.cost.time(layer, stage.device))
            .map(part)
            .fold((Seconds::ZERO, Bytes::ZERO), |(time, bytes), (more, moved)| (time + more, bytes + moved))
    };
    let all: Vec<LayerId> = stage.layers.iter().collect();
    let again: Vec<LayerId> = stage.recomputed_layers().into_iter().flat_map(|layers| layers.iter()).collect();
    let recompute_time =
        again.iter().filter_map(|layer| context.cost.recompute_time(*layer, stage.device, Recompute::Full)).sum();
    let (_, recompute_traffic) = sum(again, &|time| (time.forward, time.forward_traffic));
    let half = |time: &LayerTime| Bytes::new(time.backward_traffic.get() / 2);
    let offloaded = stage.layers.iter().skip(if stage.offload.is_some() { stage.recomputed } else { all.len() });
    let (replay, _) = sum(offloaded.collect(), &|time| (time.replay, Bytes::ZERO));
    let (input_time, input_traffic) =
        sum(all.clone(), &|time| (time.backward_input, time.backward_traffic - half(time)));
    Times {
        forward: sum(all.clone(), &|time| (time.forward, time.forward_traffic)),
        recompute: (recompute_time, recompute_traffic),
        // Both halves read the incoming gradient and about as much again.
        backward_input: (input_time + replay, input_traffic),
        backward_weight: sum(all, &|time| (time.backward_weight, half(time))),
    }
}
