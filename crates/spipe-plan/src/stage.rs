//! Stages, and what happens to what belongs to them.

use serde::{Deserialize, Serialize};
use spipe_base::{DeviceId, LayerRange, MemoryId};
use spipe_model::Recompute;

/// What happens to a layer's activations between its forward and its backward.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Activations {
    /// All are kept on the device.
    #[default]
    Saved,
    /// Only the input of the run of layers is kept; the rest is computed again.
    Recomputed,
    /// They are copied to the host after the forward and back before the backward.
    Offloaded,
}

impl Activations {
    /// What the cost model calls it.
    pub const fn recompute(self) -> Recompute {
        match self {
            Self::Saved | Self::Offloaded => Recompute::None,
            Self::Recomputed => Recompute::Full,
        }
    }
}

/// Where a stage's parameters are when it does not compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weights {
    /// On its device, throughout.
    #[default]
    Resident,
    /// In this memory, from which they are copied in before each use.
    Streamed(MemoryId),
}

/// A stage of the pipeline: consecutive layers on one device.
///
/// The first `recomputed` layers are recomputed, the others saved. Recomputing the front of a stage needs only the stage's
/// input, which is there anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Where it runs.
    pub device: DeviceId,
    /// Which layers it has.
    pub layers: LayerRange,
    /// How many of them, counted from the first, are recomputed.
    pub recomputed: usize,
    /// The host memory to which saved activations go between forward and backward, if they leave the device.
    pub offload: Option<MemoryId>,
    /// Where its parameters are.
    pub weights: Weights,
    /// The CPU socket that keeps its optimizer state and steps it; none for its own device.
    pub optimizer: Option<DeviceId>,
}

impl Stage {
    /// A stage that keeps everything on its device.
    pub const fn new(device: DeviceId, layers: LayerRange) -> Self {
        Self { device, layers, recomputed: 0, offload: None, weights: Weights::Resident, optimizer: None }
    }

    /// The same with that many of its first layers recomputed.
    pub const fn with_recomputed(self, recomputed: usize) -> Self {
        Self { recomputed, ..self }
    }

    /// The same with all layers recomputed.
    pub fn with_everything_recomputed(self) -> Self {
        Self { recomputed: self.layers.count(), ..self }
    }

    /// The same with its optimizer on a CPU socket.
    pub const fn with_optimizer_on(self, socket: DeviceId) -> Self {
        Self { optimizer: Some(socket), ..self }
    }

    /// The same with its parameters streamed from a memory.
    pub const fn with_weights_in(self, memory: MemoryId) -> Self {
        Self { weights: Weights::Streamed(memory), ..self }
    }

    /// The same with its saved activations in a host memory between forward and backward.
    pub const fn with_activations_in(self, memory: MemoryId) -> Self {
        Self { offload: Some(memory), ..self }
    }

    /// The layers that are recomputed, if any.
    pub fn recomputed_layers(&self) -> Option<LayerRange> {
        let last = self.layers.first().index() + self.recomputed.checked_sub(1)?;
        LayerRange::new(self.layers.first(), last.into())
    }
}
