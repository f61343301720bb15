//! Stages in plan files.

use crate::{Activations, Stage, Weights};
use serde::{Deserialize, Serialize};
use spipe_base::{DeviceId, Diagnostic, LayerId, LayerRange, MemoryId, TeamId};
use spipe_hardware::Hardware;

/// The treatment of a run of layers of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Choice {
    /// The layers, both ends included.
    pub layers: LayerRange,
    /// The treatment of their activations.
    pub activations: Activations,
}

/// A stage of a plan file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StageFile {
    /// The name of the device.
    pub device: String,
    /// The first layer.
    pub first_layer: LayerId,
    /// The last layer, included. A stage without layers, which passes on what it receives, has the
    /// one before `first-layer`.
    pub last_layer: LayerId,
    /// The treatment of each run of layers, in layer order.
    pub choices: Vec<Choice>,
    /// The memory to which saved activations are offloaded, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_to: Option<String>,
    /// The memory from which the parameters are streamed; without it they stay on the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_in: Option<String>,
    /// The CPU socket that runs the optimizer step; without it the device does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_on: Option<String>,
    /// The drive that keeps the optimizer state between steps; without it the memory of the step does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_on: Option<String>,
}

impl StageFile {
    /// `stage` under the names of `hardware`.
    pub(crate) fn of(stage: &Stage, hardware: &Hardware) -> Self {
        let first = stage.layers.first().index();
        let split = first + stage.recomputed;
        let run = |from: usize, to: usize, activations| {
            LayerRange::new(from.into(), to.checked_sub(1)?.into())
                .filter(|_| from < to)
                .map(|layers| Choice { layers, activations })
        };
        let end = stage.layers.last().index() + 1;
        let others = if stage.offload.is_some() { Activations::Offloaded } else { Activations::Saved };
        let memory = |memory: MemoryId| hardware.memories()[memory].name.clone();
        Self {
            device: hardware.devices()[stage.lead()].name.clone(),
            first_layer: stage.layers.first(),
            last_layer: stage.layers.last(),
            choices: [run(first, split, Activations::Recomputed), run(split, end, others)]
                .into_iter()
                .flatten()
                .collect(),
            offload_to: stage.offload.map(memory),
            weights_in: match stage.weights {
                Weights::Resident => None,
                Weights::Streamed(home) => Some(memory(home)),
            },
            optimizer_on: stage.optimizer.map(|socket| hardware.devices()[socket].name.clone()),
            state_on: stage.state.map(memory),
        }
    }

    /// The stage under the ids of `hardware`.
    pub(crate) fn resolve(&self, hardware: &Hardware) -> Result<Stage, Diagnostic> {
        let device = device(&self.device, hardware)?;
        let empty = Some(LayerRange::empty_behind(self.last_layer)).filter(|none| none.first() == self.first_layer);
        let layers = LayerRange::new(self.first_layer, self.last_layer).or(empty).ok_or_else(|| {
            Diagnostic::error(format!(
                "the first layer {} comes after the last layer {}",
                self.first_layer, self.last_layer
            ))
            .hint("a stage without layers has the layer before it as its last layer")
        })?;
        let offload = self.offload_to.as_deref().map(|name| memory(name, hardware)).transpose()?;
        let recomputed = self.recomputed(layers, offload.is_some())?;
        let home = self.weights_in.as_deref().map(|name| memory(name, hardware)).transpose()?;
        let optimizer = self.optimizer_on.as_deref().map(|name| self::device(name, hardware)).transpose()?;
        let weights = home.map_or(Weights::Resident, Weights::Streamed);
        let state = self.state_on.as_deref().map(|name| memory(name, hardware)).transpose()?;
        Ok(Stage { team: TeamId::led_by(device), layers, recomputed, offload, weights, optimizer, state })
    }

    /// The number of recomputed layers at the front. The choices must cover `layers` in order.
    fn recomputed(&self, layers: LayerRange, offloads: bool) -> Result<usize, Diagnostic> {
        let mut next = layers.first();
        let mut recomputed = 0;
        for choice in &self.choices {
            if choice.layers.first() != next || choice.layers.last() > layers.last() {
                return Err(Diagnostic::error(format!(
                    "choices must cover layers {layers} in order, found {}",
                    choice.layers
                )));
            }
            match choice.activations {
                Activations::Recomputed if choice.layers.first().index() != layers.first().index() + recomputed => {
                    return Err(Diagnostic::error(format!(
                        "recomputed layers {} are not at the front of their stage",
                        choice.layers
                    ))
                    .hint("recompute the first layers of a stage: they need only its input"));
                }
                Activations::Recomputed => recomputed += choice.layers.count(),
                Activations::Offloaded if !offloads => {
                    return Err(Diagnostic::error(format!("layers {} are offloaded to no memory", choice.layers))
                        .hint("name it in `offload-to`"));
                }
                Activations::Saved if offloads => {
                    return Err(Diagnostic::error(format!(
                        "layers {} are saved in a stage that offloads its activations",
                        choice.layers
                    ))
                    .hint("a stage offloads all of its saved activations or none"));
                }
                Activations::Offloaded | Activations::Saved => {}
            }
            next = LayerId::from(choice.layers.last().index() + 1);
        }
        if !self.choices.is_empty() && next.index() != layers.last().index() + 1 {
            return Err(Diagnostic::error(format!("choices end before the last layer of {layers}")));
        }
        Ok(recomputed)
    }
}

fn device(name: &str, hardware: &Hardware) -> Result<DeviceId, Diagnostic> {
    hardware.device(name).ok_or_else(|| {
        let known: Vec<&str> = hardware.devices().iter().map(|device| device.name.as_str()).collect();
        Diagnostic::error(format!("`{}` has no device `{name}`", hardware.name()))
            .hint(format!("its devices are {}", known.join(", ")))
    })
}

fn memory(name: &str, hardware: &Hardware) -> Result<MemoryId, Diagnostic> {
    hardware.memory(name).ok_or_else(|| {
        let known: Vec<&str> = hardware.memories().iter().map(|memory| memory.name.as_str()).collect();
        Diagnostic::error(format!("`{}` has no memory `{name}`", hardware.name()))
            .hint(format!("its memories are {}", known.join(", ")))
    })
}
