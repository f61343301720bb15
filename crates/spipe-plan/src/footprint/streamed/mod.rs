//! The footprint of systems that stream parameters ([`crate::Family::Streamed`]).

mod device;

pub use device::transient_boundaries;

use super::stage::{Footprint, StageFootprint, add};
use crate::{Context, Placement, Stage, System, Weights};
use device::on_device;
use spipe_base::{Bytes, DeviceId};
use spipe_cost::LayerMemory;

/// The bytes in each memory: on devices those of [`device::on_device`]; on the host parameters,
/// gradients and optimizer state (16 bytes per parameter in mixed precision with Adam), and the
/// undo log of speculative steps.
pub(super) fn footprint(context: &Context<'_>, placement: &Placement) -> Footprint {
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
        // Arithmetic undo needs only the gradients, which are counted above.
        let logs = speculates(context, placement) && !placement.knobs.arithmetic_undo;
        let slots = if logs { undo_log(context, stage) } else { Bytes::ZERO };
        add(&mut memories, home, (id, StageFootprint { state, slots, ..StageFootprint::default() }));
    }
    memories
}

/// Whether optimizer steps run speculatively, before the norm of all gradients is known. They are
/// undone if a gradient is not finite, because the loss scale was too large, or if the norm must be
/// clipped.
pub fn speculates(context: &Context<'_>, placement: &Placement) -> bool {
    let early = placement.system == System::Spipe && !placement.knobs.synchronous_optimizer;
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
