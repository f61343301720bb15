//! Bytes of a layer on a device.

use crate::{Mode, Workload};
use spipe_base::{Bytes, LayerId};
use spipe_model::{Layer, Model, Precision, Recompute};

/// What a layer holds on the device that runs it. AdamW in 16-bit training comes to 2 + 2 + 12 bytes per parameter, in f32
/// to 4 + 4 + 8 (Rajbhandari et al., ZeRO, 2020, section 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerMemory {
    /// Its parameters.
    pub parameters: Bytes,
    /// Their gradients; none of a frozen layer.
    pub gradients: Bytes,
    /// The optimizer's state, master copy included; none of a frozen layer.
    pub optimizer: Bytes,
    /// The parameters of another layer that it uses as well: here too if that one is elsewhere.
    pub tied_parameters: Bytes,
    /// Their gradients from that use; none where that layer is frozen.
    pub tied_gradients: Bytes,
    /// Keys and values of all microbatches: what a prefill leaves, and what generating tokens reads.
    pub cache: Bytes,
    /// Kept from one microbatch's forward to its backward, the layer's input included, when nothing is recomputed; nothing where
    /// no backward runs. A frozen layer that a backward runs through is counted as one that trains.
    pub saved: Bytes,
    /// The same when the attention internals are recomputed.
    pub saved_selective: Bytes,
    /// Its input, which is all that is kept when everything is recomputed.
    pub input: Bytes,
    /// What one microbatch hands on over a cut behind it: its output, and every other output from before it that is read behind.
    pub boundary: Bytes,
    /// What a forward or backward needs for itself while it runs.
    pub workspace: Bytes,
}

impl LayerMemory {
    /// The memory of layer `id` when parameters and activations are stored in `precision`.
    pub(crate) fn of(model: &Model, id: LayerId, workload: &Workload, precision: Precision) -> Self {
        let outputs = model.crossing(id).map(|id| output(&model.layers()[id], workload, precision));
        let layer = &model.layers()[id];
        let tied = Bytes::new(layer.tied_parameters * precision.bytes());
        let trains = layer.tied_to.is_some_and(|owner| workload.mode == Mode::Train && model.layers()[owner].trains);
        Self {
            boundary: outputs.sum(),
            tied_parameters: tied,
            tied_gradients: if trains { tied } else { Bytes::ZERO },
            ..Self::alone(layer, workload, precision)
        }
    }

    /// The memory of `layer` where nothing but its own output goes on.
    pub(crate) fn alone(layer: &Layer, workload: &Workload, precision: Precision) -> Self {
        let batch = workload.batch();
        let width = precision.bytes();
        let training = workload.mode == Mode::Train;
        let when = |wanted: bool, bytes: Bytes| if training && wanted { bytes } else { Bytes::ZERO };
        let saved =
            |recompute| when(layer.needs_backward, layer.saved(batch, precision, recompute, workload.attention));
        let generating = workload.mode == Mode::Generate;
        let cache = if training { Bytes::ZERO } else { layer.cache(batch, precision) * workload.microbatches };
        let seen = if generating { layer.generated(batch) } else { batch };
        Self {
            parameters: Bytes::new(layer.parameters * width),
            gradients: when(layer.trains, Bytes::new(layer.parameters * width)),
            optimizer: when(layer.trains, Bytes::new(layer.parameters * workload.optimizer.state_bytes(width))),
            tied_parameters: Bytes::ZERO,
            tied_gradients: Bytes::ZERO,
            cache,
            saved: saved(Recompute::None),
            saved_selective: saved(Recompute::Selective),
            input: saved(Recompute::Full),
            boundary: output(layer, workload, precision),
            workspace: layer.workspace(seen, precision, workload.attention),
        }
    }

    /// Parameters, gradients, optimizer state and cache of its own together.
    pub fn state(&self) -> Bytes {
        self.parameters + self.gradients + self.optimizer + self.cache
    }
}

/// What `layer` puts out for one microbatch.
pub(crate) fn output(layer: &Layer, workload: &Workload, precision: Precision) -> Bytes {
    let batch = workload.batch();
    layer.boundary(if workload.mode == Mode::Generate { layer.generated(batch) } else { batch }, precision)
}
