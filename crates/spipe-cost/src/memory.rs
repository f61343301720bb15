//! Bytes of a layer on a device.

use crate::Workload;
use spipe_base::Bytes;
use spipe_model::{Layer, Precision, Recompute};

/// What a layer holds on the device that runs it. AdamW in 16-bit training comes to 2 + 2 + 12 bytes per parameter, in f32
/// to 4 + 4 + 8 (Rajbhandari et al., ZeRO, 2020, section 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerMemory {
    /// Its parameters.
    pub parameters: Bytes,
    /// Their gradients.
    pub gradients: Bytes,
    /// The optimizer's state, master copy included.
    pub optimizer: Bytes,
    /// Kept from one microbatch's forward to its backward, the layer's input included, when nothing is recomputed.
    pub saved: Bytes,
    /// The same when the attention internals are recomputed.
    pub saved_selective: Bytes,
    /// Its input, which is all that is kept when everything is recomputed.
    pub input: Bytes,
    /// Its output on one microbatch.
    pub boundary: Bytes,
    /// What a forward or backward needs for itself while it runs.
    pub workspace: Bytes,
}

impl LayerMemory {
    /// The memory of `layer` when parameters and activations are stored in `precision`.
    pub(crate) fn of(layer: &Layer, workload: &Workload, precision: Precision) -> Self {
        let batch = workload.batch();
        let width = precision.bytes();
        let training = workload.mode == crate::Mode::Train;
        let when_training = |bytes: Bytes| if training { bytes } else { Bytes::ZERO };
        let saved = |recompute| when_training(layer.saved(batch, precision, recompute, workload.attention));
        Self {
            parameters: Bytes::new(layer.parameters * width),
            gradients: when_training(Bytes::new(layer.parameters * width)),
            optimizer: when_training(Bytes::new(layer.parameters * workload.optimizer.state_bytes(width))),
            saved: saved(Recompute::None),
            saved_selective: saved(Recompute::Selective),
            input: saved(Recompute::Full),
            boundary: layer.boundary(batch, precision),
            workspace: layer.workspace(batch, precision, workload.attention),
        }
    }

    /// Parameters, gradients and optimizer state together.
    pub fn state(&self) -> Bytes {
        self.parameters + self.gradients + self.optimizer
    }
}
