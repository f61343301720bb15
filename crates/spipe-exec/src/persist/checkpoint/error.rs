//! Why a checkpoint could not be written or used.

use spipe_base::words_of;
use std::path::{Path, PathBuf};

/// Why a checkpoint could not be written or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// An error of the file system.
    #[error("cannot {what} `{}`: {reason}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// Its file or folder.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// A checkpoint that is not as it was written.
    #[error("the checkpoint `{}` is damaged: {reason}", path.display())]
    Damaged {
        /// Its folder.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// All checkpoints in a folder are damaged.
    #[error("no checkpoint in `{}` is whole: {}", folder.display(), list(faults))]
    NoneWhole {
        /// The folder.
        folder: PathBuf,
        /// The fault of each, the newest first.
        faults: Vec<CheckpointError>,
    },
    /// A checkpoint of another run.
    #[error("the checkpoint `{}` does not suit this run: {}", path.display(), differences.join("; "))]
    Differs {
        /// Its folder.
        path: PathBuf,
        /// The differences.
        differences: Vec<String>,
    },
    /// Parameters are not finite; nothing was written.
    #[error("`{tensor}` after step {step} is not finite")]
    NotFinite {
        /// The first such tensor.
        tensor: String,
        /// The step before, from 0.
        step: u32,
    },
    /// A folder with checkpoints of another run.
    #[error("`{}` has checkpoints already, the newest after {step} steps", folder.display())]
    Taken {
        /// The folder.
        folder: PathBuf,
        /// Steps of the newest.
        step: u32,
    },
    /// A folder in use by another run.
    #[error("another run writes its checkpoints to `{}`", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// A checkpoint with all steps of the run behind it.
    #[error("the checkpoint `{}` has {done} steps behind it, {asked} were asked for", path.display())]
    Done {
        /// Its folder.
        path: PathBuf,
        /// Its steps.
        done: u32,
        /// Steps of the run.
        asked: u32,
    },
}

fn list(faults: &[CheckpointError]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl CheckpointError {
    pub(crate) fn file(what: &'static str, path: &Path, error: &std::io::Error) -> Self {
        Self::File { what, path: path.into(), reason: words_of(error) }
    }

    /// Advice, if there is any.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::File { what: "write", .. } => {
                Some("the checkpoint before it is as it was; make room, then run again with `option resume`".into())
            }
            Self::NoneWhole { .. } => Some("name another folder to start at the first step".into()),
            Self::Taken { .. } => Some("go on from it with `option resume`, or name another folder".into()),
            Self::InUse { .. } => Some("name another folder, or wait for it to end".into()),
            Self::Differs { .. } => Some("name another folder".into()),
            Self::Done { .. } => Some("ask for more `option steps`".into()),
            _ => None,
        }
    }
}
