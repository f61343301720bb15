//! Why weights could not be read or written.

use super::file_names::{CONFIG, TENSORS};
use spipe_base::{Faults, words_of};
use std::{io, path::PathBuf};

/// Why weights could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// A file cannot be read or written.
    #[error("cannot {what} `{}`: {reason}", .path.display())]
    File {
        /// The operation: read or write.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// The tensors of the model have no known names in Hugging Face's layout.
    #[error("the weights of `{model}` have no known layout")]
    NoLayout {
        /// The model.
        model: String,
    },
    /// A matrix with an adapter that is no module of its own in Hugging Face's layout.
    #[error("the files of `{model}` have no module for an adapter of `{matrix}`")]
    NoModule {
        /// The model.
        model: String,
        /// The matrix.
        matrix: String,
    },
    /// A table that two layers share is trained as one copy, which PEFT's layout does not have.
    #[error("a copy of the tied table of `{model}` has no place in an adapter's file")]
    TiedCopy {
        /// The model.
        model: String,
    },
    /// The settings of an adapter cannot be read.
    #[error("cannot use `{}`: {faults}", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Its faults.
        faults: Faults,
    },
    /// An adapter of another model or plan.
    #[error("`{}` holds no adapter of `{model}`: {}", .path.display(), .differences.join("; "))]
    OtherAdapter {
        /// The folder.
        path: PathBuf,
        /// The model.
        model: String,
        /// Tensors that are missing or have another shape, and other settings.
        differences: Vec<String>,
    },
    /// Weights of another model.
    #[error("`{}` does not hold the weights of `{model}`: {}", .path.display(), .differences.join("; "))]
    Differs {
        /// The file or folder.
        path: PathBuf,
        /// The model.
        model: String,
        /// Tensors that are missing or have another shape.
        differences: Vec<String>,
    },
}

impl WeightsError {
    pub(super) fn file(what: &'static str, path: impl Into<PathBuf>, error: &io::Error) -> Self {
        Self::File { what, path: path.into(), reason: words_of(error) }
    }

    /// Advice, if there is any.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::File { what: "read", path, .. } if path.ends_with(CONFIG) || path.ends_with(TENSORS) => {
                Some("name a folder with `adapter_config.json` and `adapter_model.safetensors`, as PEFT writes them")
            }
            Self::NoModule { .. } => Some("train adapters on matrices that the files hold, or do not save them"),
            Self::TiedCopy { .. } => Some("train without `embeddings`, or keep the run's checkpoints instead"),
            Self::Config { .. } => None,
            Self::OtherAdapter { .. } => {
                Some("`command plan` makes a plan with the adapter's settings under `option adapter FOLDER`")
            }
            Self::File { what: "read", .. } => {
                Some("give a `.safetensors` file, or a folder with `model.safetensors` or the index of its parts")
            }
            Self::File { .. } => None,
            Self::NoLayout { .. } => {
                Some("known are Llama and its kin (SwiGLU, RMSNorm, rotary positions), GPT-2, and ViT with classes")
            }
            Self::Differs { .. } => Some("`command model import` makes the model that a `config.json` describes"),
        }
    }
}
