//! The footprint of sharded systems: shards, saved activations, and gathered stages during their
//! use.

use super::drives::{LOAD_SLOTS, STATE_SLOTS, Slots};
use super::stage::{Boundary, Footprint, StageFootprint, add, add_all, recomputed_bytes, shard, stage_footprint};
use crate::{
    Context, InFlight, Placement, ShardGroups, Stage, Weights,
    window::{Pass, gathered},
};
use spipe_base::{Bytes, DeviceId, MemoryId, StageId};
use spipe_cost::{LayerMemory, Mode};
use std::collections::BTreeMap;

/// The bytes that one device of a sharded placement needs for one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardedFootprint {
    /// The device's shards in its own memory.
    pub on_device: Bytes,
    /// The device's shards in the host memory near it.
    pub on_host: Bytes,
    /// The device's shard of parameters that a drive keeps.
    pub on_drive: Bytes,
    /// The input and the saved activations of one microbatch; zero without a backward.
    pub kept: Bytes,
    /// Whether the stage has a backward.
    pub returns: bool,
    /// The gathered parameters, including tied parameters of another stage.
    pub gathered: Bytes,
    /// The device's parameter shard while it arrives from the host for a gather.
    pub arriving: Bytes,
    /// The unreduced gradients.
    pub gradients: Bytes,
    /// The device's shard of the reduced gradients while it leaves for the host, and what it has of sums over groups.
    pub leaving: Bytes,
    /// The recomputed activations.
    pub again: Bytes,
    /// The workspace of its layers.
    pub workspace: Bytes,
    /// The input of one microbatch if another stage makes it; zero for the first stage.
    pub input: Bytes,
    /// The output of one microbatch.
    pub output: Bytes,
    /// Whether the backward passes a gradient to the stage before.
    pub passes_gradient: bool,
}

/// The bytes that `device`, one of `groups`, needs for `stage`.
pub fn sharded_footprint(
    context: &Context<'_>,
    (device, groups): (DeviceId, &ShardGroups),
    stage: &Stage,
) -> ShardedFootprint {
    let here = Stage { optimizer: None, offload: None, ..stage.on(device) };
    let need = stage_footprint(context, &here, InFlight(1), [Boundary::End; 2]);
    let memory = |layer| context.cost.memory(layer, device);
    let sum = |part: fn(&LayerMemory) -> Bytes| stage.layers.iter().map(|layer| part(memory(layer))).sum::<Bytes>();
    let (parameters, gradients) = (sum(|memory| memory.parameters), sum(|memory| memory.gradients));
    // Tied parameters of another stage are gathered with the stage's own; the shard of their
    // gradients stays.
    let user = context.model.borrows(stage.layers).map(|tie| memory(tie.user));
    let tied_parameters = user.map_or(Bytes::ZERO, |user| user.tied_parameters);
    let tied_gradients = user.map_or(Bytes::ZERO, |user| user.tied_gradients);
    let part = |bytes| shard(bytes, groups.size());
    // Each device generates its share of the sequences.
    let (mut on_device, mut on_host) = (part(sum(|memory| memory.cache)), Bytes::ZERO);
    let streamed = matches!(stage.weights, Weights::Streamed(_));
    let on_drive = if context.drive_of(stage).is_some() { part(parameters) } else { Bytes::ZERO };
    *(if streamed { &mut on_host } else { &mut on_device }) +=
        part(parameters) - on_drive + part(gradients) + part(tied_gradients);
    *(if streamed || stage.optimizer.is_some() { &mut on_host } else { &mut on_device }) +=
        part(sum(|memory| memory.optimizer));
    if stage.optimizer.is_some() && !streamed {
        on_host += part(sum(|memory| memory.updated)) + part(gradients);
    }
    let returns = context.workload().mode == Mode::Train && context.backward_of(stage.layers).is_some();
    // While groups add up a shard of gradients, each device has its part of the sum beside it. Where shards stay, that of
    // every stage may be there at once.
    let summed = |bytes| if returns && groups.count() > 1 { shard(part(bytes), groups.count()) } else { Bytes::ZERO };
    if !streamed {
        on_device += summed(gradients);
    }
    // A shard under way between host and device is held beside the gathered tensor, unless it is
    // the whole tensor.
    let moving = |bytes, tied| if streamed && groups.size() > 1 { part(bytes) + part(tied) } else { Bytes::ZERO };
    let sums = if streamed { summed(gradients) + summed(tied_gradients) } else { Bytes::ZERO };
    let again = recomputed_bytes(context, &here);
    let before = stage.layers.first().index().checked_sub(1);
    ShardedFootprint {
        on_device,
        on_host,
        on_drive,
        kept: if returns { need.per_microbatch } else { Bytes::ZERO },
        returns,
        gathered: parameters + tied_parameters,
        arriving: moving(parameters, tied_parameters),
        gradients: gradients + tied_gradients,
        leaving: moving(gradients, tied_gradients) + sums,
        again,
        workspace: need.transient - again,
        input: before.map_or(Bytes::ZERO, |before| memory(before.into()).boundary),
        output: memory(stage.layers.last()).boundary,
        passes_gradient: context.passes_gradient(stage.layers),
    }
}

/// The most bytes beside shards and saved activations that a device holds while it computes each
/// stage of `uses`, over forward, recompute and backward.
///
/// At most `resident` stages are gathered at a time. The gradients of a stage are reduced while the
/// stage before it computes, and those of a round before the next round reaches its last stage.
pub fn held_while_computing(uses: &[ShardedFootprint], resident: usize) -> Vec<Bytes> {
    let (count, first) = (uses.len(), uses.iter().position(|stage| stage.returns));
    let leaves = |stage: usize| uses.get(stage).map_or(Bytes::ZERO, |stage| stage.gradients + stage.leaving);
    // A round begins while the last gradients of the round before are reduced.
    let of_before = first.map_or(Bytes::ZERO, |first| leaves(first) + leaves(first + 1));
    let mut most = vec![Bytes::ZERO; count];
    let bytes = |stage: usize| (uses[stage].gathered, uses[stage].arriving);
    for (Pass { stage: at, backward }, whole) in gathered((count, first), resident, bytes) {
        let here = &uses[at];
        let output = if at + 1 < count { here.output } else { Bytes::ZERO };
        let computes = whole + here.workspace + output;
        let held = if backward {
            let passed = if here.passes_gradient { here.input } else { Bytes::ZERO };
            // While a stage is recomputed, the gradients of the two stages after it are reduced.
            let gradients = (leaves(at + 1) + leaves(at + 2)).max(passed + here.gradients + leaves(at + 1));
            computes + here.again + gradients
        } else {
            let input = if here.returns { Bytes::ZERO } else { here.input };
            let before = if at + 1 < count { of_before } else { Bytes::ZERO };
            // An iteration begins with the gather of its first stage.
            let begins = if at == 0 { whole + here.arriving + of_before } else { Bytes::ZERO };
            begins.max(computes + input + before)
        };
        most[at] = most[at].max(held);
    }
    most
}

/// The needs of one device, by stage and memory.
struct Needs {
    device: DeviceId,
    own: BTreeMap<StageId, StageFootprint>,
    host: BTreeMap<StageId, StageFootprint>,
    drives: Vec<(MemoryId, (StageId, StageFootprint))>,
}

impl Needs {
    fn of(context: &Context<'_>, placement: &Placement, (device, groups): (DeviceId, &ShardGroups)) -> Self {
        let footprint = |stage| sharded_footprint(context, (device, groups), stage);
        let uses: Vec<ShardedFootprint> = placement.stages.iter().map(footprint).collect();
        let mut needs = Self { device, own: BTreeMap::new(), host: BTreeMap::new(), drives: Vec::new() };
        for ((id, stage), need) in placement.stages.enumerate().zip(&uses) {
            let own = StageFootprint { state: need.on_device, per_microbatch: need.kept, in_flight: 1, ..NOTHING };
            needs.own.insert(id, own);
            if need.on_host > Bytes::ZERO {
                needs.host.insert(id, StageFootprint { state: need.on_host, ..NOTHING });
            }
            let drive = context.drive_of(stage);
            needs.drives.extend(drive.map(|drive| (drive, (id, StageFootprint { state: need.on_drive, ..NOTHING }))));
        }
        if let Some(first) = needs.own.first_entry() {
            first.into_mut().transient = transient(&uses, placement.resident_stages());
        }
        needs
    }
}

/// The need of a stage of which a memory holds nothing.
const NOTHING: StageFootprint = StageFootprint {
    state: Bytes::ZERO,
    per_microbatch: Bytes::ZERO,
    in_flight: 0,
    slots: Bytes::ZERO,
    transient: Bytes::ZERO,
};

/// The bytes in each memory: shards, saved activations of all stages, and the most that a device
/// holds beside them while a stage computes.
pub(super) fn footprint(context: &Context<'_>, placement: &Placement) -> Footprint {
    let mut memories = Footprint::new();
    let groups = placement.shard_groups();
    // Most devices are alike, and so is what they hold.
    let mut alike: Option<Needs> = None;
    for device in groups.devices() {
        let known = alike.take().filter(|needs| context.cost.alike(needs.device, *device));
        let needs = known.unwrap_or_else(|| Needs::of(context, placement, (*device, &groups)));
        add_all(&mut memories, context.hardware.devices()[*device].memory, &needs.own);
        if let Some(host) = context.hardware.host_memory(*device).filter(|_| !needs.host.is_empty()) {
            add_all(&mut memories, host, &needs.host);
        }
        needs.drives.iter().for_each(|(drive, need)| add(&mut memories, *drive, *need));
        alike = Some(needs);
    }
    add_slots_of_drives(context, placement, (&groups, &mut memories));
    memories
}

/// Adds the slots for shards of parameters from drives: those of [`LOAD_SLOTS`] gathers of each device,
/// and those of [`STATE_SLOTS`] of its optimizer steps, the largest ones.
fn add_slots_of_drives(
    context: &Context<'_>,
    placement: &Placement,
    (groups, memories): (&ShardGroups, &mut Footprint),
) {
    let (mut loads, mut steps) = (Slots::default(), Slots::default());
    let (shelved, shards) = (|stage: &Stage| context.drive_of(stage).is_some(), groups.size());
    for (id, stage) in placement.stages.enumerate() {
        let tie = context.model.borrows(stage.layers);
        let lends = |owner: &Stage| tie.is_some_and(|tie| owner.layers.contains(tie.owner)) && shelved(owner);
        let tie = tie.filter(|_| placement.stages.iter().any(lends));
        let trains = context.trains(stage.layers) || context.model.borrows(stage.layers).is_some();
        for device in groups.devices() {
            let Some(host) = context.hardware.host_memory(*device) else { continue };
            let of = |layer| context.cost.memory(layer, *device);
            let own = shard(stage.layers.iter().map(|layer| of(layer).parameters).sum(), shards);
            let own = if shelved(stage) { own } else { Bytes::ZERO };
            let tied = tie.map_or(Bytes::ZERO, |tie| shard(of(tie.user).tied_parameters, shards));
            // The same parameters may arrive for both passes.
            for bytes in [(own + tied, id); LOAD_SLOTS].into_iter().filter(|(bytes, _)| *bytes > Bytes::ZERO) {
                loads.pass((*device, host, LOAD_SLOTS), bytes);
            }
            if trains && own > Bytes::ZERO && context.backward_of(stage.layers).is_some() {
                steps.pass((*device, host, STATE_SLOTS), (own, id));
            }
        }
    }
    loads.add(memories);
    steps.add(memories);
}

/// The most that a device holds while it computes, beyond the saved activations of all stages.
/// Stages up to the one that computes have saved theirs.
fn transient(uses: &[ShardedFootprint], resident: usize) -> Bytes {
    let (mut kept, mut most) = (Bytes::ZERO, Bytes::ZERO);
    for (stage, held) in uses.iter().zip(held_while_computing(uses, resident)) {
        kept += stage.kept;
        most = most.max(kept + held);
    }
    most.saturating_sub(kept)
}
