//! Parameters, optimizer state and activations on drives: the bytes that leave the host, and the
//! slots in which they pass through it.
//!
//! ```text
//! drive ─ read ─► slot in DRAM ─► device
//! drive ─ read ─► slot in DRAM ─► optimizer step ─► the same slot ─ write ─► drive
//! device ─ offload ─► slot in DRAM ─ write ─► drive ─ read ─► slot in DRAM ─ reload ─► device
//! ```

use super::stage::{Footprint, StageFootprint, add, shard};
use crate::{Context, Placement, Stage, Weights};
use spipe_base::{Bytes, DeviceId, MemoryId, StageId};
use std::{cmp::Reverse, collections::BTreeMap};

/// The number of copies of parameters from drives that a device has in DRAM at once: one that is
/// read, and one that goes on to the device.
pub const LOAD_SLOTS: usize = 2;

/// The number of optimizer states from drives that a queue of steps has in DRAM at once: one that is
/// read, one in its step, and one that is written.
pub const STATE_SLOTS: usize = 3;

/// The slots in which data of drives passes through hosts. A queue is the copies of one device through one host; it has
/// a fixed number of slots, which hold its largest buffers.
#[derive(Debug, Default)]
pub(super) struct Slots(BTreeMap<(DeviceId, MemoryId, usize), Vec<(Bytes, StageId)>>);

impl Slots {
    /// Lets bytes of a stage pass through a queue: its device, its host and the number of its slots.
    pub fn pass(&mut self, queue: (DeviceId, MemoryId, usize), bytes: (Bytes, StageId)) {
        self.0.entry(queue).or_default().push(bytes);
    }

    /// Adds the slots, each queue's under its first stage.
    pub fn add(self, memories: &mut Footprint) {
        for ((_, host, count), mut sizes) in self.0 {
            let Some(first) = sizes.iter().map(|(_, stage)| *stage).min() else { continue };
            sizes.sort_unstable_by_key(|size| Reverse(*size));
            let slots = sizes.iter().take(count).map(|(bytes, _)| *bytes).sum();
            add(memories, host, (first, StageFootprint { slots, ..StageFootprint::default() }));
        }
    }
}

/// The optimizer state of a stage, or of one shard of it, whose step runs on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostedState {
    /// The stage; a system with a backward of its own counts the stages of the backward.
    pub stage: StageId,
    /// The device whose steps share slots: the socket of the step, or the GPU that owns the shard.
    pub queue: DeviceId,
    /// The memory of the step.
    pub host: MemoryId,
    /// The drive that keeps the state between steps, if one does.
    pub drive: Option<MemoryId>,
    /// The size of the state.
    pub bytes: Bytes,
}

/// The optimizer states of a placement whose steps run on hosts, by stage; none in inference.
pub fn hosted_states(context: &Context<'_>, placement: &Placement) -> Vec<HostedState> {
    let sharded = placement.shards_parameters();
    let groups = placement.shard_groups();
    let mut states = Vec::new();
    for (id, stage) in placement.backward_stages().enumerate() {
        if context.backward_of(stage.layers).is_none() || !steps_on_a_host(context, stage) {
            continue;
        }
        let state = |queue, host, bytes| HostedState { stage: id, queue, host, drive: stage.state, bytes };
        if sharded {
            let of = |device: &DeviceId| {
                let shard = shard(bytes_on(context, (stage, *device)), groups.size());
                Some(state(*device, context.hardware.host_memory(*device)?, shard))
            };
            states.extend(groups.devices().iter().filter_map(of));
        } else {
            let queue = context.steps(stage);
            let host = match stage.weights {
                Weights::Streamed(home) => context.host_of(stage).unwrap_or(home),
                Weights::Resident => context.hardware.devices()[queue].memory,
            };
            states.push(state(queue, host, bytes_on(context, (stage, stage.lead()))));
        }
    }
    states.retain(|state| state.bytes > Bytes::ZERO);
    states
}

/// The DRAM through which the offloaded activations of a stage pass on their way to a drive and
/// back: the nearest one of its device. None if they stay in memory.
pub fn staging(context: &Context<'_>, stage: &Stage) -> Option<MemoryId> {
    stage.offload.filter(|memory| context.is_drive(*memory)).and_then(|_| context.hardware.host_memory(stage.lead()))
}

/// Whether the optimizer step of a stage runs on a socket that is not its own device.
pub(crate) fn steps_on_a_host(context: &Context<'_>, stage: &Stage) -> bool {
    let steps = context.steps(stage);
    steps != stage.lead() && context.is_cpu(steps)
}

fn bytes_on(context: &Context<'_>, (stage, device): (&Stage, DeviceId)) -> Bytes {
    stage.layers.iter().map(|layer| context.cost.memory(layer, device).optimizer).sum()
}

/// Moves the optimizer states of stages that name a drive from their hosts to it. Each queue of steps
/// keeps slots for the [`STATE_SLOTS`] largest of them, under its first stage.
pub(super) fn move_states(context: &Context<'_>, placement: &Placement, memories: &mut Footprint) {
    if placement.all_stages().all(|stage| stage.state.is_none()) {
        return;
    }
    let mut passing = Slots::default();
    for HostedState { stage, queue, host, drive, bytes } in hosted_states(context, placement) {
        let Some(drive) = drive else { continue };
        let there = memories.entry(host).or_default().entry(stage).or_default();
        there.state = there.state.saturating_sub(bytes);
        add(memories, drive, (stage, StageFootprint { state: bytes, ..StageFootprint::default() }));
        passing.pass((queue, host, STATE_SLOTS), (bytes, stage));
    }
    passing.add(memories);
}
