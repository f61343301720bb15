//! The footprint of systems that stream parameters in rounds.

mod device;

pub use device::transient_boundaries;

use super::{
    drives::{LOAD_SLOTS, STATE_SLOTS, Slots},
    stage::{Footprint, StageFootprint, add},
};
use crate::{Context, ExchangePolicy, Knob, Placement, Stage, Weights};
use device::on_device;
use spipe_base::{Bytes, DeviceId, StageId};
use spipe_cost::{LayerMemory, Mode};

/// The bytes in each memory: on devices those of [`device::on_device`]; on the host parameters,
/// gradients and optimizer state (16 bytes per parameter in mixed precision with Adam), and the
/// undo log of speculative steps. Parameters on a drive pass through slots on the host.
pub(super) fn footprint(context: &Context<'_>, placement: &Placement) -> Footprint {
    let mut memories = Footprint::new();
    for device in placement.devices() {
        on_device(context, (placement, device), &mut memories);
    }
    for (id, stage) in placement.backward_stages().enumerate() {
        let Weights::Streamed(home) = stage.weights else { continue };
        let sum = |part: fn(&LayerMemory) -> Bytes| {
            stage.layers.iter().map(|layer| part(context.cost.memory(layer, stage.lead()))).sum::<Bytes>()
        };
        let lent =
            context.model.lends(stage.layers).map(|tie| context.cost.memory(tie.user, stage.lead()).tied_gradients);
        let (parameters, host) = (sum(|memory| memory.parameters), context.host_of(stage).unwrap_or(home));
        add(&mut memories, home, (id, StageFootprint { state: parameters, ..StageFootprint::default() }));
        let state = sum(|memory| memory.gradients) + sum(|memory| memory.optimizer) + lent.unwrap_or_default();
        // Arithmetic undo needs only the gradients, which are counted above.
        let logs = speculates(context, placement) && Knob::ArithmeticUndo.of(placement) != Some(1);
        let slots = if logs { undo_log(context, stage) } else { Bytes::ZERO };
        add(&mut memories, host, (id, StageFootprint { state, slots, ..StageFootprint::default() }));
    }
    add_slots_of_drives(context, placement, &mut memories);
    memories
}

/// Adds the slots for parameters from drives: [`LOAD_SLOTS`] exchanges of each device, and
/// [`STATE_SLOTS`] stages of each socket's optimizer steps, the largest ones.
fn add_slots_of_drives(context: &Context<'_>, placement: &Placement, memories: &mut Footprint) {
    let training = context.workload().mode == Mode::Train;
    let units = if Knob::Sequential.of(placement) == Some(1) { 1 } else { ExchangePolicy::of(placement).swap };
    let (mut loads, mut steps) = (Slots::default(), Slots::default());
    for (index, stage) in placement.all_stages().enumerate().filter(|(_, stage)| context.drive_of(stage).is_some()) {
        let Some(host) = context.host_of(stage) else { continue };
        let of = |part: fn(&LayerMemory) -> Bytes| {
            stage.layers.iter().map(|layer| part(context.cost.memory(layer, stage.lead()))).sum::<Bytes>()
        };
        let (own, id) = (of(|memory| memory.parameters), StageId::from(index));
        let tied = context.model.borrows(stage.layers);
        let tied = tied.map_or(Bytes::ZERO, |tie| context.cost.memory(tie.user, stage.lead()).tied_parameters);
        // The same parameters may arrive for both passes.
        for bytes in [(own + tied, id); LOAD_SLOTS] {
            loads.pass((stage.lead(), host, LOAD_SLOTS * units), bytes);
        }
        let returns = placement.backward.is_empty() || index >= placement.stages.len();
        if training && returns && context.trains(stage.layers) {
            steps.pass((context.steps(stage), host, STATE_SLOTS), (own, id));
        }
    }
    loads.add(memories);
    steps.add(memories);
}

/// Whether optimizer steps run speculatively, before the norm of all gradients is known. They are
/// undone if a gradient is not finite, because the loss scale was too large, or if the norm must be
/// clipped.
pub fn speculates(context: &Context<'_>, placement: &Placement) -> bool {
    let early = placement.update.is_early();
    early && context.workload().checks_gradients()
}

/// The bytes of the undo log of a stage: its trainable parameters and both moments in f32.
pub fn undo_log(context: &Context<'_>, stage: &Stage) -> Bytes {
    let parameters: u64 = stage.layers.iter().map(|layer| context.cost.trained_parameters(layer)).sum();
    Bytes::new(parameters * UNDO_BYTES)
}

/// Bytes per trainable parameter in an undo log: three numbers in f32.
const UNDO_BYTES: u64 = 12;

/// The bytes that a streamed placement needs in the memory of `device`.
pub fn streamed_device_bytes(context: &Context<'_>, placement: &Placement, device: DeviceId) -> Bytes {
    let mut memories = Footprint::new();
    on_device(context, (placement, device), &mut memories);
    memories.values().flat_map(|stages| stages.values()).map(StageFootprint::total).sum()
}
