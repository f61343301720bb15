//! The devices of a sharded system, with their shards.

use super::tied::Borrowed;
use crate::{Access, Content, Lifetime, Part, ProgramBuilder, Stage as ProgramStage};
use spipe_base::{ActionId, BufferId, Bytes, DeviceId, LaneId, LaneRole, MemoryId, StageId};
use spipe_cost::LayerMemory;
use spipe_plan::{Boundary, Context, InFlight, Placement, Stage, Weights, Window, shard, stage_footprint};
use std::collections::BTreeMap;

/// The number of stages whose unreduced gradients a device holds: one in computation, and one being
/// reduced.
pub(super) const SLOTS: usize = 2;

/// A stage on one device.
pub(super) struct StagePart {
    /// The stage as this device computes it.
    pub stage: Stage,
    pub id: StageId,
    /// The shard of the parameters.
    pub parameters: BufferId,
    /// The shard of the reduced gradients.
    pub gradients: Option<BufferId>,
    /// Keys and values of the device's own microbatches.
    pub cache: Option<BufferId>,
    /// The shard of the optimizer state, and the memory of its step.
    pub state: Option<(State, MemoryId)>,
    /// The memory of the shards of gradients and, unless a drive keeps them, of parameters.
    pub home: MemoryId,
    /// The drive that keeps the parameters.
    pub shelf: Option<MemoryId>,
    /// The number of additions to the gradients.
    pub accumulated: u32,
    /// The sum of the gradients over all groups, where groups add them up on devices.
    pub complete: Option<Access>,
    pub bytes: Sizes,
    /// The tied parameters that it borrows from another stage.
    pub borrowed: Option<Borrowed>,
}

/// A shard of optimizer state.
#[derive(Clone, Copy)]
pub(super) enum State {
    /// In the memory of its step.
    Here(BufferId),
    /// On this drive, with this size.
    OnDrive(MemoryId, Bytes),
}

/// The bytes of a stage and of its shards.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub parameters: Bytes,
    pub gradients: Bytes,
    pub parameter_shard: Bytes,
    /// The device's shard of the parameters that a step changes.
    pub updated_shard: Bytes,
    pub gradient_shard: Bytes,
    pub boundary: Bytes,
    pub saved: Bytes,
    pub recomputed: Bytes,
    pub workspace: Bytes,
}

/// A gathered stage.
#[derive(Clone, Copy)]
pub(super) struct Gathered {
    /// Its own parameters.
    pub own: BufferId,
    /// The tied parameters that it borrows.
    pub tied: Option<Access>,
    /// Its last use, as an index into [`Participant::computed`].
    pub used: usize,
}

/// A device.
pub(super) struct Participant {
    pub device: DeviceId,
    pub memory: MemoryId,
    pub compute: LaneId,
    pub collective: LaneId,
    /// Sums over groups.
    pub sums: Option<LaneId>,
    pub parts: Vec<StagePart>,
    /// The passes so far, in order.
    pub computed: Vec<ActionId>,
    /// The reductions so far, in order.
    pub reduced: Vec<ActionId>,
    /// The last use of the stage that the next gather replaces, as an index into `computed`.
    pub replaced: Option<usize>,
    /// The gathers with which an iteration begins.
    pub gathered_first: Vec<ActionId>,
    /// The gathered stages, least recently used first.
    pub window: Window,
    pub gathered: BTreeMap<usize, Gathered>,
    /// The forward of the last stage in the first round.
    pub first_last_forward: Option<ActionId>,
}

impl Participant {
    /// A device that holds part `share` of everything, in one of `groups` groups.
    pub fn new(
        context: &Context<'_>,
        placement: &Placement,
        (device, share, groups): (DeviceId, Part, usize),
        builder: &mut ProgramBuilder,
    ) -> Self {
        let memory = builder.memory_of(device);
        let parts = placement.stages.ids().map(|id| StagePart::new(context, placement, (device, share, id), builder));
        let parts = parts.collect();
        Self {
            device,
            memory,
            compute: builder.lane(device, LaneRole::Compute.name(), LaneRole::Compute),
            collective: builder.lane(device, "collective", LaneRole::Channel),
            sums: (groups > 1).then(|| builder.lane(device, "all-reduce", LaneRole::Channel)),
            parts,
            computed: Vec::new(),
            reduced: Vec::new(),
            replaced: None,
            gathered_first: Vec::new(),
            window: Window::new(placement.resident_stages()),
            gathered: BTreeMap::new(),
            first_last_forward: None,
        }
    }

    /// The latest reductions, for which no backward has waited yet.
    pub fn latest_reduced(&self) -> Vec<ActionId> {
        self.reduced.iter().rev().take(SLOTS).copied().collect()
    }
}

impl StagePart {
    fn new(
        context: &Context<'_>,
        placement: &Placement,
        (device, share, id): (DeviceId, Part, StageId),
        builder: &mut ProgramBuilder,
    ) -> Self {
        let stage = placement.stages[id].on(device);
        let (layers, memory) = (stage.layers, builder.memory_of(device));
        let id = builder.stage(ProgramStage { device, layers, recomputed: stage.recomputed_layers() });
        let bytes = Sizes::of(context, &stage, share.of as usize);
        let host = context.hardware.host_memory(device).unwrap_or(memory);
        let home = if matches!(stage.weights, Weights::Streamed(_)) { host } else { memory };
        let shelf = context.drive_of(&stage);
        let state_in = if home == host || stage.optimizer.is_some() { host } else { memory };
        let borrowed = Borrowed::of(context, placement, &stage);
        // Gradients of borrowed parameters are reduced as if they were the stage's own.
        let training = context.backward_of(layers).is_some() && (context.trains(layers) || borrowed.is_some());
        let mut resident = |content, memory, bytes| builder.part(share, content, memory, (bytes, Lifetime::Resident));
        let shard_of = |part: fn(&LayerMemory) -> Bytes| shard(sum(context, &stage, part), share.of as usize);
        let cache = shard_of(|memory| memory.cache);
        Self {
            cache: (cache > Bytes::ZERO).then(|| resident(Content::Cache(layers), memory, cache)),
            parameters: resident(Content::Parameters(layers), shelf.unwrap_or(home), bytes.parameter_shard),
            gradients: training.then(|| resident(Content::Gradients(layers), home, bytes.gradient_shard)),
            state: training.then(|| {
                let bytes = shard_of(|memory| memory.optimizer);
                let state = match stage.state.filter(|_| bytes > Bytes::ZERO) {
                    Some(drive) => State::OnDrive(drive, bytes),
                    None => State::Here(resident(Content::OptimizerState(layers), state_in, bytes)),
                };
                (state, state_in)
            }),
            borrowed,
            stage,
            id,
            home,
            shelf,
            accumulated: 0,
            complete: None,
            bytes,
        }
    }
}

impl Sizes {
    fn of(context: &Context<'_>, stage: &Stage, shards: usize) -> Self {
        let on_device = Stage { offload: None, optimizer: None, weights: Weights::Resident, ..*stage };
        let need = stage_footprint(context, &on_device, InFlight(1), [Boundary::End; 2]);
        let of = |layer| context.cost.memory(layer, stage.lead());
        let parameters = sum(context, stage, |memory| memory.parameters);
        let gradients = sum(context, stage, |memory| memory.gradients);
        let recomputed: Bytes =
            stage.recomputed_layers().iter().flat_map(|layers| layers.iter()).map(|layer| of(layer).saved).sum();
        let input =
            stage.layers.first().index().checked_sub(1).map_or(Bytes::ZERO, |before| of(before.into()).boundary);
        Self {
            parameters,
            gradients,
            parameter_shard: shard(parameters, shards),
            updated_shard: shard(sum(context, stage, |memory| memory.updated), shards),
            gradient_shard: shard(gradients, shards),
            boundary: of(stage.layers.last()).boundary,
            saved: need.per_microbatch.saturating_sub(input),
            recomputed,
            workspace: need.transient - recomputed,
        }
    }
}

/// The sum of `part` over the layers of a stage, in the precision of its device.
fn sum(context: &Context<'_>, stage: &Stage, part: fn(&LayerMemory) -> Bytes) -> Bytes {
    stage.layers.iter().map(|layer| part(context.cost.memory(layer, stage.lead()))).sum()
}
