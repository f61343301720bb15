//! What devices hold that share everything: their shards, two stages' parameters and gradients in whole, and one microbatch's activations.

use crate::{
    Boundary, Context, Footprint, InFlight, Placement, Stage, StageFootprint, Weights, footprint::add, stage_footprint,
};
use spipe_base::{Bytes, DeviceId, StageId};
use spipe_cost::{LayerMemory, Mode};

/// What one of the devices that share a stage needs for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedFootprint {
    /// Shards that stay on the device, and those in the host memory near it.
    pub on_device: Bytes,
    /// See `on_device`.
    pub on_host: Bytes,
    /// What a microbatch saves for its backward.
    pub saved: Bytes,
    /// Two stages in whole, which all stages of the device share: the largest counts.
    pub slots: Bytes,
    /// What is needed while the stage computes: the largest counts.
    pub transient: Bytes,
}

/// What one of the devices that share everything needs for a stage between the given boundaries.
pub fn shared_footprint(
    context: &Context<'_>,
    (device, shards): (DeviceId, usize),
    stage: &Stage,
    boundary: [Boundary; 2],
) -> SharedFootprint {
    let here = Stage { device, optimizer: None, offload: None, ..*stage };
    let need = stage_footprint(context, &here, InFlight(1), boundary);
    let sum = |part: fn(&LayerMemory) -> Bytes| {
        stage.layers.iter().map(|layer| part(context.cost.memory(layer, device))).sum::<Bytes>()
    };
    let (parameters, gradients) = (sum(|memory| memory.parameters), sum(|memory| memory.gradients));
    // Parameters of another stage that it uses as well are gathered with its own; the sum of their gradients stays.
    let user = context.model.borrows(stage.layers).map(|tie| context.cost.memory(tie.user, device));
    let tied = user.map_or(Bytes::ZERO, |user| user.tied_parameters + user.tied_gradients);
    let tied_sum = user.map_or(Bytes::ZERO, |user| user.tied_gradients);
    let part = |bytes| shard(bytes, shards);
    // Each participant generates its share of the sequences.
    let (mut on_device, mut on_host) = (part(sum(|memory| memory.cache)), Bytes::ZERO);
    let streamed = matches!(stage.weights, Weights::Streamed(_));
    *(if streamed { &mut on_host } else { &mut on_device }) += part(parameters) + part(gradients) + part(tied_sum);
    *(if streamed || stage.optimizer.is_some() { &mut on_host } else { &mut on_device }) +=
        part(sum(|memory| memory.optimizer));
    if stage.optimizer.is_some() && !streamed {
        on_host += part(parameters) + part(gradients);
    }
    // On their way between host and device, shards are there twice.
    let moving = if streamed { part(parameters) + part(gradients) + part(tied) } else { Bytes::ZERO };
    let training = context.workload().mode == Mode::Train;
    SharedFootprint {
        on_device,
        on_host,
        saved: if training { need.per_microbatch } else { Bytes::ZERO },
        slots: (parameters + gradients + tied + moving) * 2,
        transient: need.transient,
    }
}

/// What one of `shards` equal parts comes to, rounded up.
pub const fn shard(bytes: Bytes, shards: usize) -> Bytes {
    Bytes::new(bytes.get().div_ceil(shards as u64))
}

pub(crate) fn footprint(context: &Context<'_>, placement: &Placement) -> Footprint {
    let mut memories = Footprint::new();
    let participants = placement.participants(context.hardware);
    for device in &participants {
        let memory = context.hardware.devices()[*device].memory;
        let mut largest = StageFootprint::default();
        for (id, stage) in placement.stages.enumerate() {
            let at = (*device, participants.len());
            let need = shared_footprint(context, at, stage, Boundary::around(placement, id));
            largest.slots = largest.slots.max(need.slots);
            largest.transient = largest.transient.max(need.transient);
            let state = StageFootprint {
                state: need.on_device,
                per_microbatch: need.saved,
                in_flight: 1,
                ..StageFootprint::default()
            };
            add(&mut memories, memory, (id, state));
            if let Some(host) = context.hardware.host_memory(*device).filter(|_| need.on_host > Bytes::ZERO) {
                let state = StageFootprint { state: need.on_host, ..StageFootprint::default() };
                add(&mut memories, host, (id, state));
            }
        }
        add(&mut memories, memory, (StageId::new(0), largest));
    }
    memories
}
