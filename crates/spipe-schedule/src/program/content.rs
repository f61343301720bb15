//! The meanings of buffers.

use spipe_base::{LayerId, LayerRange, MicrobatchId, StageId};
use std::fmt;

/// The meaning of a buffer's data. Together with the memory it names a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// Parameters of layers.
    Parameters(LayerRange),
    /// Parameters of layers as an optimizer step on a host leaves them: of adapted layers the adapters
    /// alone, since the host has no base.
    Updated(LayerRange),
    /// Accumulated gradients of parameters.
    Gradients(LayerRange),
    /// Master copies and moments.
    OptimizerState(LayerRange),
    /// The sum of the squares of accumulated gradients: one number, which counts as no bytes.
    Norm(LayerRange),
    /// A copy of tied parameters for the layer that borrows them, such as an embedding's table at
    /// the head.
    Shared(LayerId),
    /// Accumulated gradients of tied parameters from the use of the layer that borrows them.
    SharedGradients(LayerId),
    /// Keys and values of the tokens so far, for all microbatches. Each forward reads and extends
    /// those of its microbatch.
    Cache(LayerRange),
    /// The output of a layer on a microbatch.
    Activation(LayerId, MicrobatchId),
    /// The gradient of that output.
    Gradient(LayerId, MicrobatchId),
    /// Activations that the forward of layers saves for their backward.
    Saved(LayerRange, MicrobatchId),
    /// Activations that are recomputed before the backward.
    Recomputed(LayerRange, MicrobatchId),
    /// Activations that are reloaded from the host before the backward.
    Reloaded(LayerRange, MicrobatchId),
    /// The output of a layer on a microbatch, saved as the start of the backward of the layers
    /// after it.
    Checkpoint(LayerId, MicrobatchId),
    /// The state before a speculative optimizer step.
    UndoLog(LayerRange),
    /// The workspace of an action.
    Workspace(StageId, MicrobatchId),
}

impl Content {
    /// The part of a memory that the content belongs to, as reports name it.
    pub const fn part(&self) -> &'static str {
        match self {
            Self::Parameters(_) | Self::Updated(_) | Self::Shared(_) => "weights",
            Self::Gradients(_) | Self::SharedGradients(_) => "gradients",
            Self::OptimizerState(_) => "optimizer-state",
            Self::Saved(..) | Self::Recomputed(..) | Self::Reloaded(..) | Self::Checkpoint(..) => "activations",
            Self::Cache(_) => "cache",
            Self::Norm(_) | Self::Activation(..) | Self::Gradient(..) | Self::UndoLog(_) | Self::Workspace(..) => {
                "buffers"
            }
        }
    }

    /// The name of the content without its microbatch, for reports: "saved activations of layers
    /// 0..3".
    pub fn group(&self) -> String {
        match self {
            Self::Parameters(layers) | Self::Updated(layers) => format!("parameters of {}", layers.in_words()),
            Self::Gradients(layers) => format!("gradients of {}", layers.in_words()),
            Self::OptimizerState(layers) => format!("optimizer state of {}", layers.in_words()),
            Self::Norm(layers) => format!("norm of the gradients of {}", layers.in_words()),
            Self::Shared(user) => format!("parameters that {user} shares"),
            Self::SharedGradients(user) => format!("gradients of parameters that {user} shares"),
            Self::Cache(layers) => format!("keys and values of {}", layers.in_words()),
            Self::Activation(layer, _) => format!("activations after {layer}"),
            Self::Gradient(layer, _) => format!("activation gradients after {layer}"),
            Self::Saved(layers, _) => format!("saved activations of {}", layers.in_words()),
            Self::Recomputed(layers, _) => format!("recomputed activations of {}", layers.in_words()),
            Self::Reloaded(layers, _) => format!("reloaded activations of {}", layers.in_words()),
            Self::Checkpoint(layer, _) => format!("checkpoints after {layer}"),
            Self::UndoLog(layers) => format!("undo log of {}", layers.in_words()),
            Self::Workspace(stage, _) => format!("workspace of {stage}"),
        }
    }

    /// The first of its layers; `None` for the workspace of an action.
    pub const fn layer(&self) -> Option<LayerId> {
        match self {
            Self::Parameters(layers)
            | Self::Updated(layers)
            | Self::Gradients(layers)
            | Self::OptimizerState(layers)
            | Self::Norm(layers)
            | Self::UndoLog(layers)
            | Self::Cache(layers)
            | Self::Saved(layers, _)
            | Self::Recomputed(layers, _)
            | Self::Reloaded(layers, _) => Some(layers.first()),
            Self::Shared(layer)
            | Self::SharedGradients(layer)
            | Self::Activation(layer, _)
            | Self::Gradient(layer, _)
            | Self::Checkpoint(layer, _) => Some(*layer),
            Self::Workspace(..) => None,
        }
    }

    /// The microbatch, if the content belongs to one.
    pub const fn microbatch(&self) -> Option<MicrobatchId> {
        match self {
            Self::Parameters(_)
            | Self::Updated(_)
            | Self::Gradients(_)
            | Self::OptimizerState(_)
            | Self::Norm(_)
            | Self::Shared(_)
            | Self::SharedGradients(_)
            | Self::UndoLog(_)
            | Self::Cache(_) => None,
            Self::Activation(_, microbatch)
            | Self::Gradient(_, microbatch)
            | Self::Saved(_, microbatch)
            | Self::Recomputed(_, microbatch)
            | Self::Reloaded(_, microbatch)
            | Self::Checkpoint(_, microbatch)
            | Self::Workspace(_, microbatch) => Some(*microbatch),
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.microbatch() {
            Some(microbatch) => write!(f, "{}, {microbatch}", self.group()),
            None => f.write_str(&self.group()),
        }
    }
}
