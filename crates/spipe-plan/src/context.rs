//! The context of a placement.

use crate::{Stage, Weights};
use spipe_base::{DeviceId, LayerRange, MemoryId};
use spipe_cost::{CostTable, Mode, Workload};
use spipe_hardware::{Hardware, MemoryKind};
use spipe_model::{Architecture, Model};

/// A model, a machine, and the costs of one on the other: the frame in which a placement is judged.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The model.
    pub model: &'a Model,
    /// The machine.
    pub hardware: &'a Hardware,
    /// The time and memory of each layer on each device, under one workload.
    pub cost: &'a CostTable,
}

impl Context<'_> {
    /// The workload of the cost table: that of one replica.
    pub fn workload(&self) -> &Workload {
        self.cost.workload()
    }

    /// Whether `device` is a CPU socket.
    pub fn is_cpu(&self, device: DeviceId) -> bool {
        matches!(self.hardware.devices()[device].kind, spipe_hardware::DeviceKind::Socket { .. })
    }

    /// Whether any of `layers` has trainable parameters.
    pub fn trains(&self, layers: LayerRange) -> bool {
        layers.iter().any(|layer| self.cost.trained_parameters(layer) > 0)
    }

    /// The device on which the optimizer step of `stage` runs: the socket that the stage names, the
    /// socket whose memory it streams from, or its own device.
    pub fn steps(&self, stage: &Stage) -> DeviceId {
        let streamed = self.host_of(stage).and_then(|host| self.hardware.memories()[host].device);
        stage.optimizer.or(streamed).unwrap_or(stage.lead())
    }

    /// The DRAM of a stage's streamed parameters: their home or, where that is a drive, the DRAM next
    /// to the stage's device, through which they pass. `None` for parameters that stay on a device.
    pub fn host_of(&self, stage: &Stage) -> Option<MemoryId> {
        match stage.weights {
            Weights::Streamed(home) if self.is_drive(home) => self.hardware.host_memory(stage.lead()),
            Weights::Streamed(home) => Some(home),
            Weights::Resident => None,
        }
    }

    /// The drive that keeps a stage's parameters, if one does.
    pub fn drive_of(&self, stage: &Stage) -> Option<MemoryId> {
        match stage.weights {
            Weights::Streamed(home) => Some(home).filter(|home| self.is_drive(*home)),
            Weights::Resident => None,
        }
    }

    /// Whether `memory` is a drive.
    pub fn is_drive(&self, memory: MemoryId) -> bool {
        self.hardware.memories()[memory].kind == MemoryKind::Nvme
    }

    /// The part of `layers` that the backward pass covers. `None` in inference, and where no layer
    /// of the range or before it has trainable parameters. A stage without layers passes gradients
    /// on where the layer before it has a backward.
    pub fn backward_of(&self, layers: LayerRange) -> Option<LayerRange> {
        if layers.is_empty() {
            return self.passes_gradient(layers).then_some(layers);
        }
        LayerRange::new(layers.first().max(self.cost.without_backward().into()), layers.last())
    }

    /// Whether an iteration starts from the output of the one before: the next token of each
    /// sequence, or images after one denoising step.
    pub fn feeds_back(&self) -> bool {
        match (self.model.architecture(), self.workload().mode) {
            (Architecture::Unet(_), mode) => mode != Mode::Train,
            (Architecture::Vision(_), _) => false,
            (_, mode) => mode == Mode::Generate,
        }
    }

    /// Whether the backward of `layers` passes a gradient to the layer before them.
    pub fn passes_gradient(&self, layers: LayerRange) -> bool {
        self.cost.without_backward() < layers.first().index()
    }
}
