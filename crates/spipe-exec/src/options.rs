//! How a program is run.

use crate::{
    device::Binding,
    optimizer::{Schedule, StepSettings},
    persist::checkpoint::{Checkpoint, Checkpoints},
};
use std::{collections::BTreeMap, path::PathBuf};

/// How a program is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The executor of each device that has a stage or runs optimizer steps.
    pub bindings: Vec<Binding>,
    /// Number of steps, including those before the checkpoint that the run resumes from.
    pub steps: u32,
    /// Seed of parameters and batches.
    pub seed: u64,
    /// The settings of the steps of the plan's optimizer.
    pub optimizer: StepSettings,
    /// The schedule of the learning rate.
    pub schedule: Schedule,
    /// Whether the report carries the gradients of the first step.
    pub keep_gradients: bool,
    /// Where and how often checkpoints are written.
    pub checkpoints: Option<Checkpoints>,
    /// The checkpoint to resume from.
    pub resume: Option<Checkpoint>,
    /// The folder of the file that stands for each drive, by the drive's name.
    pub drives: BTreeMap<String, PathBuf>,
    /// Weights in the layout of Hugging Face, a file or a folder, to start from.
    pub weights: Option<PathBuf>,
    /// The folder in which weights of that layout are saved at the end.
    pub save_weights: Option<PathBuf>,
    /// The folder of an adapter in PEFT's layout to start from.
    pub adapter: Option<PathBuf>,
    /// The folder in which the adapter is saved at the end.
    pub save_adapter: Option<PathBuf>,
}

impl Options {
    /// One step from seed 0 with PyTorch's defaults.
    pub fn new(bindings: Vec<Binding>) -> Self {
        Self {
            bindings,
            steps: 1,
            seed: 0,
            optimizer: StepSettings::default(),
            schedule: Schedule::default(),
            keep_gradients: false,
            checkpoints: None,
            resume: None,
            drives: BTreeMap::new(),
            weights: None,
            save_weights: None,
            adapter: None,
            save_adapter: None,
        }
    }
}
