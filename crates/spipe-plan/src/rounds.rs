//! Bytes of systems that stream parameters and run all microbatches of a chunk before the next ([`crate::Family::Rounds`]).

use crate::{
    Boundary, Context, Footprint, InFlight, Placement, Stage, StageFootprint, System, Weights,
    footprint::add,
    footprint::{input_bytes, shared_state},
    stage_footprint,
};
use spipe_base::{Bytes, DeviceId, LayerId, StageId};
use spipe_cost::{LayerMemory, Mode};

/// How many chunks' parameters a device holds: k for Superpipeline, otherwise one that computes and one that arrives.
pub fn resident_chunks(placement: &Placement) -> u64 {
    match placement.system {
        System::Superpipeline => placement.knobs.resident.unwrap_or(2),
        System::NaiveSwap => placement.knobs.resident.unwrap_or(1),
        _ => 2,
    }
}

/// How many boundaries of one microbatch a device holds at most of what passes between chunks, where both passes have the same chunks;
/// none where that depends on how many chunks it has.
///
/// In training a microbatch is at one place at a time: its output stays until the next device has it, without which nothing comes back,
/// and its gradient until it has been used; the one that computes has two. No iteration begins before the one before has ended at its
/// first layer, unless that is not trained; then at least the only one of `devices` takes them in turn. Inputs of chunks that have a
/// backward are beside that, until then.
///
/// In inference inputs are part of it. One iteration may leave the device while the next one is on it and another one arrives.
pub fn boundaries_in_passing(context: &Context<'_>, devices: usize) -> Option<u64> {
    let microbatches = context.workload().microbatches;
    let in_turn = || devices == 1 || context.cost.trained_parameters(LayerId::new(0)) > 0;
    match context.workload().mode {
        Mode::Train => in_turn().then_some(microbatches + 1),
        Mode::Infer | Mode::Generate => Some(3 * microbatches + 1),
    }
}

/// What each memory holds at most.
///
/// On a device: all of what chunks that keep their parameters have, the largest other chunk as often as chunks are resident, gradients
/// of the chunk that computes and of the one on its way out, the inputs of its chunks on every microbatch, what passes between chunks
/// ([`boundaries_in_passing`]; otherwise what leaves for other devices on every microbatch, and gradients of three boundaries), what a
/// recompute makes, and what a forward or backward needs for itself. On the host: 16 bytes per parameter in mixed precision with Adam,
/// and what an undo log keeps, 12 bytes per parameter that is trained.
pub(crate) fn footprint(context: &Context<'_>, placement: &Placement) -> Footprint {
    let mut memories = Footprint::new();
    for device in placement.devices() {
        on_device(context, (placement, device), &mut memories);
    }
    for (id, stage) in placement.backward_stages().enumerate() {
        let Weights::Streamed(home) = stage.weights else { continue };
        let sum = |part: fn(&LayerMemory) -> Bytes| {
            stage.layers.iter().map(|layer| part(context.cost.memory(layer, stage.device))).sum::<Bytes>()
        };
        let lent =
            context.model.lends(stage.layers).map(|tie| context.cost.memory(tie.user, stage.device).tied_gradients);
        let state = sum(|memory| memory.parameters)
            + sum(|memory| memory.gradients)
            + sum(|memory| memory.optimizer)
            + lent.unwrap_or_default();
        // Arithmetic needs the gradients, which are there anyway.
        let logs = trusts_steps(context, placement) && !placement.knobs.arithmetic_undo;
        let slots = if logs { undo_log(context, stage) } else { Bytes::ZERO };
        add(&mut memories, home, (id, StageFootprint { state, slots, ..StageFootprint::default() }));
    }
    memories
}

/// Whether steps are made before all gradients are known, and undone if some are not finite because their loss was scaled too much, or
/// if their norm is to be clipped.
pub fn trusts_steps(context: &Context<'_>, placement: &Placement) -> bool {
    let early = placement.system == System::Spipe && !placement.knobs.synchronous_optimizer;
    early && context.workload().checks_gradients()
}

/// What is kept of a stage to undo its step: parameters and both moments in f32.
pub fn undo_log(context: &Context<'_>, stage: &Stage) -> Bytes {
    let parameters: u64 = stage.layers.iter().map(|layer| context.cost.trained_parameters(layer)).sum();
    Bytes::new(parameters * UNDO_BYTES)
}

const UNDO_BYTES: u64 = 12;

/// What the memory of one device holds of a placement whose system runs in rounds ([`crate::Family::Rounds`]).
pub fn held_in_rounds(context: &Context<'_>, placement: &Placement, device: DeviceId) -> Bytes {
    let mut memories = Footprint::new();
    on_device(context, (placement, device), &mut memories);
    memories.values().flat_map(|stages| stages.values()).map(StageFootprint::total).sum()
}

/// Adds what one device holds.
fn on_device(context: &Context<'_>, (placement, device): (&Placement, DeviceId), memories: &mut Footprint) {
    let training = context.workload().mode == Mode::Train;
    let microbatches = context.workload().microbatches;
    let coupled = placement.backward.is_empty();
    let passing = boundaries_in_passing(context, placement.devices().len()).filter(|_| coupled);
    let memory = context.hardware.devices()[device].memory;
    let mut shared = StageFootprint::default();
    let (mut weights, mut gradients, mut boundary, mut ends) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
    let chunks = placement.all_stages().enumerate().filter(|(_, stage)| stage.device == device);
    for (index, stage) in chunks {
        let backward = index >= placement.stages.len();
        let plain = Stage { offload: None, optimizer: None, weights: Weights::Resident, ..*stage };
        let need = stage_footprint(context, &plain, InFlight(1), [Boundary::End; 2]);
        let sum = |part: fn(&LayerMemory) -> Bytes| {
            stage.layers.iter().map(|layer| part(context.cost.memory(layer, device))).sum::<Bytes>()
        };
        // Parameters of another chunk that one of its layers uses as well come with its own.
        let user = context.model.borrows(stage.layers).map(|tie| context.cost.memory(tie.user, device));
        let tied = |part: fn(&LayerMemory) -> Bytes| user.map_or(Bytes::ZERO, part);
        let stays = matches!(stage.weights, Weights::Resident);
        if !stays {
            weights = weights.max(sum(|memory| memory.parameters) + tied(|memory| memory.tied_parameters));
            gradients = gradients.max(sum(|memory| memory.gradients) + tied(|memory| memory.tied_gradients));
        }
        shared.transient = shared.transient.max(need.transient);
        // Inputs, outputs that leave for another device, and boundaries inside a forward chunk at which a backward chunk begins.
        let (input, output) = (input_bytes(context, stage), context.cost.memory(stage.layers.last(), device).boundary);
        boundary = boundary.max(input).max(output);
        let next = placement.stages.get(StageId::from(index + 1)).filter(|_| !backward);
        let leaves = if next.is_some_and(|next| next.device != device) { output } else { Bytes::ZERO };
        let inside = placement.backward.iter().filter(|back| {
            !backward && stage.layers.first() < back.layers.first() && back.layers.first() <= stage.layers.last()
        });
        let checkpoints: Bytes = inside.map(|back| input_bytes(context, &Stage { device, ..*back })).sum();
        let saved = if training && coupled { need.per_microbatch.saturating_sub(input) } else { Bytes::ZERO };
        let state = if stays {
            sum(LayerMemory::state) + shared_state(context, placement, stage)
        } else {
            sum(|memory| memory.cache)
        };
        let held = match passing {
            Some(_) if context.backward_of(stage.layers).is_some() => input,
            Some(_) => Bytes::ZERO,
            None => input + leaves,
        };
        ends += (input + leaves) * microbatches;
        let kept = StageFootprint {
            state: if backward { Bytes::ZERO } else { state },
            per_microbatch: held + checkpoints + saved,
            in_flight: microbatches,
            ..StageFootprint::default()
        };
        add(memories, memory, (StageId::from(index), kept));
    }
    let crossing = match passing {
        Some(count) if training => boundary * count,
        Some(count) => ends.min(boundary * count),
        // Gradients of the boundary that comes in, of the one that goes out, and of one on its way.
        None => boundary * if training { 3 * microbatches } else { 0 },
    };
    shared.slots = weights * resident_chunks(placement) + gradients * 2 + crossing;
    add(memories, memory, (StageId::new(0), shared));
}
