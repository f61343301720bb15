//! Checkpoints: everything that a run needs to resume as if it had never stopped.
//!
//! ```text
//! folder/step-00000020/weights.safetensors     parameters by the names of layers and tensors, f32
//!                      optimizer.safetensors   the buffers of their optimizer's state, and gradients of a delayed step
//!                      checkpoint.json         step, seed, plan, kernels that were chosen for a GPU, and length and
//!                                              CRC-32 of the two; written last
//!        step-00000040/…
//!        .step-00000060.tmp/                   being written; renamed when all of it is on the disk
//! ```
//!
//! Weights are stored by layer, not by stage, so that another plan of the same model can resume.
//! Two checkpoints are kept: a run that is killed while it writes one still has the one before, and
//! a damaged one is passed over.

pub(crate) mod disk;
mod error;
mod initial_state;
mod manifest;
mod write;

pub(crate) use disk::{Disk, RealDisk};
pub(crate) use initial_state::InitialState;
pub(crate) use manifest::{Identity, LossScale, OptimizerSettings};
pub(crate) use write::{NamedLayer, TrainingState, Writer};

pub use error::CheckpointError;

use manifest::Manifest;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Where and how often a run writes checkpoints. There is always one at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    /// The folder, created if it is missing.
    pub folder: PathBuf,
    /// Number of steps between two checkpoints.
    pub every: u32,
}

/// An undamaged checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    folder: PathBuf,
    manifest: Manifest,
}

/// The result of [`Checkpoint::newest`].
#[derive(Clone, Debug, PartialEq)]
pub struct Newest {
    /// The newest undamaged one; none if the folder has no checkpoints at all.
    pub checkpoint: Option<Checkpoint>,
    /// The faults of newer ones.
    pub passed_over: Vec<CheckpointError>,
}

impl Checkpoint {
    /// The newest undamaged checkpoint in `folder`; every byte is checked against its checksum.
    ///
    /// # Errors
    /// A folder that cannot be read, or one whose checkpoints are all damaged.
    pub fn newest(folder: &Path) -> Result<Newest, CheckpointError> {
        let mut passed_over = Vec::new();
        for (_, path) in steps(folder)?.into_iter().rev() {
            match Manifest::read(&path) {
                Ok(manifest) => {
                    let checkpoint = Some(Self { folder: path, manifest });
                    return Ok(Newest { checkpoint, passed_over });
                }
                Err(error) => passed_over.push(error),
            }
        }
        if passed_over.is_empty() {
            Ok(Newest { checkpoint: None, passed_over })
        } else {
            Err(CheckpointError::NoneWhole { folder: folder.into(), faults: passed_over })
        }
    }

    /// Number of steps that are done.
    pub const fn step(&self) -> u32 {
        self.manifest.step
    }

    /// Number of the tuner's choices that the run had before, and that are others here or not made
    /// yet.
    pub(crate) fn choices_lost(&self, here: &BTreeMap<String, u64>) -> usize {
        self.manifest.tuned.iter().filter(|(question, chosen)| here.get(*question) != Some(chosen)).count()
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }
}

pub(crate) const WEIGHTS: &str = "weights.safetensors";
pub(crate) const OPTIMIZER: &str = "optimizer.safetensors";
const MANIFEST: &str = "checkpoint.json";

/// The name of a checkpoint's folder.
pub(crate) fn name(step: u32) -> String {
    format!("step-{step:08}")
}

/// The folders of checkpoints with their steps, ascending; none if the folder is missing.
pub(crate) fn steps(folder: &Path) -> Result<Vec<(u32, PathBuf)>, CheckpointError> {
    let fail = |error: &std::io::Error| CheckpointError::file("read", folder, error);
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|error| fail(&error))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| fail(&error))?.path();
        let step = path.file_name().and_then(|name| name.to_str()?.strip_prefix("step-")?.parse().ok());
        found.extend(step.map(|step| (step, path)));
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_of_other_kernels_are_counted() {
        let text = r#"{
            "format-version": 1, "step": 1, "seed": 0, "model": "m", "plan": "0", "batch": 1,
            "optimizer": { "learning-rate": 0.001, "weight-decay": 0.0 }, "optimizer-steps": {},
            "tuned": { "aa": 1, "bb": 2 }, "files": {}
        }"#;
        let manifest: Manifest = serde_json::from_str(text).unwrap();
        let checkpoint = Checkpoint { folder: PathBuf::new(), manifest };
        let lost = |here: &[(&str, u64)]| {
            checkpoint.choices_lost(&here.iter().map(|(question, chosen)| ((*question).to_owned(), *chosen)).collect())
        };
        assert_eq!(lost(&[("aa", 1), ("bb", 2), ("cc", 3)]), 0);
        assert_eq!((lost(&[("aa", 1), ("bb", 0)]), lost(&[])), (1, 2), "others, and those that are not made yet");
    }
}
