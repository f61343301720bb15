//! Checkpoints, drives and weights: where a run writes them, and what it starts or resumes from.

use crate::{Failure, args, output, output::Target};
use spipe_exec::{Checkpoint, Checkpoints, RunError};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The files that transformers reads beside weights.
const COMPANIONS: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "preprocessor_config.json",
];

/// The files of a run's state.
#[derive(Default)]
pub struct Persistence {
    /// The folder for checkpoints.
    pub checkpoints: Option<Checkpoints>,
    /// The checkpoint to resume from.
    pub resume: Option<Checkpoint>,
    /// The folder for the file of each drive, by the drive's name.
    pub drives: BTreeMap<String, PathBuf>,
    /// The weights to start from.
    pub weights: Option<PathBuf>,
    /// The folder for the weights at the end.
    pub save_weights: Option<PathBuf>,
    /// The folder of the adapter to start from.
    pub adapter: Option<PathBuf>,
    /// The folder for the adapter at the end.
    pub save_adapter: Option<PathBuf>,
}

impl Persistence {
    /// The files that the arguments name. Damaged checkpoints are skipped with a warning.
    pub fn new(what: &args::Run) -> Result<Self, Failure> {
        let weights = what.weights.as_ref().map(PathBuf::from);
        let save_weights = what.save_weights.as_ref().map(PathBuf::from);
        let adapter = what.adapter.as_ref().map(PathBuf::from);
        let save_adapter = what.save_adapter.as_ref().map(PathBuf::from);
        let drives = what.drives.iter().map(|given| drive(given)).collect::<Result<_, Failure>>()?;
        let Some(folder) = what.checkpoint_dir.as_ref().map(PathBuf::from) else {
            return Ok(Self { drives, weights, save_weights, adapter, save_adapter, ..Self::default() });
        };
        let mut resume = None;
        if what.resume {
            let newest = Checkpoint::newest(&folder).map_err(RunError::Checkpoint)?;
            for fault in newest.passed_over {
                output::talk(&format!("warning: {fault}; using the one before"));
            }
            if newest.checkpoint.is_none() {
                let folder = folder.display();
                output::talk(&format!("warning: `{folder}` has no checkpoint yet; starting at the first step"));
            }
            resume = newest.checkpoint;
        }
        let checkpoints = Some(Checkpoints { folder, every: what.checkpoint_every });
        Ok(Self { checkpoints, resume, drives, weights, save_weights, adapter, save_adapter })
    }

    /// Copies the files that transformers needs beside weights from the folder of the first weights
    /// to the folder of the saved ones, where they are missing.
    pub fn copy_companions(&self) -> Result<(), Failure> {
        match (&self.weights, &self.save_weights) {
            (Some(from), Some(to)) => copy_companions(from, to),
            _ => Ok(()),
        }
    }

    /// The number of steps that are done.
    pub fn step(&self) -> u32 {
        self.resume.as_ref().map_or(0, Checkpoint::step)
    }
}

/// A drive and its folder, as `nvme0=/mnt/nvme` gives them.
fn drive(given: &str) -> Result<(String, PathBuf), Failure> {
    let parts = given.split_once('=').filter(|(name, folder)| !name.is_empty() && !folder.is_empty());
    let (name, folder) = parts.ok_or_else(|| {
        Failure::argument(format!("`{given}` names no drive with a folder"), "write `--drive nvme0=/mnt/nvme`")
    })?;
    if !Path::new(folder).is_dir() {
        return Err(Failure::argument(format!("`{folder}` is no folder"), "make it first, on the drive"));
    }
    Ok((name.to_owned(), PathBuf::from(folder)))
}

/// Copies the files that transformers needs beside weights, where they are missing; none if `from` is a
/// file.
pub fn copy_companions(from: &Path, to: &Path) -> Result<(), Failure> {
    for name in COMPANIONS {
        let (source, there) = (from.join(name), to.join(name));
        if !source.is_file() || there.exists() {
            continue;
        }
        let read = std::fs::read(&source);
        let content = read.map_err(|error| Failure::file(&source.display().to_string(), "read", &error))?;
        Target::in_folder(to, name)?.write(&content)?;
    }
    Ok(())
}
