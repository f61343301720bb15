//! What devices hold that share everything: their shards, what is kept for the backward, and what is whole while it is used.

use crate::{
    Boundary, Context, Footprint, InFlight, Placement, Stage, StageFootprint, Weights,
    footprint::add,
    stage_footprint,
    window::{Pass, There, there},
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
    /// What a microbatch keeps for its backward: its input and what is saved; nothing where none comes.
    pub kept: Bytes,
    /// Whether there is a backward.
    pub returns: bool,
    /// Its parameters in whole, those with which it shares some of another stage included.
    pub gathered: Bytes,
    /// The device's shard of them beside these, while they are gathered: it comes from the host.
    pub arriving: Bytes,
    /// Its gradients in whole, and the device's shard of their sum while it leaves for the host.
    pub gradients: Bytes,
    /// See `gradients`.
    pub leaving: Bytes,
    /// What is recomputed.
    pub again: Bytes,
    /// What its layers need while they compute.
    pub workspace: Bytes,
    /// One microbatch at either end; of the input what is the stage's before.
    pub input: Bytes,
    /// See `input`.
    pub output: Bytes,
    /// Whether its backward hands on a gradient.
    pub passes_gradient: bool,
}

/// What one of the devices that share everything needs for a stage.
pub fn shared_footprint(context: &Context<'_>, (device, shards): (DeviceId, usize), stage: &Stage) -> SharedFootprint {
    let here = Stage { device, optimizer: None, offload: None, ..*stage };
    let need = stage_footprint(context, &here, InFlight(1), [Boundary::End; 2]);
    let memory = |layer| context.cost.memory(layer, device);
    let sum = |part: fn(&LayerMemory) -> Bytes| stage.layers.iter().map(|layer| part(memory(layer))).sum::<Bytes>();
    let (parameters, gradients) = (sum(|memory| memory.parameters), sum(|memory| memory.gradients));
    // Parameters of another stage that it uses as well are gathered with its own; the sum of their gradients stays.
    let user = context.model.borrows(stage.layers).map(|tie| memory(tie.user));
    let tied_parameters = user.map_or(Bytes::ZERO, |user| user.tied_parameters);
    let tied_gradients = user.map_or(Bytes::ZERO, |user| user.tied_gradients);
    let part = |bytes| shard(bytes, shards);
    // Each participant generates its share of the sequences.
    let (mut on_device, mut on_host) = (part(sum(|memory| memory.cache)), Bytes::ZERO);
    let streamed = matches!(stage.weights, Weights::Streamed(_));
    *(if streamed { &mut on_host } else { &mut on_device }) +=
        part(parameters) + part(gradients) + part(tied_gradients);
    *(if streamed || stage.optimizer.is_some() { &mut on_host } else { &mut on_device }) +=
        part(sum(|memory| memory.optimizer));
    if stage.optimizer.is_some() && !streamed {
        on_host += part(parameters) + part(gradients);
    }
    // On their way between host and device, shards are there beside the whole, unless they are the whole.
    let moving = |bytes, tied| if streamed && shards > 1 { part(bytes) + part(tied) } else { Bytes::ZERO };
    let again: Bytes =
        stage.recomputed_layers().iter().flat_map(|layers| layers.iter()).map(|layer| memory(layer).saved).sum();
    let returns = context.workload().mode == Mode::Train && context.backward_of(stage.layers).is_some();
    let before = stage.layers.first().index().checked_sub(1);
    SharedFootprint {
        on_device,
        on_host,
        kept: if returns { need.per_microbatch } else { Bytes::ZERO },
        returns,
        gathered: parameters + tied_parameters,
        arriving: moving(parameters, tied_parameters),
        gradients: gradients + tied_gradients,
        leaving: moving(gradients, tied_gradients),
        again,
        workspace: need.transient - again,
        input: before.map_or(Bytes::ZERO, |before| memory(before.into()).boundary),
        output: memory(stage.layers.last()).boundary,
        passes_gradient: context.passes_gradient(stage.layers),
    }
}

/// By stage of `uses`, what a device has beside shards and what is kept while it computes it: the most of forward, recompute and backward.
///
/// Of its stages as many are there in whole as are resident. Gradients of one leave while the one behind it computes; those of a round are
/// out before the next round is at its last stage.
pub fn held_while_computing(uses: &[SharedFootprint], resident: usize) -> Vec<Bytes> {
    let (count, first) = (uses.len(), uses.iter().position(|stage| stage.returns));
    let leaves = |stage: usize| uses.get(stage).map_or(Bytes::ZERO, |stage| stage.gradients + stage.leaving);
    // A new round begins while the last gradients of the one before leave.
    let of_before = first.map_or(Bytes::ZERO, |first| leaves(first) + leaves(first + 1));
    let mut most = vec![Bytes::ZERO; count];
    for There { pass: Pass { stage: at, backward }, stages } in there(count, first, resident) {
        let whole = |(stage, comes): &(usize, bool)| {
            uses[*stage].gathered + if *comes { uses[*stage].arriving } else { Bytes::ZERO }
        };
        let (here, whole) = (&uses[at], stages.iter().map(whole).sum::<Bytes>());
        let output = if at + 1 < count { here.output } else { Bytes::ZERO };
        let computes = whole + here.workspace + output;
        let held = if backward {
            let passed = if here.passes_gradient { here.input } else { Bytes::ZERO };
            // While a stage is recomputed the gradients of the two behind it leave.
            let gradients = (leaves(at + 1) + leaves(at + 2)).max(passed + here.gradients + leaves(at + 1));
            computes + here.again + gradients
        } else {
            let input = if here.returns { Bytes::ZERO } else { here.input };
            let before = if at + 1 < count { of_before } else { Bytes::ZERO };
            // An iteration begins with gathering its first stage.
            let begins = if at == 0 { whole + here.arriving + of_before } else { Bytes::ZERO };
            begins.max(computes + input + before)
        };
        most[at] = most[at].max(held);
    }
    most
}

/// What one of `shards` equal parts comes to, rounded up.
pub const fn shard(bytes: Bytes, shards: usize) -> Bytes {
    Bytes::new(bytes.get().div_ceil(shards as u64))
}

/// On every device: its shards, what all stages keep for the backward, and beside these what there is more of while some stage computes.
pub(crate) fn footprint(context: &Context<'_>, placement: &Placement) -> Footprint {
    let mut memories = Footprint::new();
    let participants = placement.participants(context.hardware);
    for device in &participants {
        let memory = context.hardware.devices()[*device].memory;
        let at = (*device, participants.len());
        let uses: Vec<SharedFootprint> =
            placement.stages.iter().map(|stage| shared_footprint(context, at, stage)).collect();
        for (id, need) in placement.stages.ids().zip(&uses) {
            let state = StageFootprint {
                state: need.on_device,
                per_microbatch: need.kept,
                in_flight: 1,
                ..StageFootprint::default()
            };
            add(&mut memories, memory, (id, state));
            if let Some(host) = context.hardware.host_memory(*device).filter(|_| need.on_host > Bytes::ZERO) {
                let state = StageFootprint { state: need.on_host, ..StageFootprint::default() };
                add(&mut memories, host, (id, state));
            }
        }
        let transient = beside(&uses, placement.resident_stages());
        add(&mut memories, memory, (StageId::new(0), StageFootprint { transient, ..StageFootprint::default() }));
    }
    memories
}

/// What a device has at most while it computes, beside what all stages keep: the backward of the last one finds it all.
fn beside(uses: &[SharedFootprint], resident: usize) -> Bytes {
    let (mut kept, mut most) = (Bytes::ZERO, Bytes::ZERO);
    for (stage, held) in uses.iter().zip(held_while_computing(uses, resident)) {
        kept += stage.kept;
        most = most.max(kept + held);
    }
    most.saturating_sub(kept)
}
