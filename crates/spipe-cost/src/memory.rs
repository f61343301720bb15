//! The memory of a layer on a device.

use crate::{Mode, Workload};
use spipe_base::{Bytes, LayerId};
use spipe_model::{Layer, Model, Precision, Recompute};

/// The bytes of a layer on the device that runs it. AdamW takes 2 + 2 + 12 bytes per parameter in
/// 16-bit training and 4 + 4 + 8 in f32 (Rajbhandari et al., ZeRO, 2020, section 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerMemory {
    /// Its parameters.
    pub parameters: Bytes,
    /// Their gradients; zero for a frozen layer.
    pub gradients: Bytes,
    /// The optimizer's state, including master copies; zero for a frozen layer.
    pub optimizer: Bytes,
    /// The parameters of another layer that it also uses; held here too if that layer is elsewhere.
    pub tied_parameters: Bytes,
    /// The gradients of those parameters from this use; zero if that layer is frozen.
    pub tied_gradients: Bytes,
    /// The keys and values of all microbatches, which a prefill writes and generation reads.
    pub cache: Bytes,
    /// Activations of one microbatch saved from forward to backward without recompute, including
    /// the layer's input; zero without a backward. A frozen layer with a backward counts like one
    /// that trains.
    pub saved: Bytes,
    /// The same with selective recompute.
    pub saved_selective: Bytes,
    /// The same with full recompute: the layer's input.
    pub input: Bytes,
    /// The output of one microbatch over a cut after the layer: its own output, and the earlier
    /// outputs that later layers read.
    pub boundary: Bytes,
    /// The bytes needed only while a forward or backward runs.
    pub workspace: Bytes,
}

impl LayerMemory {
    /// Computes the memory of layer `id` when parameters and activations are stored in `precision`.
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

    /// Computes the memory of `layer` if only its own output crosses the cut after it.
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

    /// Returns the sum of its own parameters, gradients, optimizer state and cache.
    pub fn state(&self) -> Bytes {
        self.parameters + self.gradients + self.optimizer + self.cache
    }
}

/// Returns the output bytes of `layer` for one microbatch.
pub(crate) fn output(layer: &Layer, workload: &Workload, precision: Precision) -> Bytes {
    let batch = workload.batch();
    layer.boundary(if workload.mode == Mode::Generate { layer.generated(batch) } else { batch }, precision)
}
