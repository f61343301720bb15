//! Stages, and where their parameters, activations and optimizer are.

use serde::{Deserialize, Serialize};
use spipe_base::{DeviceId, LayerRange, MemoryId, TeamId};
use spipe_model::Recompute;

/// The treatment of a layer's activations between its forward and its backward.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Activations {
    /// Kept on the device.
    #[default]
    Saved,
    /// Computed again in the backward, from the input of the run of layers.
    Recomputed,
    /// Copied to the host after the forward and back before the backward.
    Offloaded,
}

impl Activations {
    /// The corresponding choice of the cost model.
    pub const fn recompute(self) -> Recompute {
        match self {
            Self::Saved | Self::Offloaded => Recompute::None,
            Self::Recomputed => Recompute::Full,
        }
    }
}

/// The home of a stage's parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weights {
    /// The device of the stage.
    #[default]
    Resident,
    /// This memory, from which they are copied to the device before each use.
    Streamed(MemoryId),
}

/// A stage of the pipeline: consecutive layers on one team.
///
/// The first `recomputed` layers are recomputed, the others saved or offloaded. Recomputing the
/// front of a stage needs only the input of the stage, which is saved anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The team that runs it, in the first replica of the mesh.
    pub team: TeamId,
    /// The layers.
    pub layers: LayerRange,
    /// The number of recomputed layers, counted from the first layer.
    pub recomputed: usize,
    /// The host memory that holds saved activations between forward and backward, if they are
    /// offloaded.
    pub offload: Option<MemoryId>,
    /// The home of the parameters.
    pub weights: Weights,
    /// The CPU socket that holds the optimizer state and runs the optimizer step; `None` for the
    /// stage's own device.
    pub optimizer: Option<DeviceId>,
    /// The drive that keeps the optimizer state between steps; `None` for the memory of the step.
    pub state: Option<MemoryId>,
}

impl Stage {
    /// A stage of the team of `device`, with everything on its devices and no recompute.
    pub const fn new(device: DeviceId, layers: LayerRange) -> Self {
        Self {
            team: TeamId::led_by(device),
            layers,
            recomputed: 0,
            offload: None,
            weights: Weights::Resident,
            optimizer: None,
            state: None,
        }
    }

    /// The first device of its team, the only one of a team of one.
    pub const fn lead(&self) -> DeviceId {
        self.team.lead()
    }

    /// The same stage on the team of `device`.
    pub const fn on(self, device: DeviceId) -> Self {
        Self { team: TeamId::led_by(device), ..self }
    }

    /// The same stage on the team of `device`, with other sockets and memories for its own.
    pub fn moved(
        self,
        device: DeviceId,
        socket: impl Fn(DeviceId) -> DeviceId,
        memory: impl Fn(MemoryId) -> MemoryId,
    ) -> Self {
        Self {
            optimizer: self.optimizer.map(socket),
            offload: self.offload.map(&memory),
            state: self.state.map(&memory),
            weights: match self.weights {
                Weights::Streamed(home) => Weights::Streamed(memory(home)),
                Weights::Resident => Weights::Resident,
            },
            ..self.on(device)
        }
    }

    /// The same stage with its first `recomputed` layers recomputed.
    pub const fn with_recomputed(self, recomputed: usize) -> Self {
        Self { recomputed, ..self }
    }

    /// The same stage with all layers recomputed.
    pub fn with_everything_recomputed(self) -> Self {
        Self { recomputed: self.layers.count(), ..self }
    }

    /// The same stage with its optimizer on a CPU socket.
    pub const fn with_optimizer_on(self, socket: DeviceId) -> Self {
        Self { optimizer: Some(socket), ..self }
    }

    /// The same stage with its optimizer state on a drive.
    pub const fn with_state_on(self, drive: MemoryId) -> Self {
        Self { state: Some(drive), ..self }
    }

    /// The same stage with its parameters streamed from `memory`.
    pub const fn with_weights_in(self, memory: MemoryId) -> Self {
        Self { weights: Weights::Streamed(memory), ..self }
    }

    /// The same stage with its saved activations offloaded to `memory`.
    pub const fn with_activations_in(self, memory: MemoryId) -> Self {
        Self { offload: Some(memory), ..self }
    }

    /// The recomputed layers, if any.
    pub fn recomputed_layers(&self) -> Option<LayerRange> {
        let last = self.layers.first().index() + self.recomputed.checked_sub(1)?;
        LayerRange::new(self.layers.first(), last.into())
    }
}
