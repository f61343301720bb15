//! Bytes of systems that stream parameters and run all microbatches of a chunk before the next ([`crate::Family::Rounds`]).

mod device;
mod exchange;

pub use exchange::{Exchanges, Exchanging, Room, Visit};

use crate::{Context, Footprint, Placement, Stage, StageFootprint, System, Weights, footprint::add};
use device::on_device;
use spipe_base::{Bytes, DeviceId, LayerId};
use spipe_cost::{LayerMemory, Mode};

/// How many boundaries of one microbatch a device holds at most of what passes between chunks; none where that depends on how many chunks
/// it has.
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

/// What each memory holds at most: on devices what [`device::on_device`] says, on the host 16 bytes per parameter in mixed precision with
/// Adam, and what an undo log keeps, 12 bytes per parameter that is trained.
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
